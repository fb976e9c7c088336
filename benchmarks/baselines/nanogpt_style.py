"""A plain PyTorch GPT-2 training loop in the style of nanoGPT; prints one JSON line.

As nanoGPT does on a CPU: fused query-key-value projection, PyTorch's attention, cross-entropy over full
logits, autocast, AdamW in two weight-decay groups and without the fused kernel (nanoGPT asks for it on CUDA
only), clipping at 1.0. Written anew from its documented design.

Shapes: B batch, T tokens, D model, N heads, H head dim, V vocabulary.
"""

import argparse
import contextlib
import time

import torch
from measurement import SHAPES, Shape, keep_freed_memory, print_result, random_tokens
from torch import Tensor, nn
from torch.nn import functional


class Block(nn.Module):
    """Pre-norm attention and feed-forward network."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.hidden_size
        self.num_heads = shape.num_heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.attention_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Returns [B, T, D]."""
        q_BNTH, k_BNTH, v_BNTH = (
            part_BTD.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for part_BTD in self.qkv(self.norm_1(x_BTD)).chunk(3, dim=-1)
        )
        y_BNTH = functional.scaled_dot_product_attention(q_BNTH, k_BNTH, v_BNTH, is_causal=True)
        x_BTD = x_BTD + self.attention_out(y_BNTH.transpose(1, 2).flatten(-2))
        return x_BTD + self.down(functional.gelu(self.up(self.norm_2(x_BTD)), approximate="tanh"))


class GPT(nn.Module):
    """GPT-2 with learned positions and a tied head."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.positions = nn.Embedding(shape.sequence_length, shape.hidden_size)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.num_layers))
        self.norm = nn.LayerNorm(shape.hidden_size)
        for weight in (parameter for parameter in self.parameters() if parameter.dim() == 2):
            nn.init.normal_(weight, std=0.02)

    def forward(self, ids_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Returns the mean loss."""
        x_BTD = self.tokens(ids_BT) + self.positions(torch.arange(ids_BT.shape[1], device=ids_BT.device))
        for block in self.blocks:
            x_BTD = block(x_BTD)
        logits_BTV = functional.linear(self.norm(x_BTD), self.tokens.weight)
        return functional.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten())


def main() -> None:
    """Trains for a few steps and prints the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SHAPES, default="124m")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="bf16")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--fused-adamw", action="store_true", help="not what nanoGPT does on a CPU")
    parser.add_argument("--mallopt", action="store_true", help="not what nanoGPT does")
    parser.add_argument("--warmup-steps", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    arguments = parser.parse_args()
    if arguments.mallopt:
        keep_freed_memory()
    torch.manual_seed(0)
    shape = SHAPES[arguments.size]
    model = GPT(shape)
    matrices = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    options = {"fused": True} if arguments.fused_adamw else {}
    optimizer = torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95), **options)
    compute_loss = torch.compile(model) if arguments.compile else model
    num_steps = arguments.warmup_steps + arguments.steps
    batches = random_tokens(shape, num_steps * shape.micro_batch_size, seed=0).split(shape.micro_batch_size)
    precision = (
        torch.autocast("cpu", torch.bfloat16) if arguments.precision == "bf16" else contextlib.nullcontext()
    )
    step_seconds = []
    for batch in batches:
        began = time.perf_counter()
        with precision:
            loss = compute_loss(batch[:, :-1].contiguous(), batch[:, 1:].contiguous())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step_seconds.append(time.perf_counter() - began)
    print_result(shape, step_seconds, warmup_steps=arguments.warmup_steps)


if __name__ == "__main__":
    main()
