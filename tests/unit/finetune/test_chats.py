"""Conversations from records of several forms, and the reasons why some are left out."""

import pytest

from groundup.finetune.chats import NoConversation, RecordFields, messages_of

USER, ASSISTANT = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
SYSTEM = {"role": "system", "content": "s"}
SHAREGPT = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]
PLAIN = RecordFields()


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"messages": [SYSTEM, USER, ASSISTANT]}, [SYSTEM, USER, ASSISTANT]),
        ({"messages": [USER, ASSISTANT, USER]}, [USER, ASSISTANT]),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}, ASSISTANT]},
            [USER, ASSISTANT],
        ),
        (
            {
                "system": "s",
                "conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}],
            },
            [SYSTEM, USER, ASSISTANT],
        ),
        ({"instruction": "a", "input": "", "output": "b"}, [USER, ASSISTANT]),
        (
            {"instruction": "a", "input": "more", "output": "b"},
            [{"role": "user", "content": "a\n\nmore"}, ASSISTANT],
        ),
        ({"prompt": "a", "completion": "b"}, [USER, ASSISTANT]),
        ({"prompt": [SYSTEM, USER], "completion": [ASSISTANT]}, [SYSTEM, USER, ASSISTANT]),
        ({"question": "a", "answer": "b"}, [USER, ASSISTANT]),
    ],
)
def test_known_forms(record, expected):
    assert messages_of(record, PLAIN) == expected


def test_fields_of_other_names():
    turns = [{"who": "user", "said": "a"}, {"who": "assistant", "said": "b"}]
    fields = RecordFields(messages="talk", role="who", content="said", system="rule")
    assert messages_of({"talk": turns, "rule": "s"}, fields) == [SYSTEM, USER, ASSISTANT]
    fields = RecordFields(prompt="q", completion="a")
    assert messages_of({"q": "a", "a": "b"}, fields) == [USER, ASSISTANT]
    with pytest.raises(ValueError, match="go together"):
        RecordFields(prompt="q")


@pytest.mark.parametrize(
    ("record", "reason", "detail"),
    [
        ({"messages": [USER]}, "no assistant turn", ""),
        ({"messages": []}, "no assistant turn", ""),
        ({"messages": [{"role": "wizard", "content": "a"}, ASSISTANT]}, "unknown role", "'wizard'"),
        ({"messages": [USER, {"role": "assistant", "content": " "}]}, "empty turn", "the assistant's"),
        ({"messages": [USER, {"role": "assistant", "content": None}]}, "not a text", "'content' is missing"),
        ({"messages": ["hello"]}, "malformed turn", "it is of type str"),
        ({"messages": [USER, {**ASSISTANT, "tool_calls": [1]}]}, "tool calls", "they are no text"),
        ({"instruction": "a"}, "not a text", "'output' is missing"),
        ({"text": "a"}, "unknown form", "the keys are: text"),
    ],
)
def test_what_is_no_conversation(record, reason, detail):
    with pytest.raises(NoConversation) as refused:
        messages_of(record, PLAIN)
    assert (refused.value.reason, refused.value.detail) == (reason, detail)
