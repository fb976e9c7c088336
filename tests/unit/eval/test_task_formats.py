"""Items in each published form become the same prompts as in EleutherAI's harness; bad ones are named."""

import json
import re

import pytest

from groundup.core.errors import ConfigError, DataError
from groundup.eval.detokenize import detokenize_wikitext
from groundup.eval.tasks import (
    ArcEasy,
    BoolQ,
    HellaSwag,
    Lambada,
    Mmlu,
    OpenBookQa,
    Piqa,
    SciQ,
    StoryCloze,
    WikiText,
    WinoGrande,
    configured_tasks,
)
from groundup.eval.text_requests import rolling_requests, text_request
from tests.task_files import write_task_file
from tests.tiny import tiny_model

STEM = [{"text": "iron", "label": "A"}, {"text": "wood", "label": "B"}]
LISTS = {"text": ["iron", "wood"], "label": ["A", "B"]}


def only(task, path):
    (question,) = task.questions(path)
    return question


@pytest.mark.parametrize(
    ("task", "item", "context", "continuations", "label"),
    [
        (
            HellaSwag(),
            {
                "activity_label": "Roof",
                "ctx_a": "A man sits. [header] Up",
                "ctx_b": "he",
                "ctx": "",
                "endings": ["falls [title] down", " sings"],
                "label": "1",
            },
            "Roof: A man sits. Up He",
            [" falls. down", " sings"],
            1,
        ),
        (HellaSwag(), {"ctx": "A: b [step] c", "endings": ["d", "e"], "label": 0}, "A: b c", [" d", " e"], 0),
        (
            HellaSwag(prompt="plain"),
            {"ctx": "a [x]", "endings": ["d", "e"], "label": 0},
            "a [x]",
            [" d", " e"],
            0,
        ),
        (
            StoryCloze(),
            {
                **{f"input_sentence_{n}": f"{n}." for n in range(1, 5)},
                "sentence_quiz1": "x",
                "sentence_quiz2": "y",
                "answer_right_ending": 2,
            },
            "1. 2. 3. 4.",
            [" x", " y"],
            1,
        ),
        (
            Piqa(),
            {"goal": "g", "sol1": "a", "sol2": "b", "label": 1},
            "Question: g\nAnswer:",
            [" a", " b"],
            1,
        ),
        (
            ArcEasy(),
            {"question": {"stem": "q?", "choices": STEM}, "answerKey": "B"},
            "Question: q?\nAnswer:",
            [" iron", " wood"],
            1,
        ),
        (
            ArcEasy(),
            {"question": "q?", "choices": LISTS, "answerKey": "A"},
            "Question: q?\nAnswer:",
            [" iron", " wood"],
            0,
        ),
        (
            OpenBookQa(),
            {"question_stem": "q", "choices": LISTS, "answerKey": "B"},
            "q",
            [" iron", " wood"],
            1,
        ),
        (
            OpenBookQa(),
            {"question": {"stem": "q", "choices": STEM}, "answerKey": "B"},
            "q",
            [" iron", " wood"],
            1,
        ),
        (
            BoolQ(),
            {"passage": "p", "question": "q", "answer": True},
            "p\nQuestion: q?\nAnswer:",
            [" no", " yes"],
            1,
        ),
        (
            BoolQ(),
            {"passage": "p", "question": "q", "label": 0},
            "p\nQuestion: q?\nAnswer:",
            [" no", " yes"],
            0,
        ),
        (
            SciQ(),
            {
                "support": " s",
                "question": "q",
                "distractor1": "a",
                "distractor2": "b",
                "distractor3": "c",
                "correct_answer": "d",
            },
            "s\nQuestion: q\nAnswer:",
            [" a", " b", " c", " d"],
            3,
        ),
    ],
    ids=lambda value: getattr(value, "kind", None),
)
def test_prompts_are_those_of_the_harness(tmp_path, task, item, context, continuations, label):
    path = tmp_path / "items.json"
    path.write_text(json.dumps([item]))
    question = only(task, path)
    assert set(question.contexts) == {context}
    assert question.continuations == continuations
    assert question.label == label


def test_winogrande_scores_the_rest_behind_each_word(tmp_path):
    path = tmp_path / "dev.jsonl"
    path.write_text(
        json.dumps({"sentence": "The _ was wet.", "option1": "eel", "option2": "net", "answer": "2"})
    )
    question = only(WinoGrande(), path)
    assert question.contexts == ["The eel", "The net"]
    assert question.continuations == [" was wet."] * 2
    assert question.solved() == "The net was wet."


def test_labels_of_piqa_lie_beside(tmp_path):
    (tmp_path / "valid.jsonl").write_text('{"goal": "g", "sol1": "a", "sol2": "b"}\n' * 2)
    (tmp_path / "valid-labels.lst").write_text("1\n0\n")
    assert [question.label for question in Piqa().questions(tmp_path / "valid.jsonl")] == [1, 0]


