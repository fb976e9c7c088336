#!/usr/bin/env bash
# GPT-2 124M on FineWeb-Edu 10B: the data path, the recipe and the evaluations of build-nanogpt.
#
#   bash examples/w5-fineweb-124m/run.sh edu_fineweb10B evaluation out            # 8 GPUs
#   SMALL=1 bash examples/w5-fineweb-124m/run.sh texts.jsonl evaluation out       # two processes, minutes
#
# DATA is the folder of 100 shards that fineweb.py writes (edufineweb_val_000000.npy, edufineweb_train_000001.npy, ...), which is
# trained on as it is; or JSON lines, Parquet or a folder of them, which are tokenized first. EVALUATION is a folder with HellaSwag's,
# LAMBADA's and StoryCloze's files (`groundup eval fetch`), as far as they are there.
set -euo pipefail
data=$(realpath "${1:?a folder of shards, or texts}") evaluation=$(realpath "${2:?a folder of evaluation files}")
out=${3:?a folder for the results}
mkdir -p "$out" && cd "$out"

tokenizer=${TOKENIZER:-gpt2}
tasks=
for task in hellaswag lambada storycloze; do
  if compgen -G "$evaluation/*$task*" >/dev/null; then tasks+="${tasks:+,}$task"; fi
done
settings=(layout.dp=8 validation.interval=250 sample.interval=250 "sample.prompt=Hello, I'm a language model,"
  eval.every=250 eval.tasks=hellaswag "eval.data=$evaluation" checkpoint.interval=5000)
limit=()
if [ -n "${SMALL:-}" ]; then
  settings=(layout.dp=2 model.num_layers=2 model.hidden_size=64 model.num_heads=4 model.ffn_size=256
    model.max_sequence_length=128 data.sequence_length=128 micro_batch_size=4 global_batch_size=16
    num_steps=40 warmup.steps=8 log.interval=10 validation.interval=20 validation.num_batches=4
    sample.interval=20 sample.max_new_tokens=8 "sample.prompt=Hello, I'm a language model," checkpoint.interval=20
    eval.every=20 eval.tasks=hellaswag "eval.data=$evaluation" eval.options=hellaswag.limit=8)
  limit=(hellaswag.limit=16 lambada.limit=16)
fi

# 1. Tokens. The shards of fineweb.py are taken as they are; texts become .bin and .idx on all cores.
if compgen -G "$data/*_train_*.npy" >/dev/null; then
  tokens=$data
else
  groundup tokens build "$data" --prefix fineweb --tokenizer "$tokenizer"
  tokens=fineweb_text_document
fi
groundup tokens inspect "$tokens" --tokenizer "$tokenizer"

# 2. Training: 19,073 steps of 524,288 tokens; the loss begins at ln(50257) = 10.82. Continues after any stop.
groundup train preset=gpt2-124m run_dir=run "data.path=$tokens" "data.tokenizer=$tokenizer" \
  "${settings[@]}"

# 3. Scores by the published protocols, beside GPT-2's and GPT-3 Small's.
groundup eval run --tasks "$tasks" --data "$evaluation" "${limit[@]}"

# 4. The Hugging Face folder.
groundup convert run huggingface --to hf
groundup generate huggingface --prompt "Hello, I'm a language model," --max-new-tokens 16 --temperature 0
