#!/usr/bin/env bash
# Continued pretraining of a Llama: Hugging Face -> Megatron-LM's format -> training on 2 x 2 GPUs -> Hugging Face -> a service.
#
#   bash examples/w4-llama-continue/run.sh llama-2-7b-hf wudao.json out            # 4 GPUs
#   SMALL=1 bash examples/w4-llama-continue/run.sh stories260K wudao.json out      # four processes, minutes
#
# MODEL is a Hugging Face folder with a SentencePiece tokenizer.model; DATA has its text in the field "content".
set -euo pipefail
model=$(realpath "${1:?a Hugging Face folder}") data=$(realpath "${2:?JSON lines with the field content}")
out=${3:?a folder for the results}
mkdir -p "$out/code" && cd "$out"

port=${PORT:-8000}
tp=2 pp=2
flags=(--seq-length 4096 --micro-batch-size 1 --global-batch-size 128 --train-iters 5000 --lr 1e-5 --min-lr 1e-6
  --lr-decay-iters 5000 --lr-warmup-iters 100 --bf16 --recompute-granularity full --log-interval 10
  --save-interval 500 --eval-interval 500 --eval-iters 10)
if [ -n "${SMALL:-}" ]; then
  flags=(--seq-length 128 --micro-batch-size 1 --global-batch-size 8 --train-iters 10 --lr 1e-3 --min-lr 1e-4
    --lr-decay-iters 10 --lr-warmup-iters 2 --log-interval 5 --save-interval 5 --eval-interval 5 --eval-iters 1)
fi

# 1. Tokens by the model's own tokenizer: validation_content_document.bin and .idx.
groundup megatron preprocess_data --input "$data" --json-keys content --output-prefix validation --workers 64 \
  --tokenizer-type Llama2Tokenizer --tokenizer-model "$model/tokenizer.model" --append-eod

# 2. Hugging Face -> Megatron-LM: iter_0000001/mp_rank_00_000/model_optim_rng.pt and so on.
groundup convert "$model" megatron --to megatron --tp $tp --pp $pp --names core

# 3. Continued pretraining, as many processes as tp x pp.
groundup megatron pretrain_gpt --use-checkpoint-args --load megatron --finetune --save continued \
  --tensor-model-parallel-size $tp --pipeline-model-parallel-size $pp --sequence-parallel \
  --data-path validation_content_document --tokenizer-type Llama2Tokenizer \
  --tokenizer-model "$model/tokenizer.model" --split 949,50,1 "${flags[@]}"

# 4. Megatron-LM -> Hugging Face, in two shards, with the tokenizer of the model that it began as.
groundup convert continued huggingface --to hf --shards 2

# 5. A service: completions, streamed.
groundup serve huggingface --port "$port" & service=$!
trap 'kill $service 2>/dev/null || true' EXIT
until curl -sf "http://127.0.0.1:$port/health" >/dev/null; do kill -0 $service && sleep 0.5; done
curl -sN "http://127.0.0.1:$port/v1/completions" -H 'Content-Type: application/json' \
  -d '{"prompt": "中国的历史", "max_tokens": 8, "temperature": 0, "stream": true}'
kill $service && wait $service
