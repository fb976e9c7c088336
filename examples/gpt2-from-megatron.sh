#!/usr/bin/env bash
# A GPT-2 out of Megatron-LM: one rank's checkpoint of many, and a Hugging Face folder that evaluations take.
#
#   bash examples/gpt2-from-megatron.sh checkpoints/gpt2_345m out          # its tokenizer lies beside it
#   bash examples/gpt2-from-megatron.sh checkpoints/gpt2_345m out gpt2     # or is named
set -euo pipefail

checkpoints=${1:?the folder of checkpoints} out=${2:?a folder for the results}
tokenizer=("${@:3:1}")
tokenizer=("${tokenizer[@]/#/--tokenizer=}")

mkdir -p "$out"
groundup convert "$checkpoints" "$out/merged" --to megatron --tp 1 --pp 1 "${tokenizer[@]}"
groundup convert "$out/merged" "$out/hf" --to hf
groundup generate "$out/hf" --prompt "The harbour" --max-new-tokens 16 --temperature 0
