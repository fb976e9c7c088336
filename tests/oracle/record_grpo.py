"""Records TRL's GRPO loss and its gradients: ``python record_grpo.py MODEL grpo_trl.pt``.

Made with trl 1.16.0, transformers 5.23.0 and torch 2.13.0 on a CPU; MODEL is ``tiny_model("gpt2")`` as
``write_huggingface`` exports it. Not run by tests, which read what it wrote.
"""

import sys
import tempfile

import torch
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

PARAMETERS = (
    "transformer.ln_f.weight",
    "transformer.h.0.attn.c_attn.bias",
    "transformer.h.1.mlp.c_proj.weight",
)
CASES = [
    ("grpo", 0.04, True),
    ("dr_grpo", 0.1, False),
    ("dapo", 0.0, True),
    ("dapo", 0.2, True),
    ("dapo", 0.2, False),
]


def batch() -> dict[str, torch.Tensor]:
    """Six completions of three prompts of five ids, of different lengths, and ratios on both sides of 1."""
    generator = torch.Generator().manual_seed(7)
    lengths = torch.tensor([9, 4, 1, 7, 9, 2])
    mask = (torch.arange(9) < lengths.unsqueeze(1)).long()
    rewards = torch.tensor([1.0, 0.0, 0.25, 0.5, 3.0, -1.0])
    grouped = rewards.view(-1, 2)
    spread = grouped.std(1, keepdim=True) + 1e-4
    return {
        "prompt_ids": torch.randint(0, 299, (3, 5), generator=generator).repeat_interleave(2, 0),
        "prompt_mask": torch.ones(6, 5, dtype=torch.long),
        "completion_ids": torch.randint(0, 299, (6, 9), generator=generator),
        "completion_mask": mask,
        "rewards": rewards,
        "advantages": ((grouped - grouped.mean(1, keepdim=True)) / spread).flatten(),
        "num_items_in_batch": mask.sum(),
        "noise": torch.randn(2, 6, 9, generator=generator) * 0.3,
    }


def main(model: str, file: str) -> None:
    """Computes each case's loss in one piece and its gradients."""
    found = []
    for loss_type, beta, weighted_kl in CASES:
        with tempfile.TemporaryDirectory() as folder:
            arguments = GRPOConfig(
                output_dir=folder, use_cpu=True, bf16=False, report_to=[], loss_type=loss_type, beta=beta,
                temperature=0.7, max_completion_length=16, num_generations=2, per_device_train_batch_size=6,
                epsilon=0.2, epsilon_high=0.28, use_bias_correction_kl=weighted_kl,
            )  # fmt: skip
            trainer = GRPOTrainer(
                model=model,
                reward_funcs=lambda completions, **_: [0.0] * len(completions),
                args=arguments,
                train_dataset=Dataset.from_dict({"prompt": ["a"] * 6}),
                processing_class=AutoTokenizer.from_pretrained(model, padding_side="left"),
            )
        trainer.current_gradient_accumulation_steps = 1
        inputs = batch()
        noise = inputs.pop("noise")
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
        seen = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
        policy = trainer.model.train()
        with torch.no_grad():
            now = trainer._get_per_token_logps_and_entropies(policy, ids, seen, 9)[0]
        inputs["old_per_token_logps"] = now + noise[0]
        inputs["ref_per_token_logps"] = now + noise[1]
        loss = trainer._compute_loss(policy, inputs)
        loss.backward()
        metrics = {name: values[-1] for name, values in trainer._metrics["train"].items()}
        own = dict(policy.named_parameters())
        gradients = {name: own[name].grad.clone() for name in PARAMETERS}
        case = {
            "loss_type": loss_type,
            "beta": beta,
            "weighted_kl": weighted_kl,
            "loss": loss.item(),
            "log_probs": now,
        }
        found.append(case | {"metrics": metrics, "gradients": gradients})
    torch.save({"batch": batch(), "cases": found}, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
