"""Files of torch.save that were made to lead the reader around."""

import argparse
import collections
import pickle
import signal
import struct
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from groundup.checkpoint.safe_pickle import machine, objects
from groundup.checkpoint.safe_pickle.objects import Stub
from groundup.checkpoint.safe_pickle.unpickle import load_pickled, load_pickled_part, load_plain_pickle
from groundup.core.errors import CheckpointError
from tests.hostile_pickles import (
    build,
    call,
    dict_of,
    list_of,
    name,
    storage,
    tensor,
    tuple_of,
    value,
    write_legacy,
    write_zip,
)

FOUR = struct.pack("<4f", 1, 2, 3, 4)
GOOD = tensor(storage("0", 4), (4,), (1,))
HUGE = 1_000_000
NAMESPACE = name("argparse", "Namespace")
Write = Callable[[Path, bytes], Path]


def as_zip(path: Path, content: bytes) -> Path:
    return write_zip(path, content, {"0": FOUR, "1": bytes(4096)})


def as_legacy(path: Path, content: bytes) -> Path:
    keys = [key for key in ("0", "1") if value(key) in content]  # a storage that is not used has no type
    return write_legacy(path, content, [(key, 4, FOUR) for key in keys])


both_forms = pytest.mark.parametrize("write", [as_zip, as_legacy])


def refusal(read: Callable[[], Any]) -> str:
    with pytest.raises(CheckpointError) as caught:
        read()
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 700
    return str(caught.value)


@both_forms
def test_the_parts_make_a_good_file(write: Write, tmp_path: Path) -> None:
    assert torch.equal(load_pickled(write(tmp_path / "a.pt", GOOD)), torch.tensor([1.0, 2, 3, 4]))


STATES: Mapping[str, bytes] = {
    "set_": tuple_of(storage("0", 4), value(0), value((HUGE,)), value((1,))),
    "setstate": tuple_of(value(False), tuple_of(), dict_of({}), tuple_of()),
    "attributes": dict_of({"data": value(1)}),
    "slots": tuple_of(value(None), dict_of({"data": value(1)})),
}


@both_forms
@pytest.mark.parametrize("state", STATES.values(), ids=STATES.keys())
def test_a_tensor_cannot_be_changed_after_it_was_made(state: bytes, write: Write, tmp_path: Path) -> None:
    path = write(tmp_path / "a.pt", build(GOOD, state))
    assert "changes an object of type TensorInPickle" in refusal(lambda: load_pickled(path))
    parameter = call(name("torch._utils", "_rebuild_parameter"), GOOD, value(True), value({}))
    path = write(tmp_path / "a.pt", build(parameter, state))
    assert "changes an object of type TensorInPickle" in refusal(lambda: load_pickled(path))


@both_forms
@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (name("argparse", "Namespace"), "argparse.Namespace"),
        (name("torch._utils", "_rebuild_tensor_v2"), "torch._utils._rebuild_tensor_v2"),
        (name("collections", "OrderedDict"), "collections.OrderedDict"),
        (name("megatron.core.enums", "ModelType"), "megatron.core.enums.ModelType"),
        (name("torch", "float32"), "type dtype"),
        (storage("0", 4), "StorageInPickle"),
        (value([]), "type list"),
        (call(name("builtins", "set")), "type set"),
    ],
)
def test_nothing_outlives_a_file(changed: bytes, told: str, write: Write, tmp_path: Path) -> None:
    modules = (machine, objects, argparse.Namespace, collections.OrderedDict, Stub)
    before = [set(vars(module)) for module in modules]
    for state in STATES.values():
        path = write(tmp_path / "a.pt", build(changed, state))
        assert f"{told} after it was made" in refusal(lambda path=path: load_pickled(path))
    assert [set(vars(module)) for module in modules] == before
    own = build(call(NAMESPACE), dict_of({"marked": value(1), "__class__": value(2)}))
    found = load_pickled(write(tmp_path / "a.pt", own))
    assert (found.marked, type(found)) == (1, argparse.Namespace)
    assert not hasattr(load_pickled(write(tmp_path / "a.pt", call(NAMESPACE))), "marked")


