#!/usr/bin/env bash
# GPT-2 345M with Megatron-LM's commands: from lists of URLs to a text-generation service.
#
#   bash examples/w1-gpt2-345m/run.sh urls gpt2 lambada_test.jsonl out                                  # four GPUs
#   SMALL=1 MIRROR=localhost:8080 bash examples/w1-gpt2-345m/run.sh urls gpt2 lambada_test.jsonl out    # two processes, minutes
#
# URLS is a folder of lists of URLs; GPT2 has gpt2-vocab.json (or vocab.json) and gpt2-merges.txt (or merges.txt). LAYOUT is the
# parallelism of training: "" (one GPU), dp4, tp4, pp4 or tp2-pp2, as the tutorial tries them. MIRROR is asked for all pages instead.
set -euo pipefail
urls=$(realpath "${1:?a folder of lists of URLs}") gpt2=$(realpath "${2:?a folder with GPT-2s vocabulary}")
lambada=$(realpath "${3:?the file of LAMBADA}") out=${4:?a folder for the results}
mkdir -p "$out" && cd "$out"
for name in vocab.json merges.txt; do
  cp "$gpt2/gpt2-$name" "gpt2-$name" 2>/dev/null || cp "$gpt2/$name" "gpt2-$name"
done

port=${PORT:-5000}
model=(--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024)
train=(--micro-batch-size 1 --global-batch-size 16 --lr 0.00015 --train-iters 5000 --lr-decay-iters 320000
  --lr-decay-style cosine --min-lr 1.0e-5 --weight-decay 1e-2 --lr-warmup-fraction .01 --clip-grad 1.0 --fp16
  --log-interval 100 --save-interval 10000 --eval-interval 1000 --eval-iters 10)
layout=${LAYOUT-tp2-pp2}
if [ -n "${SMALL:-}" ]; then
  model=(--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 128 --max-position-embeddings 128)
  train=(--micro-batch-size 1 --global-batch-size 4 --lr 0.0015 --train-iters 10 --lr-decay-iters 20
    --lr-decay-style cosine --min-lr 1.0e-5 --weight-decay 1e-2 --lr-warmup-fraction .1 --clip-grad 1.0
    --log-interval 5 --save-interval 10 --eval-interval 10 --eval-iters 1)
  layout=${LAYOUT-tp2}
fi
tokenizer=(--tokenizer-type GPT2BPETokenizer --vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt)

# 1. The corpus: URLs, pages, one document a page, English of 128 tokens or more, no duplicates, nothing of LAMBADA, shuffled.
groundup megatron blacklist_urls "$urls" clean_urls.txt
groundup megatron download clean_urls.txt --output_dir scraped ${MIRROR:+--mirror "$MIRROR" --host-delay 0}
groundup megatron merge_data --data_path scraped/data --output_file merged.json
groundup megatron cleanup_dataset merged.json cleaned.json --vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt
groundup megatron find_duplicates --inputs cleaned.json url --output duplicates.json
groundup megatron group_duplicate_url duplicates.json groups.json 0.7
groundup megatron remove_group_duplicates groups.json cleaned.json unique.json
groundup megatron filter_ngrams --tasks lambada --lambada-path "$lambada" --dedup-dataset unique.json text \
  --output filtered.json
shuf filtered.json -o train_data.json

# 2. Tokens: my-gpt2_text_document.bin and .idx.
groundup megatron preprocess_data --input train_data.json --output-prefix my-gpt2 --dataset-impl mmap \
  "${tokenizer[@]}" --append-eod --workers 20 --chunk-size 25

# 3. Training. Every layout trains the same model, and each goes on from what another has saved.
parallel=()
case $layout in
  "") ;;
  dp4) parallel=(--nproc-per-node 4) ;;
  tp2) parallel=(--tensor-model-parallel-size 2) ;;
  tp4) parallel=(--tensor-model-parallel-size 4) ;;
  pp4) parallel=(--pipeline-model-parallel-size 4) ;;
  tp2-pp2) parallel=(--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2) ;;
  *) echo "LAYOUT is one of dp4, tp4, pp4, tp2-pp2, not $layout" >&2 && exit 1 ;;
esac
groundup megatron pretrain_gpt "${model[@]}" "${train[@]}" "${parallel[@]}" --split 700,200,100 \
  --data-path my-gpt2_text_document --vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt \
  --save checkpoints --load checkpoints

# 4. One checkpoint out of the ranks'. (Evaluation and the service take either.)
groundup megatron checkpoint_util --model-type GPT --load-dir checkpoints --save-dir merged \
  --target-tensor-parallel-size 1 --target-pipeline-parallel-size 1

# 5. LAMBADA, with predictions beside targets.
groundup megatron eval_lambada --task LAMBADA --valid-data "$lambada" --strict-lambada --load merged "${tokenizer[@]}" \
  "${model[@]}"

# 6. The service, asked by curl and by the client.
groundup megatron run_text_generation_server --load merged "${tokenizer[@]}" "${model[@]}" --port "$port" & service=$!
trap 'kill $service 2>/dev/null || true' EXIT
until curl -sf "http://localhost:$port/health" >/dev/null; do kill -0 $service && sleep 0.5; done
curl -s "http://localhost:$port/api" -X PUT -H 'Content-Type: application/json; charset=UTF-8' \
  -d '{"prompts":["Hello world"], "tokens_to_generate":1}'
printf 'Hello world\n1\nstop\n' | groundup megatron text_generation_cli "localhost:$port"
kill $service && wait $service
