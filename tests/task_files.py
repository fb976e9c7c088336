"""Items of every evaluation task in its official format, drawn by a seed, with labels that chance decides."""

import csv
import io
from pathlib import Path
from random import Random
from typing import Any

import orjson

_WORDS = ["tide", "sea", "ebb", "eel", "boat", "net", "sand", "wind", "gull", "rope"]


def _some(random: Random, count: int = 3) -> str:
    return " ".join(random.choices(_WORDS, k=count))


def item(kind: str, random: Random) -> dict[str, Any]:
    """One item."""
    label, words = random.randrange(4), [_some(random) for _ in range(6)]
    choices = {"text": words[2:6], "label": ["A", "B", "C", "D"]}
    official = [{"text": text, "label": name} for text, name in zip(words[2:6], "ABCD", strict=True)]
    story = {f"InputSentence{n}": _some(random) for n in range(1, 5)}
    return {
        "perplexity": {"text": words[0]},
        "wikitext": {"text": words[0]},
        "lambada": {"text": " ".join(words)},
        "hellaswag": {
            "activity_label": "Fishing",
            "ctx_a": f"{words[0]}.",
            "ctx_b": words[1],
            "ctx": f"{words[0]}. {words[1]}",
            "endings": words[2:6],
            "label": label,
        },
        "storycloze": {
            "InputStoryid": "x",
            **story,
            "RandomFifthSentenceQuiz1": words[0],
            "RandomFifthSentenceQuiz2": words[1],
            "AnswerRightEnding": label % 2 + 1,
        },
        "piqa": {"goal": words[0], "sol1": words[1], "sol2": words[2], "label": label % 2},
        "arc_easy": {"question": {"stem": words[0], "choices": official}, "answerKey": "ABCD"[label]},
        "arc_challenge": {"question": words[0], "choices": choices, "answerKey": "ABCD"[label]},
        "openbookqa": {"question_stem": words[0], "choices": choices, "answerKey": "ABCD"[label]},
        "boolq": {"passage": words[0], "question": words[1], "title": "x", "answer": label % 2 == 1},
        "sciq": {
            "support": words[0],
            "question": words[1],
            "distractor1": words[2],
            "distractor2": words[3],
            "distractor3": words[4],
            "correct_answer": words[5],
        },
        "winogrande": {
            "sentence": f"{words[0]} _ {words[1]}",
            "option1": "eel",
            "option2": "net",
            "answer": str(label % 2 + 1),
        },
        "mmlu": {**dict(zip(["q", *"ABCD"], words, strict=False)), "answer": "ABCD"[label]},
    }[kind]


def write_task_file(kind: str, folder: Path, *, count: int = 3, seed: int = 0) -> Path:
    """Writes a file of a task as its authors do, and returns its path."""
    random = Random(seed)
    items = [item(kind, random) for _ in range(count)]
    if kind in ("storycloze", "mmlu"):
        stream = io.StringIO()
        writer = csv.DictWriter(stream, items[0])
        if kind == "storycloze":
            writer.writeheader()
        writer.writerows(items)
        path = folder / ("cloze_test.csv" if kind == "storycloze" else "boating_test.csv")
        path.write_text(stream.getvalue())
        return path
    path = folder / {"wikitext": "wiki.test.tokens", "perplexity": "texts.jsonl"}.get(
        kind, f"{kind}_test.jsonl"
    )
    if kind == "wikitext":
        path.write_text(" \n ".join(one["text"] for one in items))
    else:
        path.write_bytes(b"\n".join(map(orjson.dumps, items)))
    return path
