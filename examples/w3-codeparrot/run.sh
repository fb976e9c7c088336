#!/usr/bin/env bash
# CodeParrot 110M with Megatron-LM's commands: a model of Python code, from JSON lines to pipeline("text-generation").
#
#   bash examples/w3-codeparrot/run.sh codeparrot_data.json out            # 8 GPUs
#   SMALL=1 bash examples/w3-codeparrot/run.sh codeparrot_data.json out    # two processes, a minute or two
#
# The data has one file of code a line, in the field "content":
#   load_dataset("codeparrot/codeparrot-clean-train", split="train").to_json("codeparrot_data.json", lines=True)
set -euo pipefail
data=$(realpath "${1:?JSON lines with the field content}") out=${2:?a folder for the results}
mkdir -p "$out" && cd "$out"

ids=32768 ranks=8
shape=(--num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 1024 --max-position-embeddings 1024)
batch=(--micro-batch-size 12 --global-batch-size 192)
length=(--lr 0.0005 --train-iters 150000 --lr-decay-iters 150000 --lr-decay-style cosine --lr-warmup-iters 2000)
report=(--log-interval 10 --save-interval 2000 --eval-interval 200 --eval-iters 10)
precision=(--fp16)
if [ -n "${SMALL:-}" ]; then
  ids=512 ranks=2
  shape=(--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 128 --max-position-embeddings 128)
  batch=(--micro-batch-size 4 --global-batch-size 16)
  length=(--lr 0.005 --train-iters 60 --lr-decay-iters 60 --lr-decay-style cosine --lr-warmup-iters 10)
  report=(--log-interval 10 --save-interval 30 --eval-interval 30 --eval-iters 2)
  precision=()
fi

# 1. A tokenizer of the data's own.
groundup tokenizer train "$data" --key content --vocab-size $ids --out tokenizer

# 2. Tokens: codeparrot_content_document.bin and .idx.
groundup megatron preprocess_data --input "$data" --output-prefix codeparrot --json-keys content --dataset-impl mmap \
  --tokenizer-type GPT2BPETokenizer --vocab-file tokenizer/vocab.json --merge-file tokenizer/merges.txt \
  --workers 32 --chunk-size 25 --append-eod

# 3. Training: the tutorial's flags, one process for each GPU.
groundup megatron pretrain_gpt --nproc-per-node $ranks "${shape[@]}" "${batch[@]}" "${length[@]}" "${report[@]}" \
  --weight-decay .1 --adam-beta2 .999 "${precision[@]}" --tensorboard-dir tensorboard \
  --vocab-file tokenizer/vocab.json --merge-file tokenizer/merges.txt \
  --save codeparrot-small --load codeparrot-small --data-path codeparrot_content_document

# 4. The Hugging Face folder, with the run's own tokenizer.
groundup convert codeparrot-small huggingface --to hf

# 5. As its readers use it.
python - <<'PYTHON'
from transformers import pipeline

complete = pipeline("text-generation", model="huggingface")
print(complete("def hello_world():", max_new_tokens=16, do_sample=False)[0]["generated_text"])
PYTHON