@both_forms
@pytest.mark.parametrize(
    "function",
    [
        "torch.hub.load",
        "numpy.load",
        "types.CodeType",
        "torch.load",
        "torch._utils._import_dotted_name",
        "torch.serialization.add_safe_globals",
        "megatron.core.utils.get_attr_wrapped_model",
        "numpy.testing._private.utils.runstring",
        "signal.alarm",
        "builtins.list",
        "builtins.getattr",
        "copyreg.add_extension",
    ],
)
def test_calls_of_unknown_functions_are_refused_wherever_they_stand(
    function: str, write: Write, tmp_path: Path
) -> None:
    module, _, attribute = function.rpartition(".")
    calling = call(name(module, attribute), value("x"), value("y"))
    inside_stub = call(name("megatron.core", "Anything"), calling)
    for content in (
        calling,
        dict_of({"model": dict_of({}), "args": build(call(NAMESPACE), dict_of({"x": calling}))}),
        build(inside_stub, list_of(value(1))),
        calling + b"0" + dict_of({}),  # thrown away again
    ):
        path = write(tmp_path / "a.pt", content)
        message = refusal(lambda path=path: load_pickled(path))
        assert f"its pickle wants to call {function}, which no checkpoint needs" in message


@both_forms
def test_what_makes_tensors_without_their_bytes_is_inert(write: Write, tmp_path: Path) -> None:
    """PyTorch's own reader calls these, which returns memory that was used before."""
    for function in (name("torch", "Tensor"), name("torch", "FloatTensor")):
        found = load_pickled(write(tmp_path / "a.pt", call(function, value(HUGE))))
        assert isinstance(found, Stub)
        assert found.arguments == (HUGE,)
    path = write(tmp_path / "a.pt", call(name("torch.storage", "UntypedStorage"), value(HUGE)))
    assert "calls an object of type dtype" in refusal(lambda: load_pickled(path))
    for kind in ("_rebuild_qtensor", "_rebuild_sparse_tensor", "_rebuild_wrapper_subclass"):
        path = write(tmp_path / "a.pt", call(name("torch._utils", kind), value(HUGE)))
        assert f"not supported (torch._utils.{kind})" in refusal(lambda path=path: load_pickled(path))


BEYOND: Mapping[str, tuple[bytes, str]] = {
    "shape": (tensor(storage("0", 4), (5,), (1,)), "exceeds its storage"),
    "stride": (tensor(storage("0", 4), (2,), (4,)), "exceeds its storage"),
    "offset": (tensor(storage("0", 4), (1,), (1,), 4), "exceeds its storage"),
    "negative offset": (tensor(storage("0", 4), (1,), (1,), -1), "not natural numbers"),
    "negative stride": (tensor(storage("0", 4), (2,), (-1,), 1), "not natural numbers"),
    "negative shape": (tensor(storage("0", 4), (-1, -4), (1, 1)), "not natural numbers"),
    "repeated": (tensor(storage("0", 4), (10**12,), (0,)), "exceeds its storage"),
    "overflow": (tensor(storage("0", 4), (2**33, 2**33), (2**62, 2**62)), "a shape that no tensor has"),
    "empty overflow": (tensor(storage("0", 4), (0, 2**40, 2**40), (1, 1, 1)), "a shape that no tensor has"),
    "dimensions": (tensor(storage("0", 4), (1,) * 100_000, (1,) * 100_000), "a shape that no tensor has"),
    "unlike": (tensor(storage("0", 4), (1, 1), (1,)), "not natural numbers"),
    "fractions": (tensor(storage("0", 4), (1.5,), (1,)), "not natural numbers"),  # type: ignore[arg-type]
    "storage": (tensor(storage("0", HUGE), (HUGE,), (1,)), "said are"),
    "negative storage": (tensor(storage("0", -4), (4,), (1,)), "without type, key or length"),
    "wild storage": (tensor(storage("0", 2**62), (1,), (1,)), "said are"),
    "wider type": (tensor(storage("0", 4, "DoubleStorage"), (4,), (1,)), "said are|ends early"),
    "unknown key": (tensor(storage("7", 4), (4,), (1,)), "without data/7|7 is not in the file"),
    "path": (tensor(storage("../version", 1, "ByteStorage"), (1,), (1,)), "without data|is not in the file"),
    "two lengths": (list_of(GOOD, tensor(storage("0", 3), (3,), (1,))), "two types or lengths|said are"),
    "two types": (list_of(GOOD, tensor(storage("0", 4, "IntStorage"), (4,), (1,))), "two types|said are"),
    "a view": (tensor(storage("0", 4, view=("1", 0, 2)), (4,), (1,)), "is a view of another"),
    "no storage": (tensor(value(3), (4,), (1,)), "a tensor without storage"),
    "no id": (value("storage") + b"Q", "a persistent id that is not a storage's"),
}  # fmt: skip


