"""EleutherAI's harness through our model gives what it gives through its own."""

import json
from types import SimpleNamespace

import pytest

pytest.importorskip("lm_eval", reason="needs the extra [eval]")
pytest.importorskip("accelerate", reason="the harness's own model needs it")

from groundup.checkpoint.huggingface.weights import write_huggingface
from groundup.eval.lm_eval_adapter import GroundupLM
from groundup.eval.tasks import HellaSwag
from tests.task_files import write_task_file
from tests.tiny import tiny_model

PAIRS = [("the sea", " tide"), ("the sea", " eel"), ("", "tide"), ("a  ", "b"), ("q" * 90, " tide")]


@pytest.fixture(params=["gpt2", "llama-grouped-tied"])
def models(request, tmp_path, monkeypatch):
    from lm_eval.models.huggingface import HFLM

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    write_huggingface(tiny_model(request.param), tmp_path / "model")
    theirs = HFLM(pretrained=str(tmp_path / "model"), device="cpu", batch_size=2, dtype="float32")
    return GroundupLM.open(tmp_path / "model"), theirs


def requests(*arguments):
    return [SimpleNamespace(args=some, task_name="x") for some in arguments]


def test_scores_are_those_of_the_harness(models):
    ours, theirs = (model.loglikelihood(requests(*PAIRS)) for model in models)
    for one, other in zip(ours, theirs, strict=True):
        assert one[0] == pytest.approx(other[0], abs=1e-4)
        assert one[1] == other[1]
    texts = requests(("the tide and the eel " * 12,), ("the sea",))
    assert models[0].loglikelihood_rolling(texts) == pytest.approx(
        models[1].loglikelihood_rolling(texts), abs=1e-3
    )


def test_texts_are_those_of_the_harness(models):
    some = requests(("the sea", {"until": ["q"], "max_gen_toks": 20, "do_sample": False}))
    assert models[0].generate_until(some) == models[1].generate_until(some)


def test_a_task_of_local_files_gives_the_figures_of_our_own(models, tmp_path):
    import lm_eval
    from lm_eval.tasks import TaskManager

    path = write_task_file("hellaswag", tmp_path, count=10)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("\n".join(json.dumps({"query": x["ctx"], "choices": x["endings"], **x}) for x in lines))
    (tmp_path / "mine.yaml").write_text(
        f"""
task: mine
dataset_path: json
dataset_kwargs: {{data_files: {{validation: {path}}}}}
validation_split: validation
output_type: multiple_choice
doc_to_text: "{{{{query}}}}"
doc_to_target: label
doc_to_choice: choices
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
"""
    )
    tasks = TaskManager(include_path=str(tmp_path), include_defaults=False)
    found = lm_eval.simple_evaluate(model=models[0], tasks=["mine"], task_manager=tasks)["results"]["mine"]
    ours = HellaSwag(prompt="plain").measure(models[0].loaded, [path]).figures
    assert (found["acc,none"], found["acc_norm,none"]) == (ours["accuracy"], ours["accuracy_norm"])