def test_mmlu_names_the_subject_and_shows_examples_of_it(tmp_path):
    (tmp_path / "dev").mkdir()
    row = '"Is it, so?",a,b,c,d,C\n'
    (tmp_path / "high_school_physics_test.csv").write_text(row)
    (tmp_path / "dev" / "high_school_physics_dev.csv").write_text(row * 3)
    asked = "Is it, so?\nA. a\nB. b\nC. c\nD. d\nAnswer:"
    task = Mmlu(num_fewshot=2, fewshot_data=str(tmp_path / "dev"))
    question = only(task, tmp_path / "high_school_physics_test.csv")
    assert question.contexts[0] == asked
    about = "The following are multiple choice questions (with answers) about high school physics.\n\n"
    assert task.preamble(question.subject) == about + f"{asked} C\n\n" * 2
    assert len(task.measure(tiny_model("gpt2"), [tmp_path]).items) == 1
    with pytest.raises(DataError, match=r"art_dev\.csv: there is no file of examples"):
        task.preamble("art")


def test_examples_stand_before_every_question(tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_text('{"goal": "g", "sol1": "a", "sol2": "b", "label": 1}\n' * 3)
    task = Piqa(num_fewshot=2, fewshot_data=str(path))
    assert task.preamble("") == "Question: g\nAnswer: b\n\n" * 2
    with_examples = task.measure(tiny_model("llama"), [path]).items[0].scores[0].logprob
    assert with_examples != pytest.approx(
        Piqa().measure(tiny_model("llama"), [path]).items[0].scores[0].logprob
    )
    with pytest.raises(ConfigError, match="num_fewshot and fewshot_data go together"):
        configured_tasks(["piqa"], ["piqa.num_fewshot=2"])


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"ctx": "a", "endings": ["b", "c"]}', "has no field 'label'; it has ctx, endings"),
        ('{"ctx": "a", "endings": ["b", "c"], "label": 2}', "field 'label' is '2', and must be one of 0, 1"),
        ('{"ctx": "a", "endings": "b", "label": 0}', "must be a list of texts"),
        ('{"ctx": 3, "endings": ["b", "c"], "label": 0}', "field 'ctx' is 3, and must be a text"),
        ('["a"', "is no JSON"),
        ("3", "the item is 3, and must be an object"),
    ],
)
def test_bad_items_are_named_with_their_place(tmp_path, line, says):
    path = tmp_path / "hellaswag_val.jsonl"
    good = '{"ctx": "a", "endings": ["b", "c"], "label": 0}\n'
    path.write_text(line if line.startswith("[") else good + line)
    with pytest.raises(DataError, match=says) as refusal:
        HellaSwag().measure(tiny_model("gpt2"), [path])
    assert line.startswith("[") or f"{path}:2" in str(refusal.value)


def test_what_has_no_tokens_or_too_many_is_named(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps({"ctx": "a", "endings": ["b" * 80, "c"], "label": 0}))
    with pytest.raises(
        DataError, match=r"x\.jsonl:1: .* of 1 items; here the continuation has 8\d tokens, .* holds 64"
    ):
        HellaSwag().measure(tiny_model("gpt2"), [path])
    path.write_text("")
    with pytest.raises(DataError, match=r"x\.jsonl: there is no item in it"):
        HellaSwag().measure(tiny_model("gpt2"), [path])
    with pytest.raises(DataError, match="the continuation '' has no tokens"):
        text_request(tiny_model("gpt2"), "a", "")


def test_items_that_the_model_cannot_score_are_left_out_and_counted(tmp_path):
    """A choice longer than the context takes its whole question out; all others score as without it."""
    path = write_task_file("hellaswag", tmp_path, count=5)
    lines = path.read_text().splitlines()
    long = {**json.loads(lines[1]), "endings": ["a", "b", "c", "d" * 80]}
    path.write_text("\n".join([lines[0], json.dumps(long), *lines[2:]]))
    results = HellaSwag().measure(tiny_model("gpt2"), [path])
    assert results.skipped == {
        f"{path}:2": "the continuation has 80 tokens, the model's context holds 64",
    }
    assert results.figures["items"] == len(results.items) == 4
    path.write_text("\n".join([lines[0], *lines[2:]]))
    alone = HellaSwag().measure(tiny_model("gpt2"), [path])
    assert [item.values for item in results.items] == [item.values for item in alone.items]
    words = tmp_path / "lambada_test.jsonl"
    words.write_text("\n".join(json.dumps({"text": f"a b {word}"}) for word in ("c", "q" * 90, "d")))
    results = Lambada().measure(tiny_model("gpt2"), [words])
    assert (results.figures["passages"], list(results.skipped)) == (2, [f"{words}:2"])


def test_an_empty_choice_is_scored_as_the_blank_before_it(tmp_path):
    """As in the harness; by its length it can never be the best."""
    path = write_task_file("hellaswag", tmp_path, count=1)
    item = json.loads(path.read_text())
    path.write_text(json.dumps({**item, "endings": ["", *item["endings"][1:]], "label": 0}))
    (found,) = HellaSwag().measure(tiny_model("gpt2"), [path]).items
    assert found.scores[0].num_tokens == 1
    assert found.values["accuracy_norm"] == found.values["accuracy_bytes"] == 0


