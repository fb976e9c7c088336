"""llama.cpp as a contender of ``generation.py``, by its Python binding: all requests decode in one batch.

Needs llama-cpp-python, gguf, numpy and safetensors, and nothing of groundup. Argument: JSON of the folder of
a GPT-2, the type of its weights (BF16, F32, Q8_0), and the threads. Then each line of stdin is a list of
(prompt, new tokens), answered by the seconds that they took.

    pip install --no-binary llama-cpp-python llama-cpp-python gguf safetensors
"""

import ctypes
import json
import sys
import tempfile
import time
from pathlib import Path

import gguf
import llama_cpp
import numpy as np
from gguf.quants import quantize
from safetensors.numpy import load_file

MAX_TEXTS = 32
LONGEST = 128
"""Tokens of a prompt and what is generated after it."""
NAMES = {
    "ln_1": "attn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}
OUTER = {"wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm"}


def convert(folder: Path, path: Path, kind: gguf.GGMLQuantizationType) -> None:
    """Writes a GPT-2 as GGUF; vectors and positions in fp32, as llama.cpp's own conversion does."""
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(path, "gpt2")
    writer.add_context_length(config["n_positions"])
    writer.add_embedding_length(config["n_embd"])
    writer.add_block_count(config["n_layer"])
    writer.add_feed_forward_length(config["n_inner"])
    writer.add_head_count(config["n_head"])
    writer.add_layer_norm_eps(config["layer_norm_epsilon"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    for name, values in load_file(folder / "model.safetensors").items():
        module, _, part = name.removeprefix("transformer.").rpartition(".")
        if module.startswith("h."):
            _, layer, inner = module.split(".", 2)
            stored = f"blk.{layer}.{NAMES[inner]}.{part}"
            values = values.T if values.ndim == 2 else values  # theirs are stored as inputs by outputs
        else:
            stored = f"{OUTER[module]}.{part}"
        values = np.ascontiguousarray(values, dtype=np.float32)
        if values.ndim == 2 and module != "wpe" and kind != gguf.GGMLQuantizationType.F32:
            writer.add_tensor(stored, quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(stored, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Contender:
    """A model in memory."""

    def __init__(self, path: Path, threads: int) -> None:
        self.silence = llama_cpp.llama_log_callback(lambda *_: None)
        llama_cpp.llama_log_set(self.silence, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        self.model = llama_cpp.llama_load_model_from_file(
            str(path).encode(), llama_cpp.llama_model_default_params()
        )
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx = MAX_TEXTS * LONGEST
        settings.n_seq_max = MAX_TEXTS
        settings.n_batch = settings.n_ctx
        settings.n_threads = settings.n_threads_batch = threads
        self.context = llama_cpp.llama_new_context_with_model(self.model, settings)
        assert self.context, "llama.cpp refuses the context"
        vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(vocab)
        self.batch = llama_cpp.llama_batch_init(settings.n_batch, 0, 1)

    def complete(self, requests: list[tuple[list[int], int]]) -> list[list[int]]:
        """Completes all at once, greedily."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        entries = []
        for text, (prompt, _) in enumerate(requests):
            entries += [(token, at, text, at + 1 == len(prompt)) for at, token in enumerate(prompt)]
        found: list[list[int]] = [[] for _ in requests]
        while entries:
            following = []
            for text, at, token in self._decode(entries):
                found[text].append(token)
                if len(found[text]) < requests[text][1]:
                    following.append((token, at + 1, text, True))
            entries = following
        return found

    def _decode(self, entries: list[tuple[int, int, int, bool]]) -> list[tuple[int, int, int]]:
        """Reads tokens; returns text, position and the most probable next token where that is wanted."""
        batch = self.batch
        batch.n_tokens = len(entries)
        for row, (token, at, text, is_last) in enumerate(entries):
            batch.token[row], batch.pos[row], batch.logits[row] = token, at, is_last
            batch.n_seq_id[row] = 1
            batch.seq_id[row][0] = text
        assert llama_cpp.llama_decode(self.context, batch) == 0
        found = []
        for row, (_, at, text, is_last) in enumerate(entries):
            if is_last:
                logits = llama_cpp.llama_get_logits_ith(self.context, row)
                found.append((text, at, int(np.ctypeslib.as_array(logits, (self.vocab_size,)).argmax())))
        return found


def main() -> None:
    """Answers until stdin ends."""
    order = json.loads(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.gguf")
        convert(Path(order["folder"]), path, gguf.GGMLQuantizationType[order["dtype"]])
        contender = Contender(path, order["threads"])
        print(json.dumps({"llama-cpp-python": llama_cpp.__version__}), flush=True)
        for line in sys.stdin:
            requests = json.loads(line)
            begin = time.perf_counter()
            found = contender.complete(requests)
            seconds = time.perf_counter() - begin
            print(json.dumps({"seconds": seconds, "ids": found}), flush=True)


if __name__ == "__main__":
    main()
