#!/usr/bin/env bash
# A small Llama to try run.sh with: a SentencePiece tokenizer of Chinese text, and a model trained on it for a moment.
#
#   bash examples/w4-llama-continue/small_model.sh wudao.json small-llama
set -euo pipefail
data=$(realpath "${1:?JSON lines with the field content}") out=${2:?the Hugging Face folder to write}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

python - "$data" "$work" <<'PYTHON'
import json
import sys

import sentencepiece

with open(sys.argv[1], encoding="utf-8") as lines:
    texts = (part for line in lines for part in json.loads(line)["content"].splitlines())
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=texts, model_prefix=f"{sys.argv[2]}/tokenizer", model_type="bpe", vocab_size=4000,
        byte_fallback=True, character_coverage=0.99, max_sentence_length=100000, minloglevel=2,
        normalization_rule_name="identity",
    )  # fmt: skip
PYTHON
groundup tokens build "$data" --key content --prefix "$work/base" --tokenizer-model "$work/tokenizer.model"
groundup train run_dir="$work/run" data.path="$work/base_content_document" data.sequence_length=128 \
  model.kind=llama model.vocab_size=4000 model.max_sequence_length=128 model.num_layers=4 model.hidden_size=64 \
  model.num_heads=4 model.num_kv_heads=2 model.ffn_size=176 num_steps=20 optimizer.lr=3e-3 validation.interval=0
groundup convert "$work/run" "$out" --to hf