@pytest.mark.parametrize(
    "task", [Piqa(), Mmlu(), ArcEasy(), BoolQ(), HellaSwag()], ids=lambda task: task.kind
)
def test_a_file_of_another_task_is_told_with_what_was_expected(task, tmp_path):
    path = write_task_file("sciq", tmp_path)
    expected = re.escape(f"this task reads {task.fields}.")
    with pytest.raises(
        DataError, match=rf"sciq_test\.jsonl:1: the item has no .*it has support, .*{expected}"
    ):
        task.measure(tiny_model("gpt2"), [path])


def test_a_question_needs_two_choices(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps({"ctx": "a", "endings": ["b"], "label": 0}))
    with pytest.raises(DataError, match=r"x\.jsonl:1: the item has 1 choices, and needs two or more"):
        HellaSwag().measure(tiny_model("gpt2"), [path])


def test_wikitext_is_no_json(tmp_path):
    path = write_task_file("piqa", tmp_path)
    with pytest.raises(DataError, match="holds JSON, and wikitext reads a plain text"):
        WikiText().measure(tiny_model("gpt2"), [path])


def test_mmlu_finds_its_folder_among_other_files(tmp_path):
    """The authors' archive has test and dev; a folder of all tasks has other CSV files beside."""
    write_task_file("storycloze", tmp_path)
    for split in ("test", "dev"):
        (tmp_path / "mmlu" / split).mkdir(parents=True)
        write_task_file("mmlu", tmp_path / "mmlu" / split, count=2)
    (tmp_path / "mmlu/dev/boating_test.csv").rename(tmp_path / "mmlu/dev/boating_dev.csv")
    assert Mmlu.find_files([tmp_path]) == Mmlu.find_files([tmp_path / "mmlu"]) == [tmp_path / "mmlu/test"]
    assert Mmlu.find_files([tmp_path / "mmlu/test"]) == [tmp_path / "mmlu/test"]
    few = Mmlu(num_fewshot=2, fewshot_data=str(tmp_path / "mmlu/dev"))
    assert few.measure(tiny_model("gpt2"), [tmp_path]).figures["items"] == 2


def test_contexts_that_are_cut_are_counted(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text("\n".join(json.dumps({"text": "q" * length + " b c"}) for length in (10, 70, 90)))
    assert Lambada().measure(tiny_model("gpt2"), [path]).num_truncated == 2


def test_a_folder_of_many_tasks_is_searched(tmp_path):
    (tmp_path / "sets").mkdir()
    path = write_task_file("hellaswag", tmp_path / "sets")
    assert HellaSwag.find_files([tmp_path]) == [path]
    assert Lambada.find_files([tmp_path]) == [tmp_path]
    with pytest.raises(DataError, match=r"like \*piqa\*.* there are none in this folder"):
        Piqa.find_files([tmp_path])
    path.with_name("hellaswag_val.jsonl.gz").write_bytes(path.read_bytes())
    path.with_name("hellaswag_val2.jsonl").write_bytes(path.read_bytes())
    with pytest.raises(DataError, match="there are several"):
        HellaSwag.find_files([tmp_path])


def test_blanks_and_empty_contexts_are_tokenized_as_in_the_harness():
    loaded = tiny_model("gpt2")
    encode = loaded.tokenizer.encode
    request = text_request(loaded, "the sea  ", "tide")
    assert request.context.tolist() == encode("the sea")
    assert request.continuation.tolist() == encode("the sea  tide")[len(encode("the sea")) :]
    request = text_request(loaded, "", "tide")
    assert request.context.tolist() == [loaded.tokenizer.end_of_document_id]
    assert request.continuation.tolist() == encode("tide")


def test_rolling_predicts_each_token_once_and_the_last_from_a_whole_context():
    loaded = tiny_model("gpt2")
    ids = [loaded.tokenizer.end_of_document_id, *loaded.tokenizer.encode("q" * 150)]
    found = list(rolling_requests(loaded, "q" * 150))
    assert [len(part.continuation) for part in found] == [64, 64, 22]
    assert [len(part.context) for part in found] == [1, 1, 43]
    assert [number for part in found for number in part.continuation.tolist()] == ids[1:]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" = = Plot = = \n", " == Plot ==\n"),
        ("cost 1 @,@ 200 @.@ 5 well @-@ known", "cost 1,200.5 well-known"),
        ("He said , no ; yes : ( so ) .", "He said, no; yes: (so) ."),
        ('the " old " boat \'s net , " a "', 'the "old" boat\'s net, "a"'),
        ("the boats ' nets [ 1 ] { x }", "the boats' nets [1] {x}"),
    ],
)
def test_wikitext_is_detokenized(text, expected):
    assert detokenize_wikitext(text) == expected
