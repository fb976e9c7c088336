"""Hugging Face Trainer with GPT2LMHeadModel, as it ships, on random tokens; prints one JSON line.

Dropout is set to 0, as for the other contenders, which makes it faster than its own default of 0.1.
"""

import argparse
import tempfile
import time

import torch
from measurement import SHAPES, keep_freed_memory, print_result, random_tokens
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments


class Samples(Dataset):
    """Rows of tokens as the Trainer wants them; the model shifts the labels itself."""

    def __init__(self, tokens: torch.Tensor) -> None:
        self.tokens = tokens

    def __len__(self) -> int:
        """The number of samples."""
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        """One sample."""
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


class StepTimes(TrainerCallback):
    """Seconds of each step, from the end of the one before it."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_train_begin(self, *arguments: object, **options: object) -> None:
        """Starts the clock."""
        self.before = time.perf_counter()

    def on_step_end(self, *arguments: object, **options: object) -> None:
        """Notes the time of the step."""
        now = time.perf_counter()
        self.seconds.append(now - self.before)
        self.before = now


def main() -> None:
    """Trains for a few steps and prints the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SHAPES, default="124m")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="bf16")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--fused-adamw", action="store_true", help="the default of transformers 5 anyway")
    parser.add_argument("--mallopt", action="store_true", help="not what the Trainer does")
    parser.add_argument("--warmup-steps", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    arguments = parser.parse_args()
    if arguments.mallopt:
        keep_freed_memory()
    shape = SHAPES[arguments.size]
    num_steps = arguments.warmup_steps + arguments.steps
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=shape.vocab_size,
            n_positions=shape.sequence_length,
            n_embd=shape.hidden_size,
            n_layer=shape.num_layers,
            n_head=shape.num_heads,
            bos_token_id=0,
            eos_token_id=0,
            attn_pdrop=0.0,
            embd_pdrop=0.0,
            resid_pdrop=0.0,
        )
    )
    times = StepTimes()
    with tempfile.TemporaryDirectory() as output_dir:
        settings = TrainingArguments(
            output_dir=output_dir,
            use_cpu=True,
            bf16=arguments.precision == "bf16",
            torch_compile=arguments.compile,
            per_device_train_batch_size=shape.micro_batch_size,
            max_steps=num_steps,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=False,
            **({"optim": "adamw_torch_fused"} if arguments.fused_adamw else {}),
        )
        tokens = random_tokens(shape, num_steps * shape.micro_batch_size, seed=0)[:, :-1]
        Trainer(model=model, args=settings, train_dataset=Samples(tokens), callbacks=[times]).train()
    print_result(shape, times.seconds, warmup_steps=arguments.warmup_steps)


if __name__ == "__main__":
    main()
