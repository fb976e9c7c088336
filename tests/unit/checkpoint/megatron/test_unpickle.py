import argparse
import contextlib
import enum
import signal
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from groundup.checkpoint.safe_pickle.objects import Stub
from groundup.checkpoint.safe_pickle.unpickle import load_pickled, storage_offsets
from groundup.core.errors import CheckpointError

CONTENT: dict[str, Any] = {
    "a": torch.arange(6.0).reshape(2, 3),
    "view": torch.arange(6.0).reshape(2, 3).T[1:],
    "half": torch.tensor([1.5], dtype=torch.bfloat16),
    "scalar": torch.tensor(7),
    "empty": torch.empty(0, 4),
    "args": argparse.Namespace(lr=0.1, dtype=torch.float16, stop=signal.SIGTERM, state=np.random.get_state()),
    "nested": [(1, 2.0), {"b": None}, {1, 2}],
}


class Payload:
    """Calls a function when it is unpickled."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("new", [True, False])
def test_what_torch_saved_comes_back(new: bool, tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    shared = torch.arange(8)
    content = {**CONTENT, "x": shared[:4], "y": shared[2:], "p": torch.nn.Parameter(torch.ones(2))}
    torch.save(content, path, _use_new_zipfile_serialization=new)
    found = load_pickled(path)
    for name, value in content.items():
        if isinstance(value, torch.Tensor):
            assert found[name].dtype == value.dtype
            assert torch.equal(found[name], value)
    assert found["x"].untyped_storage().data_ptr() == found["y"].untyped_storage().data_ptr()
    assert found["nested"] == content["nested"]
    assert found["args"].lr == 0.1
    assert found["args"].dtype == torch.float16
    assert isinstance(found["args"].stop, Stub)
    assert found["args"].stop.arguments == (15,)


def test_unknown_classes_of_megatron_become_stubs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("megatron.core.enums")
    exec("import enum\nclass ModelType(enum.Enum):\n    gpt = 1", module.__dict__)
    module.ModelType.__module__ = module.__name__
    for name in ("megatron", "megatron.core", "megatron.core.enums"):
        monkeypatch.setitem(sys.modules, name, module if name.endswith("enums") else types.ModuleType(name))
    torch.save({"args": argparse.Namespace(kind=module.ModelType.gpt)}, tmp_path / "a.pt")
    monkeypatch.undo()
    kind = load_pickled(tmp_path / "a.pt")["args"].kind
    assert repr(kind) == "ModelType(1)"
    assert not isinstance(kind, enum.Enum)
    assert "megatron" not in sys.modules


@pytest.mark.parametrize("new", [True, False])
@pytest.mark.parametrize(
    ("function", "arguments", "named"),
    [
        ("os.system", ("touch {}",), "system"),
        ("builtins.eval", ("open('{}', 'w')",), "eval"),
        ("builtins.getattr", ((), "__class__"), "getattr"),
        ("subprocess.check_output", (["touch", "{}"],), "check_output"),
        ("importlib.import_module", ("antigravity",), "import_module"),
    ],
)
def test_a_malicious_pickle_is_refused_and_not_run(
    function: str, arguments: tuple[Any, ...], named: str, new: bool, tmp_path: Path
) -> None:
    module, _, name = function.rpartition(".")
    target = getattr(__import__(module, fromlist=[name]), name)
    victim = tmp_path / "victim"
    filled = tuple(a.format(victim) if isinstance(a, str) else a for a in arguments)
    path = tmp_path / "evil.pt"
    torch.save({"model": {}, "x": Payload(target, *filled)}, path, _use_new_zipfile_serialization=new)
    with pytest.raises(CheckpointError, match=rf"evil\.pt: its pickle wants to call \w+\.{named}, which no"):
        load_pickled(path)
    assert not victim.exists()


def test_a_tensor_beyond_its_storage_is_refused(tmp_path: Path) -> None:
    for offset, shape, stride in ((0, (5,), (1,)), (3, (2,), (1,)), (0, (2, 2), (3, 1)), (-1, (1,), (1,))):
        storage = torch.arange(4.0).untyped_storage()
        typed = torch.storage.TypedStorage(wrap_storage=storage, dtype=torch.float32, _internal=True)
        bad = Payload(torch._utils._rebuild_tensor_v2, typed, offset, shape, stride, False, {})
        torch.save({"x": bad}, tmp_path / "a.pt")
        with pytest.raises(CheckpointError, match=r"exceeds its storage|not natural numbers"):
            load_pickled(tmp_path / "a.pt")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(keep=st.floats(0, 0.999), new=st.booleans())
def test_a_file_cut_off_anywhere_is_refused(keep: float, new: bool, tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save(CONTENT, path, _use_new_zipfile_serialization=new)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])
    with pytest.raises(CheckpointError, match=r"a\.pt: cannot be read as a file of torch\.save"):
        load_pickled(path)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 10**6), value=st.integers(0, 255), new=st.booleans())
def test_a_changed_byte_is_read_or_refused(place: int, value: int, new: bool, tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save({"a": torch.arange(6.0), "b": [1, {"c": "d"}]}, path, _use_new_zipfile_serialization=new)
    content = bytearray(path.read_bytes())
    content[place % len(content)] = value
    path.write_bytes(content)
    with contextlib.suppress(CheckpointError):
        load_pickled(path)


def test_missing_files_and_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"none\.pt: no such file"):
        load_pickled(tmp_path / "none.pt")
    with pytest.raises(CheckpointError, match="is a folder"):
        load_pickled(tmp_path)
    (tmp_path / "text.pt").write_text("hello")
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_pickled(tmp_path / "text.pt")


def test_where_the_values_lie(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save([torch.arange(3.0), torch.ones(5, dtype=torch.int8)], path)
    content = path.read_bytes()
    offsets = storage_offsets(path)
    assert set(offsets) == {"0", "1"}
    begin, length = offsets["0"]
    assert np.frombuffer(content[begin : begin + length], np.float32).tolist() == [0, 1, 2]
    assert offsets["1"][1] == 5
