#!/usr/bin/env bash
# Continued pretraining of a Llama in Megatron-LM: there under its parallelism, and back in shards.
#
#   bash examples/llama-through-megatron.sh llama-2-7b-hf out 2 2 5GB      # TP, PP, size (or number) of shards
set -euo pipefail

reference=${1:?the Hugging Face folder} out=${2:?a folder for the results}
tp=${3:-1} pp=${4:-1} shards=${5:-1}

mkdir -p "$out"
groundup convert "$reference" "$out/megatron" --to megatron --tp "$tp" --pp "$pp" --names core
# ... Megatron-LM trains here: --load "$out/megatron" --finetune; its result is converted in place of this:
groundup convert "$out/megatron" "$out/hf" --to hf --shards "$shards" --tokenizer "$reference"
