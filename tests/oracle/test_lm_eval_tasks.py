"""Each task, item by item, against the harness's own definition of it, run on its own model."""

import json
from pathlib import Path

import pytest

pytest.importorskip("lm_eval", reason="needs the extra [eval]")
pytest.importorskip("accelerate", reason="the harness's own model needs it")

import lm_eval
from lm_eval.tasks import TaskManager

from groundup.checkpoint.huggingface.weights import write_huggingface
from groundup.eval.task_records import read_records
from groundup.eval.tasks import TASKS
from tests.task_files import write_task_file
from tests.tiny import tiny_model

DEFINITIONS = {
    "lambada": "lambada/lambada_openai.yaml",
    "hellaswag": "hellaswag/hellaswag.yaml",
    "storycloze": "storycloze/storycloze_2016.yaml",
    "piqa": "piqa/piqa.yaml",
    "arc_easy": "arc/arc_easy.yaml",
    "arc_challenge": "arc/arc_challenge.yaml",
    "openbookqa": "openbookqa/openbookqa.yaml",
    "boolq": "super_glue/boolq/default.yaml",
    "sciq": "sciq/sciq.yaml",
    "winogrande": "winogrande/default.yaml",
    "mmlu": "mmlu/default/mmlu_anatomy.yaml",
}
CASES = [(kind, shots) for kind in DEFINITIONS for shots in (0, 2) if (kind, shots) != ("lambada", 2)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    from lm_eval.models.huggingface import HFLM

    folder = tmp_path_factory.mktemp("model")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        write_huggingface(tiny_model("gpt2", max_sequence_length=512), folder)
        return HFLM(pretrained=str(folder), device="cpu", batch_size=3, dtype="float32")


def hub_form(kind, fields):
    """An item as on Hugging Face's hub, which is what the harness reads."""
    if kind == "arc_easy":
        inner = fields["question"]
        lists = {name: [choice[name] for choice in inner["choices"]] for name in ("text", "label")}
        return {"question": inner["stem"], "choices": lists, "answerKey": fields["answerKey"]}
    if kind == "boolq":
        return {**fields, "label": int(fields["answer"])}
    if kind == "mmlu":
        choices = [fields[letter] for letter in "ABCD"]
        return {"question": fields["question"], "choices": choices, "answer": "ABCD".index(fields["answer"])}
    if kind == "storycloze":
        names = {f"InputSentence{n}": f"input_sentence_{n}" for n in range(1, 5)}
        names |= {f"RandomFifthSentenceQuiz{n}": f"sentence_quiz{n}" for n in (1, 2)}
        renamed = {new: fields[old] for old, new in names.items()}
        return {**renamed, "answer_right_ending": int(fields["AnswerRightEnding"])}
    return dict(fields)


def harness_samples(model, kind, shots, path, folder):
    columns = getattr(TASKS[kind], "columns", ())
    items = [hub_form(kind, record.fields) for record in read_records(path, columns=columns)]
    theirs = folder / "theirs.jsonl"
    theirs.write_text("\n".join(map(json.dumps, items)))
    splits = dict.fromkeys(("train", "validation", "test", "dev"), str(theirs))
    (folder / "mine.yaml").write_text(
        f"""
include: {Path(lm_eval.__file__).parent / "tasks" / DEFINITIONS[kind]}
task: mine
tag: null
dataset_path: json
dataset_name: null
dataset_kwargs: {json.dumps({"data_files": splits})}
fewshot_split: train
fewshot_config: {{sampler: first_n}}
"""
    )
    tasks = TaskManager(include_path=str(folder), include_defaults=False)
    found = lm_eval.simple_evaluate(
        model=model,
        tasks=["mine"],
        task_manager=tasks,
        num_fewshot=shots,
        log_samples=True,
        bootstrap_iters=0,
    )
    return sorted(found["samples"]["mine"], key=lambda sample: sample["doc_id"])


@pytest.mark.parametrize(("kind", "shots"), CASES)
def test_items_score_as_in_the_harness(model, kind, shots, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    path = write_task_file(kind, tmp_path, count=12, seed=5)
    if kind == "hellaswag":  # two of its real items have an empty ending
        items = [json.loads(line) for line in path.read_text().splitlines()]
        items[1]["endings"][2] = items[2]["endings"][0] = ""
        path.write_text("\n".join(map(json.dumps, items)))
    expected = harness_samples(model, kind, shots, path, tmp_path)
    options = {"num_fewshot": shots, "fewshot_data": str(path)} if shots else {}
    if shots and kind == "mmlu":
        path = path.rename(tmp_path / "anatomy_test.csv")
        (tmp_path / "anatomy_dev.csv").write_bytes(path.read_bytes())
        options["fewshot_data"] = str(tmp_path)
    elif kind == "mmlu":
        path = path.rename(tmp_path / "anatomy_test.csv")
    results = TASKS[kind](**options).measure(tiny_model("gpt2", max_sequence_length=512), [path])
    assert len(results.items) == 12
    for item, sample in zip(results.items, expected, strict=True):
        answers = sample["filtered_resps"]
        answers = [answers] if isinstance(answers[0], float) else answers
        assert [score.logprob for score in item.scores] == pytest.approx(
            [float(logprob) for logprob, _ in answers], abs=1e-4
        )
        assert [str(score.is_greedy) for score in item.scores] == [str(greedy) for _, greedy in answers]
        assert item.values["accuracy"] == sample["acc"]
        if "acc_norm" in sample:
            assert item.values["accuracy_norm"] == sample["acc_norm"]
