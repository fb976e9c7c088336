"""Records what TRL computes of preference pairs: ids, losses, metrics and gradients; see ``test_dpo.py``.

    python tests/oracle/record_dpo.py tests/oracle/dpo

in an environment with torch, transformers and TRL (it was trl 1.16.0, transformers 5.23.0, torch 2.13.0 on
a CPU). The folder gets a Llama of 5,000 weights, a second one as the reference, pairs and results.
"""

import json
import sys
import tempfile
from pathlib import Path

import torch
import transformers
import trl
from datasets import Dataset
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

BETA = 0.3
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
VARIANTS = {"sigmoid": {}, "sigmoid_norm": {}, "ipo": {}, "hinge": {}, "robust": {"label_smoothing": 0.2}}


def turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


PAIRS = [
    {
        "prompt": [turn("user", "Say hello.")],
        "chosen": [turn("assistant", "Hello!")],
        "rejected": [turn("assistant", "No, I will not.")],
    },
    {
        "prompt": [turn("system", "Be brief."), turn("user", "2 + 2?")],
        "chosen": [turn("assistant", "4")],
        "rejected": [turn("assistant", "Five, or perhaps six")],
    },
    {
        "prompt": [turn("user", "Hi"), turn("assistant", "Yes?"), turn("user", "Where is\nthe café?")],
        "chosen": [turn("assistant", "Behind the church.")],
        "rejected": [turn("assistant", "I do not know.")],
    },
]


def tokenizer() -> PreTrainedTokenizerFast:
    """One id for each byte, and three special tokens."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    made = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    made.chat_template = TEMPLATE
    return made


def model(seed: int, size: int) -> LlamaForCausalLM:
    """Returns a model with large weights, so that a slip shows."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=size, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=128, tie_word_embeddings=True, initializer_range=0.3,
        eos_token_id=size - 1, bos_token_id=None,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def main(folder: Path) -> None:
    """Writes the folder."""
    words = tokenizer()
    model(0, len(words)).save_pretrained(folder / "policy")
    model(1, len(words)).save_pretrained(folder / "reference")
    for name in ("policy", "reference"):
        words.save_pretrained(folder / name)
    results, gradients = {}, {}
    for name, more in VARIANTS.items():
        with tempfile.TemporaryDirectory() as output:
            settings = trl.DPOConfig(
                output_dir=output, per_device_train_batch_size=len(PAIRS), beta=BETA, loss_type=[name],
                report_to=[], use_cpu=True, gradient_checkpointing=False, bf16=False, seed=0, **more,
            )  # fmt: skip
            trainer = trl.DPOTrainer(
                LlamaForCausalLM.from_pretrained(folder / "policy"),
                LlamaForCausalLM.from_pretrained(folder / "reference"),
                args=settings,
                train_dataset=Dataset.from_list(PAIRS),
                processing_class=words,
            )
        tokenized = [{key: row[key] for key in ("prompt_ids", "chosen_ids", "rejected_ids")}
                     for row in trainer.train_dataset]  # fmt: skip
        batch = trainer.data_collator([dict(row) for row in trainer.train_dataset])
        trainer.model.eval()  # there is no dropout
        loss = trainer.compute_loss(trainer.model, batch)
        loss.backward()
        results[name] = {"loss": loss.item(), **{
            key: values[-1] for key, values in trainer._metrics["eval"].items() if "/" in key
        }}  # fmt: skip
        gradients |= {f"{name}/{key}": value.grad for key, value in trainer.model.named_parameters()}
    versions = {"trl": trl.__version__, "transformers": transformers.__version__, "torch": torch.__version__}
    found = {"versions": versions, "beta": BETA, "pairs": PAIRS, "ids": tokenized, "results": results}
    (folder / "results.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    save_file(gradients, folder / "gradients.safetensors")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
