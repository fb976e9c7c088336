"""GRPO's loss and gradients against TRL's, of which ``record_grpo.py`` recorded four kinds."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from groundup.finetune.policy_loss import group_advantages, token_weights
from groundup.finetune.policy_objective import ROLLOUT_FIGURES, PolicyObjective, batch_of
from groundup.parallel.device import choose_precision
from groundup.train.loss import IGNORE
from tests.tiny import tiny_model

ORACLE: dict[str, Any] = torch.load(Path(__file__).with_name("grpo_trl.pt"), weights_only=True)
OURS = {
    "transformer.ln_f.weight": "norm.weight",
    "transformer.h.0.attn.c_attn.bias": "layers.0.attention.wq.bias",  # the first third
    "transformer.h.1.mlp.c_proj.weight": "layers.1.mlp.w2.weight",
}


@pytest.mark.parametrize(
    "case", ORACLE["cases"], ids=lambda case: "{loss_type}-{beta}-{weighted_kl}".format(**case)
)
def test_loss_gradients_and_figures_are_trls(case: dict[str, Any]) -> None:
    given = ORACLE["batch"]
    model: Any = tiny_model("gpt2").model
    precision = choose_precision("fp32", torch.device("cpu"))
    lengths_S = given["completion_mask"].sum(1)
    completions = zip(given["completion_ids"].tolist(), lengths_S.tolist(), strict=True)
    ids = [completion[:length] for completion, length in completions]
    batch = batch_of(list(zip(given["prompt_ids"].tolist(), ids, strict=True)))
    extra = {name: torch.zeros(6) for name in ROLLOUT_FIGURES}
    extra["advantage"] = group_advantages(given["rewards"], 2, "group")
    extra["weight"] = token_weights(
        lengths_S, case["loss_type"], max_new_tokens=16, mean_length=float(lengths_S.float().mean())
    )
    for name, noise in zip(("old", "reference"), given["noise"], strict=True):
        extra[name] = torch.zeros(batch.targets_BT.shape)
        values = (case["log_probs"] + noise)[given["completion_mask"].bool()]
        extra[name][batch.targets_BT != IGNORE] = values
    batch = dataclasses.replace(batch, extra=extra)
    settings = {name: case[name] for name in ("beta", "weighted_kl")}
    objective = PolicyObjective(temperature=0.7, clip_low=0.2, clip_high=0.28, **settings)

    torch.testing.assert_close(extra["advantage"], given["advantages"], rtol=0, atol=1e-6)
    loss, figures = objective.sums(model, model(batch.tokens_BT), batch, precision)
    loss = loss / objective.denominator(batch)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(case["loss"], rel=1e-5)
    parameters = dict(model.named_parameters())
    for name, gradient in case["gradients"].items():
        own = parameters[OURS[name]].grad
        expected = gradient.T if gradient.ndim == 2 else gradient[: len(own)]
        torch.testing.assert_close(own, expected, rtol=1e-5, atol=1e-5)

    found = dict(zip(objective.figures, (float(figure) / 6 for figure in figures), strict=True))
    if case["loss_type"] == "dapo":
        assert (
            0 < found["clip_fraction"] == pytest.approx(case["metrics"]["clip_ratio/region_mean"], rel=1e-5)
        )
        if case["beta"]:
            assert found["kl"] == pytest.approx(case["metrics"]["kl"], rel=1e-4)
