"""The part of a model card that says how the model is used."""

from groundup.checkpoint.lazy import LazyModel
from groundup.checkpoint.low_rank import AdapterAbout
from groundup.report.card_text import code, is_hub_id, place

_PROMPT = """\
ids = model.generate(**tokenizer("Once upon a time", return_tensors="pt"), max_new_tokens=64)
print(tokenizer.decode(ids[0]))
"""
_CHAT = """\
messages = [{"role": "user", "content": "Hello"}]
prompt = tokenizer.apply_chat_template(
    messages, add_generation_prompt=True, return_dict=True, return_tensors="pt"
)
ids = model.generate(**prompt, max_new_tokens=64)
print(tokenizer.decode(ids[0][prompt["input_ids"].shape[1] :], skip_special_tokens=True))
"""


def usage(stored: LazyModel, name: str, adapter: AdapterAbout | None, base: str) -> str:
    """Code that loads a model and asks it something, and the command that serves it.

    Args:
        stored: The model.
        name: Of its folder, or on the hub.
        adapter: The folder holds this adapter, not the model.
        base: The name of the adapter's base on the hub; empty where it has none.
    """
    chats = stored.companions.chat_template is not None
    lines = ["import transformers", ""]
    if adapter:
        lines = ["import peft", "import transformers", ""]
        if not base:
            lines.append(f"# BASE: the adapter's base, {place(adapter.base)}, as a Hugging Face folder")
        lines.append(f'base = transformers.AutoModelForCausalLM.from_pretrained("{base or "BASE"}")')
        lines.append(f'model = peft.PeftModel.from_pretrained(base, "{name}")')
    else:
        lines.append(f'model = transformers.AutoModelForCausalLM.from_pretrained("{name}")')
    lines.append(f'tokenizer = transformers.AutoTokenizer.from_pretrained("{name}")')
    lines.append(_CHAT if chats else _PROMPT)
    folder = name.rpartition("/")[2]
    commands = [f"hf download {name} --local-dir {folder}"] if is_hub_id(name) else []
    if adapter:
        commands.append(f"groundup generate BASE --adapter {folder} --prompt 'Once upon a time'")
    else:
        commands.append(f"groundup serve {folder}  # answers OpenAI's clients, with a page to try it on")
    asked = (
        "Questions go through its chat template, which comes with the tokenizer:"
        if chats
        else "It continues texts; it has no chat template:"
    )
    return f"{asked}\n\n" + code("\n".join(lines), "python") + code("\n".join(commands), "bash")