@both_forms
@pytest.mark.parametrize(("content", "told"), BEYOND.values(), ids=BEYOND.keys())
def test_no_tensor_reaches_beyond_its_storage(
    content: bytes, told: str, write: Write, tmp_path: Path
) -> None:
    path = write(tmp_path / "a.pt", content)
    message = refusal(lambda: load_pickled(path))
    assert any(part in message for part in told.split("|")), message


def test_old_files_hold_all_that_their_storages_claim(tmp_path: Path) -> None:
    big = tensor(storage("0", HUGE), (HUGE,), (1,))
    path = tmp_path / "a.pt"
    for storages, keys in (
        ([], None),  # of which the old reader made memory that was used before
        ([("0", HUGE, FOUR)], None),
        ([("0", 4, FOUR)], None),
        ([("0", -1, FOUR)], None),
        ([("0", 2**62, FOUR)], None),
        ([("0", 4, FOUR)], ["0", "0"]),
        ([], ["0"]),
        ([("0", 4, FOUR)], ["5"]),
        ([("0", 4, FOUR)], 3),
        ([("0", 4, FOUR)], [["0"]]),
    ):
        write_legacy(path, big, storages, keys=keys)
        assert "cannot be read as a file of torch.save" in refusal(lambda: load_pickled(path))


