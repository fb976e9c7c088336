"""``groundup push``, to a stand-in for the hub: what arrives is what was there, and is sent once."""

import _thread
import re
import sys

import pytest
from huggingface_hub import constants

from groundup.__main__ import main
from groundup.checkpoint.export import MANIFEST
from groundup.checkpoint.hub import repository_of
from groundup.checkpoint.huggingface.weights import read_huggingface
from groundup.cli.app import build_app
from groundup.core.errors import CheckpointError, ConfigError, MachineError
from groundup.core.files import read_json
from tests.chats import finetuning, write_base, write_talks
from tests.hub_server import TOKEN, hub_server
from tests.runs import run


@pytest.fixture
def hub(monkeypatch):
    """A hub of which this user has the token."""
    with hub_server() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield server


@pytest.fixture
def groundup(capsys, caplog):
    """Runs a command line; returns its stdout. The token is in no output."""

    def groundup(*words):
        try:
            build_app()([str(word) for word in words], result_action="return_value")
        finally:
            said = capsys.readouterr()
            assert TOKEN not in said.out + said.err + caplog.text
        return said.out

    return groundup


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A Hugging Face folder in several files, with a hidden file."""
    folder = tmp_path_factory.mktemp("models")
    write_base(folder / "base")
    exported = folder / "exported"
    words = ["convert", folder / "base", exported, "--to", "hf", "--shards", "3", "--license", "mit"]
    build_app()([str(word) for word in words], result_action="return_value")
    (exported / ".env").write_text("secret")
    return exported


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name not in (MANIFEST, ".env")}


def test_a_folder_arrives_byte_for_byte_and_is_sent_once(hub, groundup, model):
    said = groundup("push", model, "hf://me/small", "--private")
    assert f"{hub.url}/me/small: made; {len(content(model))} files" in said
    arrived = hub.content("me/small")
    assert {name: arrived[name] for name in arrived if name != ".gitattributes"} == content(model)
    assert hub.private == {"me/small"}
    weights = [name for name in arrived if name.endswith(".safetensors")]
    assert len(weights) == 3 and any(path.endswith("/all") for path in hub.sent("POST", "/lfs/"))
    hub.requests.clear()
    assert "had all of it already" in groundup("push", model, "hf://me/small")
    assert not hub.sent("PUT", "/") and not hub.sent("POST", "/api/models/me/small/commit")


def test_an_upload_that_was_interrupted_goes_on(hub, groundup, model):
    hub.on_object = lambda number: _thread.interrupt_main() if number == 1 else None
    with pytest.raises(KeyboardInterrupt):
        groundup("push", model, "hf://me/small")
    assert hub.objects and set(hub.content("me/small")) == {".gitattributes"}
    before = set(hub.objects)
    hub.requests.clear()
    hub.on_object = lambda number: None
    groundup("push", model, "hf://me/small")
    again = {path.split("/")[2] for path in hub.sent("PUT", "/lfs/")}
    assert not again & before and again | before == set(hub.objects)
    assert content(model).items() <= hub.content("me/small").items()


def test_what_the_hub_has_no_room_for_goes_on_later(hub, groundup, model):
    hub.refuse_objects_after = 2
    with pytest.raises(MachineError, match=r"me/small: the token has no right .*storage is full"):
        groundup("push", model, "hf://me/small")
    assert len(hub.objects) == 2 and set(hub.content("me/small")) == {".gitattributes"}
    hub.refuse_objects_after = 1 << 30
    before = set(hub.objects)
    hub.requests.clear()
    groundup("push", model, "hf://me/small")
    assert not before & {path.split("/")[2] for path in hub.sent("PUT", "/lfs/")}
    assert content(model).items() <= hub.content("me/small").items()


def test_a_run_is_converted_and_replaces_what_another_left(hub, groundup, model, tmp_path):
    groundup("push", model, "hf://me/small", "--revision", "next")
    assert set(hub.content("me/small")) == {".gitattributes"}
    config = finetuning(model, write_talks(tmp_path / "talks.jsonl"), tmp_path / "run", "num_steps=1")
    run(config)
    groundup(
        "push",
        config.run_dir,
        "hf://me/small",
        "--revision",
        "next",
        "--language",
        "en",
        "--dtype",
        "bfloat16",
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "talks.jsonl"]
    arrived = hub.content("me/small", "next")
    assert [name for name in sorted(arrived) if "safetensors" in name] == ["model.safetensors"]
    card = arrived["README.md"].decode()
    assert 'from_pretrained("me/small")' in card and "Supervised fine-tuning" in card and "- en\n" in card
    assert str(tmp_path) not in card and MANIFEST not in arrived
    (tmp_path / "back").mkdir()
    for name, data in arrived.items():
        (tmp_path / "back" / name).write_bytes(data)
    assert read_huggingface(tmp_path / "back").config == config.completed().model


def test_an_adapter_names_its_base_on_the_hub(hub, groundup, model, tmp_path):
    words = ("num_steps=1", "lora.rank=2", "stage.template=text")
    config = finetuning(model, write_talks(tmp_path / "talks.jsonl"), tmp_path / "run", *words)
    run(config)
    adapter = ("push", config.run_dir, "hf://me/small-lora", "--adapter-only")
    with pytest.raises(ConfigError, match=r"must name its base on the hub\. Add --base-model"):
        groundup(*adapter)
    groundup("convert", config.run_dir, tmp_path / "local", "--to", "hf", "--adapter-only")
    with pytest.raises(ConfigError, match=r"adapter_config.json: names its base by a folder of this machine"):
        groundup("push", tmp_path / "local", "hf://me/small-lora")
    assert not hub.repositories
    groundup(*adapter, "--base-model", "me/small")
    arrived = hub.content("me/small-lora")
    assert b'"base_model_name_or_path": "me/small"' in arrived["adapter_config.json"]
    assert "adapter_model.safetensors" in arrived and "model.safetensors" not in arrived


def test_a_dry_run_lists_what_would_be_sent(hub, groundup, model, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    said = groundup("push", model, "hf://me/small", "--dry-run")
    assert not hub.requests and "Nothing was sent" in said
    listed = dict(re.findall(r"^(\S+) +([\d.]+ k?B)$", said, re.MULTILINE))
    assert set(content(model)) == set(listed)
    assert listed["config.json"] == f"{(model / 'config.json').stat().st_size} B"


def test_refusals_say_what_to_do(hub, groundup, model, monkeypatch, tmp_path):
    def refused(*words, fits=MachineError):
        with pytest.raises(fits) as error:
            groundup("push", *words)
        return str(error.value)

    assert "you/small: the token has no right to write there" in refused(model, "hf://you/small")
    assert f"{hub.url}/settings/tokens" in refused(model, "hf://you/small")
    with pytest.raises(CheckpointError, match="no such file or folder"):
        groundup("push", tmp_path / "absent", "hf://me/small")
    message = refused(model, "hf://me/small", "--license", "mit", fits=ConfigError)
    assert "--license is for what is converted" in message
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    assert "the hub does not take the token" in refused(model, "hf://me/small")
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    assert "there is no token for the hub on this machine" in refused(model, "hf://me/small")
    (tmp_path / "token").write_text(TOKEN)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    message = refused(model, "hf://me/small")
    assert "the way to http://127.0.0.1:9 is interrupted" in message and "goes on where" in message
    assert not hub.repositories


def test_a_card_that_the_hub_refuses_is_named_before_anything_is_sent(hub, groundup, model, tmp_path):
    folder = tmp_path / "copy"
    folder.mkdir()
    for name, data in content(model).items():
        (folder / name).write_bytes(data.replace(b"license: mit", b"license: Not Mine"))
    with pytest.raises((ConfigError, MachineError), match=r"license is not valid|Invalid metadata"):
        groundup("push", folder, "hf://me/small")
    assert not hub.objects


@pytest.mark.parametrize(
    "url",
    ["me/small", "hf://small", "hf://a/b/c", "hf://me/", "hf://me/a--b", "hf://me/-a", "hf://me/" + "a" * 99],
)
def test_names_that_the_hub_does_not_have(url):
    with pytest.raises(ConfigError, match=re.escape(url)):
        repository_of(url)


def test_the_extra_is_named_where_it_is_missing(model, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.setattr("sys.argv", ["groundup", "push", str(model), "hf://me/small"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1 and "pip install 'groundup[hub]'" in capsys.readouterr().err
    assert read_json(model / MANIFEST)["kind"] == "export"
