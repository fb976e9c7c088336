"""Templates for models without one: their tokens in the tokenizer, their rows in the tables."""

import dataclasses
import json
import random

import pytest
import torch
import transformers

from groundup.checkpoint.companions import Companions
from groundup.checkpoint.formats import open_model
from groundup.checkpoint.huggingface.weights import write_huggingface
from groundup.checkpoint.lazy import as_lazy, load
from groundup.core.errors import ConfigError
from groundup.finetune.templates import NAMED, with_template
from groundup.inference.chat_template import ChatTemplate, TemplateRefusal, read_chat_template
from groundup.tokens.tokenizer.bpe import ByteLevelTokenizer
from tests.chats import TALKS, messages
from tests.tiny import END, tiny_model, tiny_tokenizer


def parts_as_text(parts, names) -> str:
    of_id = {number: name for name, number in names.items()}
    return "".join(part if isinstance(part, str) else of_id[part] for part in parts)


@pytest.mark.parametrize("name", NAMED)
def test_a_named_template_renders_as_transformers_does(name, tmp_path):
    stored = with_template(as_lazy(tiny_model("gpt2")), name)
    write_huggingface(load(stored, device="cpu"), tmp_path / "hf")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    names = stored.tokenizer.special_tokens
    ours = read_chat_template(stored.companions, names)
    for talk in TALKS:
        answers = ours.answers(messages(talk))
        text = theirs.apply_chat_template(messages(talk), tokenize=False)
        assert parts_as_text([part for part, _ in answers], names) == text
        learned = parts_as_text([part for part, is_learned in answers if is_learned], names)
        said = [content for role, content in talk if role == "assistant"]
        end = NAMED[name].end or END
        assert learned == "".join(content + end for content in said)
        prompt = messages(talk)[:-1]
        expected = theirs.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
        assert parts_as_text(ours.render(prompt), names) == expected


@pytest.mark.parametrize("tied", [True, False])
def test_new_rows_are_the_mean_and_cutting_them_off_gives_the_model_back(tied):
    base = as_lazy(tiny_model("gpt2", tied_embedding=tied))
    grown = with_template(base, "chatml")
    assert grown.config.vocab_size == base.config.vocab_size + 2 == grown.tokenizer.vocab_size
    tables = [name for name in base.weights if grown.weights[name].shape != base.weights[name].shape]
    assert tables == (["embed.tokens.weight"] if tied else ["embed.tokens.weight", "head.weight"])
    for name, tensor in base.weights.items():
        before, after = tensor.read(), grown.weights[name].read()
        assert torch.equal(after[: len(before)], before)
        if name in tables:
            mean = before.mean(0).expand(2, -1)
            torch.testing.assert_close(after[len(before) :], mean)
    text = "the cat <|im_start|>"
    assert grown.tokenizer.encode(text) == base.tokenizer.encode(text)


def test_rows_that_the_model_has_already_are_taken(tmp_path):
    base = as_lazy(tiny_model("gpt2", vocab_size=310))
    grown = with_template(base, "chatml")
    assert grown.config.vocab_size == 310
    table, before = grown.weights["embed.tokens.weight"].read(), base.weights["embed.tokens.weight"].read()
    torch.testing.assert_close(table[300:302], before[:300].mean(0).expand(2, -1))
    assert torch.equal(table[302:], before[302:])


def test_the_end_of_an_answer_ends_a_text_and_all_goes_to_the_exported_folder(tmp_path):
    grown = with_template(as_lazy(tiny_model("gpt2")), "chatml")
    write_huggingface(load(grown, device="cpu"), tmp_path / "hf")
    back = open_model(tmp_path / "hf", device="cpu")
    end = grown.tokenizer.special_tokens["<|im_end|>"]
    assert back.stop_ids == {end, back.tokenizer.end_of_document_id}
    assert back.companions.chat_template == grown.companions.chat_template
    again = with_template(as_lazy(back), "chatml")  # has the tokens: nothing grows
    assert again.config == grown.config
    assert with_template(as_lazy(back), "").companions == back.companions  # its own


