"""Records what TRL makes of conversations: run by hand, in an environment that has TRL.

    python -m tests.oracle.record_trl_sft base FOLDER    # with groundup: writes the model
    python tests/oracle/record_trl_sft.py record FOLDER  # with TRL: writes trl_sft.json

The model is that of ``tests.chats.write_base`` with the template chatml.
"""

import json
import sys
from pathlib import Path

RECORDED = Path(__file__).with_name("trl_sft.json")
MARKED = (
    "{% for message in messages %}{{ '<|im_start|>' ~ message['role'] ~ '\n' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] ~ '<|im_end|>' }}{% endgeneration %}{{ '\n' }}"
    "{% else %}{{ message['content'] ~ '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def write_model(folder: Path) -> None:
    """Writes the base model with the template, and the conversations."""
    from groundup.checkpoint.formats import open_lazy
    from groundup.checkpoint.huggingface.weights import write_huggingface
    from groundup.checkpoint.lazy import load
    from groundup.finetune.templates import with_template
    from tests.chats import TALKS, messages, write_base

    stored = with_template(open_lazy(write_base(folder / "base")), "chatml")
    write_huggingface(load(stored, device="cpu"), folder / "model")
    talks = [messages(talk) for talk in TALKS if "<|im_end|>" not in str(talk)]  # text to us, a token to them
    (folder / "talks.json").write_text(json.dumps(talks))


def record(folder: Path) -> None:
    """Computes masks, loss and gradients with TRL's SFTTrainer, all conversations in one batch."""
    import torch
    import transformers
    import trl
    from datasets import Dataset

    talks = json.loads((folder / "talks.json").read_text())
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "model")
    tokenizer.chat_template = MARKED
    tokenizer.pad_token = tokenizer.eos_token
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    trainer = trl.SFTTrainer(
        model=model,
        processing_class=tokenizer,
        train_dataset=Dataset.from_list([{"messages": talk} for talk in talks]),
        args=trl.SFTConfig(
            output_dir=str(folder / "out"),
            assistant_only_loss=True,
            per_device_train_batch_size=len(talks),
            use_cpu=True,
            report_to=[],
            max_length=None,
            gradient_checkpointing=False,
            bf16=False,
            save_strategy="no",
        ),
    )
    rows = [trainer.train_dataset[number] for number in range(len(talks))]
    batch = trainer.data_collator(rows)
    labels_of_batch = batch["labels"].tolist()
    loss = trainer.compute_loss(model.train(), batch, num_items_in_batch=None)
    loss.backward()
    RECORDED.write_text(
        json.dumps(
            {
                "trl": trl.__version__,
                "transformers": transformers.__version__,
                "talks": talks,
                "ids": [row["input_ids"] for row in rows],
                "learned": [
                    [target != -100 for target in labels][: len(row["input_ids"])]
                    for labels, row in zip(labels_of_batch, rows, strict=True)
                ],
                "loss": loss.item(),
                "gradient_norms": {
                    name: parameter.grad.norm().item() for name, parameter in model.named_parameters()
                },
            },
        )
        + "\n"
    )


if __name__ == "__main__":
    (write_model if sys.argv[1] == "base" else record)(Path(sys.argv[2]))
