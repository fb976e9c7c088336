"""Asks a service the questions of a file, and counts right answers: ``ask.py SERVER questions.jsonl``."""

import json
import re
import sys
import urllib.request
from pathlib import Path

server, file = sys.argv[1:]


def answer(prompt: str) -> str:
    """Returns what the model says, at temperature 0."""
    body = {"messages": [{"role": "user", "content": prompt}], "temperature": 0, "max_tokens": 32}
    request = urllib.request.Request(
        f"{server}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as response:
        return json.load(response)["choices"][0]["message"]["content"]


records = [json.loads(line) for line in Path(file).read_text().splitlines()]
try:
    answers = [answer(record["prompt"]) for record in records]
except OSError as error:
    sys.exit(f"not yet: {error}")
for record, said in zip(records, answers, strict=True):
    print(f"{record['prompt']} {said}")
right = sum(
    re.findall(r"\d+", said)[-1:] == [str(record["answer"])]
    for record, said in zip(records, answers, strict=True)
)
print(f"{right} of {len(records)} held-out sums are right")
