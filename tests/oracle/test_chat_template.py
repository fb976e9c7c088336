"""Chat templates give the ids that ``transformers`` gives."""

import pytest
import transformers

from groundup.checkpoint.companions import read_companions
from groundup.inference.chat_template import read_chat_template
from groundup.tokens.tokenizer.load_tokenizer import load_tokenizer
from tests.tiny import END, tiny_tokenizer

CHATML = (
    "{%- for message in messages %}\n"
    "    {{- '<' + message['role'] + '>' + message['content'] | trim + eos_token + '\\n' }}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}\n"
    "    {{- '<assistant>' }}\n"
    "{%- endif %}\n"
)
ALTERNATING = (
    "{% set ns = namespace(first=true) %}{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}{% continue %}{% endif %}"
    "{% if (message['role'] == 'user') != ns.first %}{{ raise_exception('turns must alternate') }}{% endif %}"
    "{% set ns.first = not ns.first %}"
    "[{{ message['role'] }}] {{ message | tojson }} {{ message['content'] }}{{ eos_token }}"
    "{% endfor %}"
)
MESSAGES = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "  h\u00e9 there \u2603 "},
    {"role": "assistant", "content": "the cat"},
    {"role": "user", "content": "sat"},
]


@pytest.mark.parametrize("template", [CHATML, ALTERNATING], ids=["chatml", "alternating"])
def test_rendered_ids(template: str, tmp_path) -> None:
    tiny_tokenizer().save(tmp_path)
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tmp_path / "tokenizer.json"), bos_token=END, eos_token=END
    )
    theirs.chat_template = template
    theirs.save_pretrained(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    ours = read_chat_template(read_companions(tmp_path), tokenizer.special_tokens)
    assert ours is not None
    ids = []
    for part in ours.render(MESSAGES):
        ids += [part] if isinstance(part, int) else tokenizer.encode(part)
    expected = theirs.apply_chat_template(MESSAGES, add_generation_prompt=True, return_dict=False)
    assert ids == expected
    assert END in theirs.decode(ids)
