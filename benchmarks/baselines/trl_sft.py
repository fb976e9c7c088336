"""TRL's SFTTrainer as a contender of ``finetune.py``: prints seconds and tokens of each step as JSON."""

import json
import sys
import time
from pathlib import Path

import torch
import transformers
import trl
from datasets import Dataset

MARKED = (
    "{% for message in messages %}{{ '<|im_start|>' ~ message['role'] ~ '\n' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] ~ '<|im_end|>' }}{% endgeneration %}{{ '\n' }}"
    "{% else %}{{ message['content'] ~ '<|im_end|>\n' }}{% endif %}{% endfor %}"
)


class Timed(trl.SFTTrainer):
    """Notes when each optimizer step ends, and how many tokens that are no padding it had."""

    def __init__(self, *arguments, **named) -> None:
        super().__init__(*arguments, **named)
        self.ends, self.tokens, self.now = [], [], 0
        self.add_callback(_Clock(self))

    def training_step(self, model, inputs, *arguments, **named):
        """Counts tokens: rows are padded, or have no attention mask and are laid behind each other."""
        mask = inputs.get("attention_mask")
        self.now += int(mask.sum() if mask is not None else inputs["input_ids"].numel())
        return super().training_step(model, inputs, *arguments, **named)


class _Clock(transformers.TrainerCallback):
    def __init__(self, trainer: Timed) -> None:
        self.trainer = trainer

    def on_step_end(self, *_, **__) -> None:
        self.trainer.ends.append(time.perf_counter())
        self.trainer.tokens.append(self.trainer.now)
        self.trainer.now = 0


def main() -> None:
    """Trains as the order says."""
    order = json.loads(sys.argv[1])
    torch.set_num_threads(order["threads"])
    folder = Path(order["folder"])
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "model")
    tokenizer.chat_template = MARKED
    tokenizer.pad_token = tokenizer.eos_token
    lines = (folder / "chats.jsonl").read_text().splitlines()
    trainer = Timed(
        model=transformers.AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32),
        processing_class=tokenizer,
        train_dataset=Dataset.from_list([json.loads(line) for line in lines]),
        args=trl.SFTConfig(
            output_dir=order["out"],
            assistant_only_loss=True,
            packing=order["packing"],
            max_length=order["length"],
            per_device_train_batch_size=order["micro"],
            gradient_accumulation_steps=order["batch"] // order["micro"],
            max_steps=order["steps"],
            learning_rate=2e-5,
            gradient_checkpointing=False,
            use_cpu=True,
            bf16=order["bf16"],
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        ),
    )
    trainer.train()
    seconds = [after - before for before, after in zip(trainer.ends, trainer.ends[1:], strict=False)]
    versions = {"trl": trl.__version__, "transformers": transformers.__version__, "torch": torch.__version__}
    print(json.dumps({"seconds": seconds, "tokens": trainer.tokens[1:], "versions": versions}))


if __name__ == "__main__":
    main()
