"""EleutherAI's harness through our model gives what it gives through its own."""

import json
from types import SimpleNamespace

import pytest

pytest.importorskip("lm_eval", reason="needs the extra [eval]")
pytest.importorskip("accelerate", reason="the harness's own model needs it")

from groundup.checkpoint.huggingface.weights import write_huggingface
from groundup.core.errors import ConfigError
from groundup.eval.lm_eval_adapter import GroundupLM, cli_evaluate
from groundup.eval.tasks import HellaSwag, Lambada
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
    """By every name of the longest length, with several stop texts, one and none, and contexts too long."""
    contexts = ["the sea", "the tide and the eel " * 12, "a", "the net"]
    options = [
        {"until": ["q"], "max_gen_toks": 20, "do_sample": False},
        {"until": ["the", "\n\n", "e"], "max_new_tokens": 9},
        {"until": "a", "max_tokens": 12, "temperature": 0.0},
        {"until": [], "max_completion_tokens": 5, "max_gen_toks": 7},
    ]
    some = requests(*((context, option) for context in contexts for option in options))
    ours, theirs = (model.generate_until(some) for model in models)
    assert ours == theirs
    assert len(set(ours)) > 3


def test_sampled_texts_are_refused(models):
    for options in ({"do_sample": True}, {"temperature": 0.7}):
        with pytest.raises(ConfigError, match="the task samples its texts"):
            models[0].generate_until(requests(("the sea", {"until": ["q"], **options})))


def test_the_harness_opens_our_checkpoints_by_their_path(tmp_path, monkeypatch, capsys):
    """Its command line, as ``python -m groundup.eval.lm_eval_adapter`` runs it."""
    write_huggingface(tiny_model("llama"), tmp_path / "model")
    path = write_task_file("lambada", tmp_path, count=6)
    (tmp_path / "mine.yaml").write_text(
        f"""
task: mine
dataset_path: json
dataset_kwargs: {{data_files: {{test: {path}}}}}
test_split: test
output_type: loglikelihood
doc_to_text: "{{{{text.split(' ')[:-1]|join(' ')}}}}"
doc_to_target: "{{{{' '+text.split(' ')[-1]}}}}"
metric_list: [{{metric: perplexity}}, {{metric: acc}}]
"""
    )
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    words = ["--model", "groundup", "--model_args", f"path={tmp_path / 'model'}", "--include_path", tmp_path]
    monkeypatch.setattr("sys.argv", ["lm_eval", "run", *map(str, words), "--tasks", "mine"])
    cli_evaluate()
    printed = capsys.readouterr().out
    figures = Lambada().measure(tiny_model("llama"), [path]).figures
    for name in ("perplexity", "accuracy"):
        assert f"|{figures[name]:.4f}" in printed.replace(" ", "")
    with pytest.raises(ConfigError, match="the model groundup takes path, and was given pretrained"):
        GroundupLM.create_from_arg_string("pretrained=x")


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
