"""Preference records in the forms in which they are published, and what is wrong with others."""

import pytest

from groundup.finetune.chats import NoConversation
from groundup.finetune.pairs import PairFields, pair_of

GIVEN = [
    {"role": "user", "content": "2 + 2?"},
    {"role": "assistant", "content": "4"},
    {"role": "user", "content": "sure?"},
]
YES, NO = {"role": "assistant", "content": "Yes."}, {"role": "assistant", "content": "No."}
ASKED = [{"role": "user", "content": "sure?"}]
FORMS = {
    "texts": ({"prompt": "sure?", "chosen": "Yes.", "rejected": "No."}, ASKED),
    "trl-explicit": ({"prompt": GIVEN, "chosen": [YES], "rejected": [NO]}, GIVEN),
    "trl-implicit": ({"chosen": [*GIVEN, YES], "rejected": [*GIVEN, NO]}, GIVEN),
    "ultrafeedback": (
        {"prompt": "sure?", "score_chosen": 8.0, "chosen": [*ASKED, YES], "rejected": [*ASKED, NO]},
        ASKED,
    ),
    "explicit-and-repeated": ({"prompt": GIVEN, "chosen": [*GIVEN, YES], "rejected": [*GIVEN, NO]}, GIVEN),
    "helpful-harmless": (
        {
            "chosen": "\n\nHuman: 2 + 2?\n\nAssistant: 4\n\nHuman: sure?\n\nAssistant: Yes.",
            "rejected": "\n\nHuman: 2 + 2?\n\nAssistant: 4\n\nHuman: sure?\n\nAssistant: No.",
        },
        GIVEN,
    ),
    "orca": (
        {"system": "be brief", "question": "sure?", "chosen": "Yes.", "rejected": "No."},
        [{"role": "system", "content": "be brief"}, *ASKED],
    ),
    "alpaca": (
        {"instruction": "sure?", "input": "2 + 2", "chosen": "Yes.", "rejected": "No."},
        [{"role": "user", "content": "sure?\n\n2 + 2"}],
    ),
    "sharegpt": (
        {
            "conversations": [{"from": "human", "value": "sure?"}],
            "chosen": {"from": "gpt", "value": "Yes."},
            "rejected": {"from": "gpt", "value": "No."},
        },
        ASKED,
    ),
    "columns-of-bytes": ({"prompt": b"sure?", "chosen": b"Yes.", "rejected": b"No."}, ASKED),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_published_forms_are_recognised(name):
    record, prompt = FORMS[name]
    assert pair_of(record, PairFields()) == (prompt, YES, NO)


def test_a_shared_first_turn_of_the_answers_belongs_to_the_prompt():
    four, more = {"role": "assistant", "content": "4"}, {"role": "user", "content": "sure?"}
    record = {"prompt": "2 + 2?", "chosen": [four, more, YES], "rejected": [four, more, NO]}
    assert pair_of(record, PairFields()) == (GIVEN, YES, NO)


def test_other_names_are_mapped():
    record = {"q": "sure?", "good": "Yes.", "bad": "No.", "prompt": "not this", "rules": "be brief"}
    fields = PairFields(prompt="q", chosen="good", rejected="bad", system="rules")
    system = {"role": "system", "content": "be brief"}
    assert pair_of(record, fields) == ([system, *ASKED], YES, NO)


BAD = {
    "no chosen": {"prompt": "sure?", "rejected": "No."},
    "no rejected": {"prompt": "sure?", "chosen": "Yes.", "rejected": []},
    "no prompt": {"chosen": "Yes.", "rejected": "No."},
    "identical answers": {"prompt": "sure?", "chosen": "Yes.", "rejected": "Yes."},
    "empty answer": {"prompt": "sure?", "chosen": "Yes.", "rejected": " \n"},
    "answers to different prompts": {"chosen": [*GIVEN, YES], "rejected": [*ASKED, NO]},
    "no single answer": {"chosen": [*GIVEN, YES], "rejected": GIVEN},
    "unknown role": {"prompt": "sure?", "chosen": [{"role": "oracle", "content": "Yes."}], "rejected": "No."},
    "malformed turn": {"prompt": "sure?", "chosen": ["Yes."], "rejected": ["No."]},
}


@pytest.mark.parametrize("reason", BAD)
def test_bad_records_are_told_by_reason(reason):
    with pytest.raises(NoConversation) as caught:
        pair_of(BAD[reason], PairFields())
    assert caught.value.reason == reason