class WithoutFiles(ByteLevelTokenizer):
    """Such as a SentencePiece model, which is one file that nothing is added to."""

    def __init__(self):
        vars(self).update(vars(tiny_tokenizer()))

    def save(self, folder):
        pass


def test_a_template_that_cannot_be(tmp_path):
    base = as_lazy(tiny_model("gpt2"))
    with pytest.raises(ConfigError, match="the model has no chat template"):
        with_template(base, "own")
    with pytest.raises(ConfigError, match=f"neither own, {', '.join(NAMED)} nor a file"):
        with_template(base, "chatlm")
    with pytest.raises(ConfigError, match=r"no tokenizer.json to add <|system|>"):
        with_template(dataclasses.replace(base, tokenizer=WithoutFiles()), "plain")


def test_a_template_of_a_file_replaces_the_models(tmp_path):
    (tmp_path / "own.jinja").write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
    old = Companions(files={"tokenizer_config.json": json.dumps({"chat_template": "old", "a": 1}).encode()})
    base = dataclasses.replace(as_lazy(tiny_model("gpt2")), companions=old)
    changed = with_template(base, str(tmp_path / "own.jinja"))
    assert changed.companions.chat_template == (tmp_path / "own.jinja").read_text()
    assert b"old" not in changed.companions.files["tokenizer_config.json"]
    assert changed.config == base.config


def test_a_template_of_another_tokenizer_is_refused(tmp_path):
    (tmp_path / "chatml.jinja").write_text(NAMED["chatml"].source)
    base = as_lazy(tiny_model("gpt2"))
    with pytest.raises(ConfigError, match=r"the model has no token <\|im_start\|>, <\|im_end\|>"):
        with_template(base, str(tmp_path / "chatml.jinja"))
    with_template(with_template(base, "chatml"), str(tmp_path / "chatml.jinja"))  # now it has them


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, roles={}, special_tokens={"<end>": 7})


LOSES = "{% for m in messages if m.role != 'system' %}{{ m.role }}{{ m.content }}<end>{% endfor %}"
REWRITES = (
    "{% for m in messages %}{{ m.role }}"
    "{% if loop.last and m.role == 'assistant' %}(thinks){% endif %}{{ m.content }}<end>{% endfor %}"
)
TALK = messages([("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")])


def test_a_template_that_loses_or_rewrites_a_turn_is_refused():
    with pytest.raises(TemplateRefusal, match="loses the system's turn"):
        template(LOSES).answers([{"role": "system", "content": "be brief"}, *TALK])
    with pytest.raises(TemplateRefusal, match=r"stage\.answers=last"):
        template(REWRITES).answers(TALK)
    assert [part for part, learned in template(REWRITES).answers(TALK, last=True) if learned] == [
        "assistant(thinks)d",
        7,
    ]


def test_what_the_template_marks_is_what_is_learned():
    marked = template(
        "{% for m in messages %}{{ m.role }}:{% if m.role == 'assistant' %}"
        "{% generation %}{{ m.content }}<end>{% endgeneration %}{% else %}{{ m.content }}{% endif %}"
        "\n{% endfor %}"
    )
    answers = marked.answers(TALK)
    assert [part for part, learned in answers if learned] == ["b", 7, "d", 7]
    assert [part for part, learned in marked.answers(TALK, last=True) if learned] == ["d", 7]
    assert marked.render(TALK[:1]) == ["user:a"]


def test_names_of_special_tokens_in_a_message_stay_text():
    rng = random.Random(0)
    plain = template("{% for m in messages %}<end>{{ m.content }}{% endfor %}")
    for _ in range(50):
        content = "".join(rng.choice(["<end>", "<", "end>", "x", "\ue000"]) for _ in range(6)).strip() or "x"
        parts = plain.answers([{"role": "user", "content": content}])
        assert [part for part, _ in parts] == [7, content]
