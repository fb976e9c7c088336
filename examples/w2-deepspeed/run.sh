#!/usr/bin/env bash
# GPT-2 345M by the DeepSpeed examples' Megatron-LM: one GPU, two by data, two by model, ZeRO, and generation from any of them.
#
#   bash examples/w2-deepspeed/run.sh wikipedia.json gpt2 out            # two GPUs of 24 GB
#   SMALL=1 bash examples/w2-deepspeed/run.sh texts.jsonl gpt2 out       # two processes, minutes
#
# GPT2 is a folder with gpt2-vocab.json (or vocab.json) and gpt2-merges.txt (or merges.txt).
set -euo pipefail
here=$(dirname "$(realpath "$0")")
data=$(realpath "${1:?JSON lines with the field text}") gpt2=$(realpath "${2:?a folder with GPT-2s vocabulary}")
out=${3:?a folder for the results}
mkdir -p "$out" && cd "$out"
for name in vocab.json merges.txt; do
  cp "$gpt2/gpt2-$name" "gpt2-$name" 2>/dev/null || cp "$gpt2/$name" "gpt2-$name"
done

flags=(--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024
  --batch-size 8 --train-iters 320000 --lr 0.00015 --warmup .01 --log-interval 100 --save-interval 5000
  --eval-interval 1000 --eval-iters 10 --checkpoint-activations --fp16)
ds_config=$here/ds_zero2_config.json
if [ -n "${SMALL:-}" ]; then
  flags=(--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64
    --batch-size 4 --train-iters 8 --lr 0.001 --warmup .25 --log-interval 2 --save-interval 8
    --eval-interval 8 --eval-iters 1 --checkpoint-activations)
  python -c '
import json, sys
config = json.load(open(sys.argv[1]))
json.dump({**config, "fp16": {"enabled": False}, "train_micro_batch_size_per_gpu": 4}, sys.stdout)' "$ds_config" >ds_small.json
  ds_config=ds_small.json
fi
flags+=(--lr-decay-style cosine --weight-decay 1e-2 --clip-grad 1.0 --split 949,50,1 --distributed-backend nccl
  --lazy-loader --cache-dir cache --tokenizer-type GPT2BPETokenizer
  --vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt --data-path wikipedia_text_document)

# 1. Tokens.
groundup megatron preprocess_data --input "$data" --output-prefix wikipedia --append-eod --workers 8 \
  --tokenizer-type GPT2BPETokenizer --vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt

# 2. pretrain_gpt2.sh: one GPU.
groundup megatron pretrain_gpt "${flags[@]}" --save one --load one

# 3. pretrain_gpt2_distributed.sh: two GPUs, data parallel.
groundup megatron pretrain_gpt "${flags[@]}" --nproc-per-node 2 --save dp2 --load dp2

# 4. pretrain_gpt2_model_parallel.sh: two GPUs, each with half of every layer.
groundup megatron pretrain_gpt "${flags[@]}" --model-parallel-size 2 --save mp2 --load mp2

# 5. ds_zero2_pretrain_gpt2.sh: the same run under DeepSpeed's config. The flags become a config file first.
groundup megatron pretrain_gpt "${flags[@]}" --nproc-per-node 2 --save zero2 --print-config >zero2.yaml
groundup train zero2.yaml --deepspeed "$ds_config"

# 6. generate_text.sh, from a model-parallel checkpoint too. On a terminal it asks for one prompt after another; `stop` ends.
printf 'The history of' | groundup generate mp2 --max-new-tokens 8 --temperature 0
