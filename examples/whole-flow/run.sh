#!/usr/bin/env bash
# The whole flow of a language model: pretraining, conversations (SFT), preferences (DPO), rewards (GRPO), a served chat.
#
#   bash examples/whole-flow/run.sh out            # under ten minutes on two CPU cores
#   SMALL=1 bash examples/whole-flow/run.sh out    # a minute or two, and a model that says nothing yet
#
# Nothing is downloaded: the base model learns from Python's standard library, the rest from sums that make_data.py writes.
set -euo pipefail
here=$(realpath "$(dirname "$0")") out=${1:?a folder for the results} port=${PORT:-8000}
mkdir -p "$out" && cd "$out"

base=() sft=500 dpo=30 grpo=40 completions=128
if [ -n "${SMALL:-}" ]; then
  base=(num_steps=20 model.num_layers=1 model.hidden_size=64 model.ffn_size=128) sft=6 dpo=2 grpo=2 completions=16
fi
run=(device=cpu checkpoint.keep_last=1 log.interval=10)

# 1. A base model: corpus, tokenizer, tokens, training.
groundup quickstart --out base "${base[@]}"

# 2. Sums of two digits as conversations, pairs of answers and prompts; one in eight is held back.
python "$here/make_data.py"

# 3. Instructions: the assistant's turns are learned. The plain template adds three tokens, one for each role.
# Two fixed questions are answered on the way: see sft/report.html.
groundup finetune base/run --data chats.jsonl run_dir=sft stage.template=plain num_steps=$sft \
  global_batch_size=8 micro_batch_size=8 optimizer.lr=1e-3 validation.interval=0 \
  sample.interval=100 sample.temperature=0 sample.prompts='["23 + 58 = ?", "71 + 64 = ?"]' "${run[@]}"

# 4. Preferences: the sum that is worked out instead of the bare result.
groundup finetune sft --data pairs.jsonl run_dir=dpo stage.kind=dpo num_steps=$dpo \
  global_batch_size=8 optimizer.lr=2e-5 validation.interval=0 "${run[@]}"

# 5. Rewards: the model's own answers, of which right ones pay, and true steps on the way.
groundup finetune dpo --data prompts.jsonl run_dir=grpo stage.kind=grpo \
  stage.reward="[number, $here/rewards.py:shows_work]" stage.reward_weights='[1, 0.5]' stage.max_new_tokens=32 \
  num_steps=$grpo global_batch_size=$completions optimizer.lr=3e-5 "${run[@]}"

# 6. The service: evaluated on the sums that were held back, and open for a chat at http://localhost:8000.
groundup serve grpo --port "$port" & service=$!
trap 'kill $service 2>/dev/null || true' EXIT
until python "$here/ask.py" "http://localhost:$port" questions.jsonl; do kill -0 $service && sleep 1; done
if [ -n "${CHAT:-}" ]; then
  echo "Chat at http://localhost:$port; Ctrl-C ends it."
  wait $service
fi
kill $service && wait $service
