"""A plain PyTorch GPT-2 training loop on a GPU in the style of nanoGPT, or the Trainer; prints one JSON line.

As nanoGPT does on a GPU: bf16 autocast, torch.compile of the whole model, PyTorch's attention, cross-entropy
over full logits, fused AdamW, tf32 for what is in fp32, clipping at 1.0; no host waits for the device within
a step. As the Trainer ships, with bf16 asked for; ``--compile`` is its own option.
"""

import argparse
import tempfile
import time

import torch
import transformers
from hf_trainer import Samples, StepTimes
from measurement import GPU_SHAPES, Shape, print_result, random_tokens
from nanogpt_style import GPT


def nanogpt(shape: Shape, tokens: torch.Tensor, num_steps: int, *, compile_it: bool) -> list[float]:
    """Trains; returns the seconds of each step."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    with torch.device("cuda"):
        model = GPT(shape)
    matrices = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95), fused=True)
    compute_loss = torch.compile(model) if compile_it else model
    batches = iter(tokens.pin_memory().split(shape.micro_batch_size))
    seconds = []
    for _ in range(num_steps):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(shape.micro_batches):
            batch = next(batches).to("cuda", non_blocking=True)
            with torch.autocast("cuda", torch.bfloat16):
                loss = compute_loss(batch[:, :-1].contiguous(), batch[:, 1:].contiguous())
            (loss / shape.micro_batches).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return seconds


def trainer(
    size: str, shape: Shape, tokens: torch.Tensor, num_steps: int, *, compile_it: bool
) -> list[float]:
    """Trains; returns the seconds of each step."""
    if size.startswith("llama"):
        config = transformers.LlamaConfig(
            vocab_size=shape.vocab_size,
            hidden_size=shape.hidden_size,
            intermediate_size=8192,
            num_hidden_layers=shape.num_layers,
            num_attention_heads=shape.num_heads,
            num_key_value_heads=8,
            max_position_embeddings=shape.sequence_length,
            tie_word_embeddings=True,
        )
    else:
        config = transformers.GPT2Config(
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
    with torch.device("cuda"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    times = StepTimes()
    with tempfile.TemporaryDirectory() as output_dir:
        settings = transformers.TrainingArguments(
            output_dir=output_dir,
            bf16=True,
            torch_compile=compile_it,
            per_device_train_batch_size=shape.micro_batch_size,
            gradient_accumulation_steps=shape.micro_batches,
            max_steps=num_steps,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            logging_steps=1,
        )
        samples = Samples(tokens[:, :-1])
        transformers.Trainer(model=model, args=settings, train_dataset=samples, callbacks=[times]).train()
    return times.seconds


def main() -> None:
    """Trains for a few steps and prints the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=GPU_SHAPES, required=True)
    parser.add_argument("--loop", choices=("nanogpt", "trainer"), required=True)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--warmup-steps", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    shape = GPU_SHAPES[arguments.size]
    num_steps = arguments.warmup_steps + arguments.steps
    tokens = random_tokens(shape, num_steps * shape.micro_batch_size * shape.micro_batches, seed=0)
    if arguments.loop == "nanogpt":
        seconds = nanogpt(shape, tokens, num_steps, compile_it=arguments.compile)
    else:
        seconds = trainer(arguments.size, shape, tokens, num_steps, compile_it=arguments.compile)
    print_result(shape, seconds, warmup_steps=arguments.warmup_steps)


if __name__ == "__main__":
    main()
