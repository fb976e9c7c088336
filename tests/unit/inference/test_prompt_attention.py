"""Prompts attended together, as a GPU does, are those attended one by one."""

import pytest
import torch

from groundup.inference.prompt_attention import PromptAttention, prompts_at_once
from groundup.models.masks import CausalMask


@pytest.mark.parametrize("lengths", [[5, 3, 1, 9], [4], [2, 2, 2]])
def test_each_prompt_sees_itself_alone(lengths):
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, heads, sum(lengths), 8, generator=generator) for heads in (4, 2, 2))
    found = PromptAttention(lengths, torch.device("cpu")).attend(q, k, v)
    for part, *one in zip(*(x.split(lengths, 2) for x in (q, k, v)), strict=True):
        expected = CausalMask().attend(part, *one, dropout=0.0)[0].transpose(0, 1)
        torch.testing.assert_close(found[: len(expected)], expected, rtol=1e-5, atol=1e-6)
        found = found[len(expected) :]
    assert len(found) == 0


def test_groups_are_of_about_one_length():
    lengths = [5, 3, 1, 9, 30, 2, 40]
    groups = prompts_at_once(lengths)
    assert [length for group in groups for length in group] == lengths
    assert len(groups) == 2
    assert all(max(group) * len(group) <= 2 * sum(group) for group in groups)
