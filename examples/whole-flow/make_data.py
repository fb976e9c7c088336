"""Writes sums: chats.jsonl, pairs.jsonl and prompts.jsonl to learn from, questions.jsonl held back."""

import json
import random
from pathlib import Path

draw = random.Random(1)
sums = [(a, b) for a in range(1, 10) for b in range(1, 10)]
held_back = sums[3::8]
learned = [pair for pair in sums if pair not in held_back]


def question(a: int, b: int) -> str:
    return f"{a} + {b} = ?"


def short(a: int, b: int) -> str:
    return str(a + b)


def long(a: int, b: int) -> str:
    return f"{a} and {b} are {a + b}"


def chat(a: int, b: int) -> dict:
    answer = draw.choice((short, long))(a, b)
    turns = {"user": question(a, b), "assistant": answer}
    return {"messages": [{"role": role, "content": text} for role, text in turns.items()]}


files = {
    "chats": [chat(a, b) for _ in range(20) for a, b in draw.sample(learned, len(learned))],
    "pairs": [
        {"prompt": question(a, b), "chosen": short(a, b), "rejected": long(a, b)} for a, b in learned * 4
    ],
    "prompts": [{"prompt": question(a, b), "answer": a + b} for a, b in learned],
    "questions": [{"prompt": question(a, b), "answer": a + b} for a, b in held_back],
}
for name, records in files.items():
    Path(f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