def test_zip_files_hold_all_that_their_storages_claim(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.pt", GOOD, {"0": FOUR[:-1]})
    assert "storage 0 has 15 bytes, said are 16" in refusal(lambda: load_pickled(path))
    content = write_zip(path, GOOD, {"0": FOUR}).read_bytes()
    for field, width, number in ((24, 4, 2**31), (20, 4, 2**31), (42, 4, 2**31), (42, 4, 7)):
        for entry in range(content.count(b"PK\x01\x02")):
            at = -1
            for _ in range(entry + 1):
                at = content.index(b"PK\x01\x02", at + 1)
            wrong = bytearray(content)
            wrong[at + field : at + field + width] = number.to_bytes(width, "little")
            path.write_bytes(wrong)
            found = None
            try:
                found = load_pickled(path)
            except CheckpointError as error:
                assert "\n" not in str(error)  # either is right
            assert found is None or (found.numel(), found.untyped_storage().nbytes()) == (4, 16)


def test_compression_is_refused_before_it_is_undone(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.pt", GOOD, {"0": FOUR}, compress=True)
    message = refusal(lambda: load_pickled(path))
    assert "is compressed or encrypted, which torch.save never does" in message
    content = bytearray(path.read_bytes())
    begin = content.index(b"data.pkl") + len("data.pkl")
    content[begin : begin + 20] = b"\xff" * 20  # no valid stream, of which zlib.error came
    path.write_bytes(content)
    assert "is compressed or encrypted" in refusal(lambda: load_pickled(path))


def test_a_damaged_pickle_in_a_zip_is_told_by_its_checksum(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.pt", dict_of({"name": value("abcdef")}), {})
    content = path.read_bytes().replace(b"abcdef", b"abcdeg")
    path.write_bytes(content)
    assert "the checksum of data.pkl is wrong" in refusal(lambda: load_pickled(path))


DEEP = 100_000
A_STUB = name("megatron.core", "A")
NESTED: Mapping[str, tuple[bytes, str]] = {
    "lists": (b"]" * DEEP + b"a" * (DEEP - 1), "nested more than 100 deep"),
    "tuples": (b")" + b"\x85" * DEEP, "nested more than 100 deep"),
    "dicts": (b"}" + (value("x") + b"}") * DEEP + b"s" * DEEP, "nested more than 100 deep"),
    "stubs": ((A_STUB + b"(") * DEEP + b"tR" * DEEP, "nested more than 100 deep"),
    "states": (call(A_STUB) * DEEP + b"b" * (DEEP - 1), "nested more than 100 deep"),
    "a key": (b"})" + b"\x85" * DEEP + value(1) + b"s", "type tuple in a key"),
    "a set": (call(name("builtins", "set"), list_of(b")" + b"\x85" * DEEP)), "type tuple in a key"),
    "linked": (b"]q\x00" + b"]h\x00aq\x00" * DEEP, "nested more than 100 deep"),
    "linked in a list": (b"](]q\x00" + b"]h\x00aq\x00" * DEEP + b"e", "nested more than 100 deep"),
    "itself": (b"]q\x00h\x00a", "holds itself"),
    "doubled": (b"]q\x00" + b"](h\x00h\x00eq\x00" * 60, "or without bound"),
    "doubled in a key": (b"})q\x00" + b"0h\x00h\x00\x86q\x00" * 60 + value(1) + b"s", "in a key"),
}


@both_forms
@pytest.mark.parametrize(("content", "told"), NESTED.values(), ids=NESTED.keys())
def test_deep_or_endless_nesting_is_an_error_of_one_line(
    content: bytes, told: str, write: Write, tmp_path: Path
) -> None:
    path = write(tmp_path / "a.pt", content)
    assert told in refusal(lambda: load_pickled(path))


@both_forms
@pytest.mark.parametrize(
    "content",
    [
        b"h\x07",  # from a memo that is empty
        b"q\x00",  # to the memo, of nothing
        b"0",
        b"t",
        b"a",
        b"s",
        b"R",
        b"b",
        b"]" + value(1) + b"u",
        b"}(" + value(1) + b"u",  # a key without a value
        value(1) + b"r\xff\xff\xff\xff" + b"0",  # a memo of 4 billion entries
        b"\x8d" + struct.pack("<Q", 2**62),  # a text longer than memory
        b"\x8e" + struct.pack("<Q", 2**62),
        b"\x96" + struct.pack("<Q", 2**40),
        b"\x8b" + struct.pack("<i", -1),
        b"L" + b"9" * 5000 + b"L\n",
        b"\x82\x01",  # an extension of copyreg's registry
        b"\x97",  # a buffer from outside
        b"(" + name("argparse", "Namespace") + b"o",
        b"iargparse\nNamespace\n",
        b"P0\n",
        b"\xff",
        value(1) + value("x") + b"\x93",
        list_of(value([])) + value(1) + b"\x86" + b"}" + value(1) + b"s",
        name("builtins", "set")[:-1],
    ],
)  # fmt: skip
def test_senseless_opcodes_are_errors_of_one_line(content: bytes, write: Write, tmp_path: Path) -> None:
    path = write(tmp_path / "a.pt", content)
    assert "cannot be read as a file of torch.save" in refusal(lambda: load_pickled(path))
    plain = tmp_path / ".metadata"
    plain.write_bytes(b"\x80\x02" + content + b".")
    assert "cannot be read as a file of torch.save" in refusal(lambda: load_plain_pickle(plain))


def test_names_in_messages_are_of_one_line(tmp_path: Path) -> None:
    pickled = pickle.dumps("os\n\x1b[2Jfine", 4)[2:-1] + pickle.dumps("x" * 10_000, 4)[2:-1] + b"\x93"
    path = write_zip(tmp_path / "a.pt", pickled)
    assert r"os\n\x1b[2Jfine.xxx" in refusal(lambda: load_pickled(path))


@pytest.mark.parametrize("key", ["\n", "0\x1b[2J", "0" * 10_000])
def test_keys_of_storages_in_messages_are_of_one_line(key: str, tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.pt", tensor(storage(key, 4), (4,), (1,)))
    assert f"a storage of the key {key[:200]!r}" in refusal(lambda: load_pickled(path))


def test_a_part_of_a_file_lies_within_it(tmp_path: Path) -> None:
    path = tmp_path / "a.distcp"
    torch.save(torch.arange(3), path)
    size = path.stat().st_size
    assert load_pickled_part(path, 0, size).tolist() == [0, 1, 2]
    for offset, length in ((-1, size), (0, -1), (0, 2**62), (size + 1, 0), (5, size), (size, 0)):
        assert "cannot be read" in refusal(
            lambda offset=offset, length=length: load_pickled_part(path, offset, length)
        )


def test_tensors_with_attributes_and_enums_by_name_are_read(tmp_path: Path) -> None:
    """Megatron-LM sets attributes on its fp32 weights; Python 3.11.2 saves enums by getattr."""
    tagged: Any = torch.ones(3)
    tagged.partition_dim = 0
    state = {"weight": tagged, "list": collections.defaultdict(dict, {"a": {1: 2}})}
    torch.save(state, tmp_path / "a.pt")
    found = load_pickled(tmp_path / "a.pt")
    assert torch.equal(found["weight"], torch.ones(3))
    assert found["list"] == {"a": {1: 2}}
    member = call(name("builtins", "getattr"), name("megatron.core.enums", "ModelType"), value("gpt"))
    found = load_pickled(as_zip(tmp_path / "b.pt", member))
    assert repr(found) == "ModelType('gpt')"
    for owner in (name("os", "path"), name("megatron.core", "enums"), value("text")):
        looked_up = call(name("builtins", "getattr"), owner, value("__class__"))
        path = as_zip(tmp_path / "b.pt", looked_up)
        assert "wants to call" in refusal(lambda path=path: load_pickled(path))


def test_a_file_may_be_a_zip_that_names_a_record_twice(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.pt", GOOD, {"0": FOUR})
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("archive/data/0", FOUR[:8])
    assert "storage 0 has 8 bytes" in refusal(lambda: load_pickled(path))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, dict[str, bytes]]:
    """The pickle and the storages of a file that torch.save wrote."""
    path = tmp_path_factory.mktemp("saved") / "a.pt"
    args = argparse.Namespace(lr=0.1, state=np.random.get_state(), dtype=torch.float16, stop=signal.SIGTERM)
    tensors = {"a": torch.arange(6.0).reshape(2, 3).T, "b": torch.arange(3)}
    torch.save({"model": tensors, "args": args, "optimizer": {"state": {0: [(1, 2.5), {3}]}}}, path)
    with zipfile.ZipFile(path) as archive:
        return archive.read("a/data.pkl"), {key: archive.read(f"a/data/{key}") for key in "01"}


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4))
def test_a_pickle_with_changed_bytes_is_read_or_refused(
    changes: list[tuple[int, int]], saved: tuple[bytes, dict[str, bytes]], tmp_path: Path
) -> None:
    path, content = tmp_path / "a.pt", bytearray(saved[0])
    for place, byte in changes:
        content[place % len(content)] = byte
    write_zip(path, bytes(content[2:-1]), saved[1])
    try:
        found = load_pickled(path)
    except CheckpointError as error:
        assert "\n" not in str(error)
    else:
        for tensor in found["model"].values() if isinstance(found, dict) and "model" in found else ():
            assert not isinstance(tensor, torch.Tensor) or tensor.untyped_storage().nbytes() <= 24
