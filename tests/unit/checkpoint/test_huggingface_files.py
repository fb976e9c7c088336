"""The files of weights in a Hugging Face folder, and what they say against config.json."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from groundup.checkpoint.huggingface.weights import read_huggingface, write_huggingface, write_stored
from groundup.checkpoint.lazy import as_lazy
from groundup.checkpoint.logical_tensors import logical_weights
from groundup.checkpoint.parity import compare
from groundup.core.errors import CheckpointError
from tests.tiny import tiny_model


@pytest.mark.parametrize("name", ["gpt2", "llama-grouped-tied"])
def test_a_head_of_its_own_is_kept_beside_tie_word_embeddings(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    transformers = pytest.importorskip("transformers")
    ours, folder = tiny_model(name), tmp_path / "in"
    write_huggingface(ours, folder)
    weights = load_file(folder / "model.safetensors")
    embedding = next(
        tensor for key, tensor in weights.items() if key.endswith(("wte.weight", "_tokens.weight"))
    )
    save_file(
        {**weights, "lm_head.weight": embedding.clone()}, folder / "model.safetensors", {"format": "pt"}
    )
    assert read_huggingface(folder).config.tied_embedding
    assert not caplog.records
    head = torch.randn(embedding.shape, generator=torch.Generator().manual_seed(5))
    save_file({**weights, "lm_head.weight": head}, folder / "model.safetensors", {"format": "pt"})
    back = read_huggingface(folder)
    assert "lm_head.weight is stored and differs" in caplog.text
    assert torch.equal(logical_weights(back.model, back.config)["head.weight"], head)
    tokens_BT = torch.randint(300, (2, 64), generator=torch.Generator().manual_seed(1))
    write_huggingface(back, tmp_path / "out")
    for place in (folder, tmp_path / "out"):
        theirs = transformers.AutoModelForCausalLM.from_pretrained(place).eval()
        model: Any = back.model
        with torch.inference_mode():
            logits = torch.nn.functional.linear(model(tokens_BT), model.head.weight[:300])
            assert (logits - theirs(tokens_BT).logits).abs().max() <= 1e-5
    assert not json.loads((tmp_path / "out" / "config.json").read_text())["tie_word_embeddings"]


def test_an_index_that_its_files_do_not_bear_out_is_refused(tmp_path: Path) -> None:
    ours, folder = tiny_model("llama"), tmp_path / "in"
    write_stored(as_lazy(ours), folder, shards="2")
    index = folder / "model.safetensors.index.json"
    first, second = (f"model-0000{number}-of-00002.safetensors" for number in (1, 2))
    original = json.loads(index.read_text())["weight_map"]

    def read_with(weight_map: Any) -> None:
        index.write_text(json.dumps({"weight_map": weight_map}))
        read_huggingface(folder)

    name = next(iter(original))
    assert original[name] == first
    read_with({key: file for key, file in original.items() if key != name})  # it is in the file
    with pytest.raises(CheckpointError, match=rf"00002-of-00002.*has no tensor {name}, which .*index"):
        read_with({**original, name: second})
    with pytest.raises(CheckpointError, match=rf"weight_map\.{name} = '\.\./x' is not the name of a file"):
        read_with({**original, name: "../x"})
    with pytest.raises(CheckpointError, match="has no weight_map"):
        read_with({})
    with pytest.raises(CheckpointError, match=r"missing: .*"):
        read_with({key: file for key, file in original.items() if file == first})
    stray = load_file(folder / first)[name] + 1
    save_file({**load_file(folder / second), name: stray}, folder / second)
    read_with(original)  # the index decides
    assert compare(ours, read_huggingface(folder)).max_difference == 0
    with pytest.raises(CheckpointError, match=f"a tensor {name}, which another file has too"):
        read_with({key: file for key, file in original.items() if key != name})
