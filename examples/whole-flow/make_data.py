"""Writes sums: chats.jsonl, pairs.jsonl and prompts.jsonl to learn from, questions.jsonl held back."""

import json
import random
from pathlib import Path

draw = random.Random(1)
sums = [(a, b) for a in range(10, 100) for b in range(10, 100)]
draw.shuffle(sums)
num_held_back = len(sums) // 8
held_back, learned = sums[:num_held_back], sums[num_held_back:]


def question(a: int, b: int) -> str:
    return f"{a} + {b} = ?"


def guessed(a: int, b: int) -> str:
    """The result alone, which a small model can only know by heart."""
    return str(a + b)


def worked(a: int, b: int) -> str:
    """Digit by digit with what is carried, and then the result: the same few steps for every sum."""
    units = a % 10 + b % 10
    tens = units // 10 + a // 10 + b // 10
    return f"{a % 10} + {b % 10} = {units}, {units // 10} + {a // 10} + {b // 10} = {tens}: {a + b}"


def chat(a: int, b: int) -> dict:
    answer = draw.choice((guessed, worked, worked))(a, b)
    turns = {"user": question(a, b), "assistant": answer}
    return {"messages": [{"role": role, "content": text} for role, text in turns.items()]}


files = {
    "chats": [chat(a, b) for a, b in learned],
    "pairs": [
        {"prompt": question(a, b), "chosen": worked(a, b), "rejected": guessed(a, b)}
        for a, b in learned[:1000]
    ],
    "prompts": [{"prompt": question(a, b), "answer": a + b} for a, b in learned],
    "questions": [{"prompt": question(a, b), "answer": a + b} for a, b in held_back[:50]],
}
for name, records in files.items():
    Path(f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
