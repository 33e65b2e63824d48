"""Weights on disk: what was saved comes back, and whatever else is in a file is refused in one line."""

import json
import os
import pickle
import struct
import sys
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from charact.core.errors import UserError
from charact.measure.training.weight_files import State, load_weights, read_outlines, read_weights, save_weights

DAMAGED = "is not a file of weights, or is damaged"


def network(seed: int, num_outputs: int = 2) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, num_outputs))


class Tied(nn.Module):
    """Two layers that share one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight


class RunsCode:
    """What pickles to a call that leaves a file behind."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.trace),)


def assert_equal(model: nn.Module, other: nn.Module) -> None:
    ours, theirs = model.state_dict(), other.state_dict()
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def refusal(path: Path, model: nn.Module | None = None) -> str:
    with pytest.raises(UserError) as caught:
        load_weights(model or network(1), path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def save_weights_of(state: State, path: Path) -> None:
    model = network(3)
    model.load_state_dict(state)
    save_weights(model, path)


class TestRoundTrip:
    @pytest.mark.parametrize(("name", "save"), [
        ("w.pt", save_weights_of), ("w.pth", partial(torch.save, _use_new_zipfile_serialization=False)),
        ("w.safetensors", lambda state, path: pytest.importorskip("safetensors.torch").save_file(state, path)),
        *(("w.pt", lambda state, path, place=place: torch.save({"epoch": 3, place: state, "lr": 0.1}, path))
          for place in ("model", "state_dict", "weights")),
    ], ids=["own", "older format of torch", "safetensors", "checkpoint: model", "state_dict", "weights"])
    def test_saved_weights_come_back_equal(self, tmp_path: Path, name: str, save: Callable[[Any, Path], Any]) -> None:
        saved, loaded = network(1), network(2)
        save(saved.state_dict(), tmp_path / name)
        load_weights(loaded, tmp_path / name)
        assert_equal(loaded, saved)
        assert [path.name for path in tmp_path.iterdir()] == [name]

    def test_shared_weights_that_safetensors_stores_once(self, tmp_path: Path) -> None:
        safetensors = pytest.importorskip("safetensors.torch")
        saved, loaded = Tied(), Tied()
        safetensors.save_model(saved, str(tmp_path / "w.safetensors"))
        assert len(read_weights(tmp_path / "w.safetensors")) == 1
        load_weights(loaded, tmp_path / "w.safetensors")
        assert_equal(loaded, saved)

    def test_they_are_converted_to_the_models_type(self, tmp_path: Path) -> None:
        saved, loaded = network(1), network(2)
        save_weights(saved.to(torch.bfloat16), tmp_path / "w.pt")
        load_weights(loaded, tmp_path / "w.pt")
        assert loaded[0].weight.dtype == torch.float32
        assert torch.equal(loaded[0].weight, saved[0].weight.float())


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, OSError])
def test_what_breaks_writing_off_is_told_and_leaves_nothing(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interruption: type[BaseException]) -> None:
    class Breaks:
        """A file that is broken off when it is written to; torch then says something else."""

        def __enter__(self) -> "Breaks":
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def write(self, content: bytes) -> int:
            raise interruption(28, "No space left on device")

        def flush(self) -> None:
            pass

    (tmp_path / "w.pt").write_text("here before")
    monkeypatch.setattr(Path, "open", lambda *_: Breaks())
    with pytest.raises(UserError if interruption is OSError else KeyboardInterrupt):
        save_weights(network(1), tmp_path / "w.pt")
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["w.pt"]
    assert (tmp_path / "w.pt").read_text() == "here before"


class TestRefused:
    @pytest.mark.parametrize("save", [torch.save, lambda content, path: path.write_bytes(pickle.dumps(content, 2))])
    def test_a_pickle_that_would_run_code_does_not(self, tmp_path: Path, save: Callable[[Any, Path], Any]) -> None:
        save({"model": RunsCode(tmp_path / "ran")}, tmp_path / "w.pt")
        assert "is not read, because that could run code: save only model.state_dict()" in refusal(tmp_path / "w.pt")
        assert not (tmp_path / "ran").exists()

    def test_a_pickle_of_a_newer_protocol(self, tmp_path: Path) -> None:
        (tmp_path / "w.pt").write_bytes(pickle.dumps(RunsCode(tmp_path / "ran"), protocol=5))
        assert str(tmp_path / "w.pt") in refusal(tmp_path / "w.pt")
        assert not (tmp_path / "ran").exists()

    def test_a_whole_module(self, tmp_path: Path) -> None:
        torch.save(network(1), tmp_path / "w.pt")
        assert "that could run code: save only model.state_dict()" in refusal(tmp_path / "w.pt")

    @pytest.mark.parametrize("content", [[1, 2], {"epoch": 3}, {}, torch.zeros(2), {"model": {"a": 1}}])
    def test_a_file_without_a_state_dict(self, tmp_path: Path, content: Any) -> None:
        torch.save(content, tmp_path / "w.pt")
        assert "holds no state dict, neither by itself nor as model, state_dict, weights" in refusal(tmp_path / "w.pt")

    @pytest.mark.parametrize("name", ["w.pt", "w.safetensors"])
    @pytest.mark.parametrize("content", [b"", b"weights, they say\n", bytes(4096)])
    def test_a_file_of_something_else(self, tmp_path: Path, name: str, content: bytes) -> None:
        (tmp_path / name).write_bytes(content)
        assert DAMAGED in refusal(tmp_path / name) or "that could run code" in refusal(tmp_path / name)

    def test_a_place_without_a_file(self, tmp_path: Path) -> None:
        assert "w.pt not found: name a file written by torch.save" in refusal(tmp_path / "w.pt")
        assert "not found: name a file written by torch.save" in refusal(tmp_path)

    def test_safetensors_where_the_package_is_not(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "safetensors.torch", None)
        (tmp_path / "w.safetensors").write_bytes(b"")
        assert 'pip install "charact[safetensors]"' in refusal(tmp_path / "w.safetensors")

    def test_other_classes(self, tmp_path: Path) -> None:
        save_weights(network(1, num_outputs=5), tmp_path / "w.pt")
        assert "does not fit: its 2.weight is 5×4, the model's 2×4; give the --variant" in refusal(tmp_path / "w.pt")

    def test_another_model(self, tmp_path: Path) -> None:
        save_weights(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2), nn.Linear(2, 2)), tmp_path / "w.pt")
        message = refusal(tmp_path / "w.pt")
        assert "it lacks 1.weight and 4 more and it holds 3.weight and 1 more, which the model does not" in message
        assert "name the workload and --variant" in message

    def test_a_file_that_may_not_be_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def forbidden(*_: Any, **__: Any) -> None:
            raise PermissionError(13, "Permission denied")

        save_weights(network(1), tmp_path / "w.pt")
        monkeypatch.setattr(torch, "load", forbidden)
        assert "w.pt is not readable for you: name another file" in refusal(tmp_path / "w.pt")

    def test_running_out_of_memory_is_no_fault_of_the_file(
            self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def no_memory(*_: Any, **__: Any) -> None:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 64 bytes")

        save_weights(network(1), tmp_path / "w.pt")
        monkeypatch.setattr(torch, "load", no_memory)
        with pytest.raises(RuntimeError, match="can't allocate memory"):
            read_weights(tmp_path / "w.pt")


def damaged(content: bytes, cut: float, flips: list[tuple[float, int]]) -> bytes:
    changed = bytearray(content[: int(cut * len(content))])
    for place, mask in flips:
        if changed:
            changed[int(place * (len(changed) - 1))] ^= mask
    return bytes(changed)


def read_or_refusal(path: Path) -> State | str:
    try:
        read_outlines(path, network(1))
        return read_weights(path)
    except UserError as error:
        return str(error)


@pytest.mark.parametrize("kind", ["zip", "legacy", "safetensors"])
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.sampled_from([1.0, 0.99, 0.5, 0.1]), flips=st.lists(
    st.tuples(st.floats(0, 1), st.integers(1, 255)), max_size=4))
def test_a_damaged_file_is_refused_or_gives_tensors(
        tmp_path: Path, kind: str, cut: float, flips: list[tuple[float, int]]) -> None:
    path = tmp_path / ("w.safetensors" if kind == "safetensors" else "w.pt")
    if kind == "safetensors":
        pytest.importorskip("safetensors.torch").save_file(network(1).state_dict(), path)
    else:
        torch.save(network(1).state_dict(), path, _use_new_zipfile_serialization=kind == "zip")
    path.write_bytes(damaged(path.read_bytes(), cut, flips))
    found = read_or_refusal(path)
    if isinstance(found, str):
        assert "\n" not in found
    else:
        assert all(isinstance(tensor, torch.Tensor) for tensor in found.values())


def rewritten(path: Path, change: Callable[[bytes], bytes], **members: bytes) -> Path:
    """A file of weights whose pickle is changed, and other members added."""
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in contents.items():
            archive.writestr(name, change(content) if name.endswith("/data.pkl") else content)
        for name, content in members.items():
            archive.writestr(f"{name}", content)
    return path


class TestHostile:
    """Files that would run code, replace a method or disagree with themselves."""

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        torch.save({"a": torch.arange(4.0)}, tmp_path / "w.pt")
        return tmp_path / "w.pt"

    def test_the_same_file_unchanged_is_read(self, path: Path) -> None:
        rewritten(path, bytes)
        assert read_outlines(path, network(1))["a"].shape == (4,)
        assert read_weights(path)["a"].tolist() == [0, 1, 2, 3]

    @pytest.mark.parametrize("program", [
        b"\x80\x02cbuiltins\nbytearray\n\x8a\x06\0\0\0\0\0\x01\x85R.",
        b"\x80\x02c_codecs\nencode\nX\x01\0\0\0aX\x04\0\0\0zlib\x86R.",
        b"\x80\x02ccollections\nOrderedDict\n](K\x01e\x85R.",
        b"\x80\x02ccollections\nOrderedDict\n)R}X\x05\0\0\0itemsK\x01sb.",  # replaces a method
        b"\x80\x02ctorch._utils\n_rebuild_meta_tensor_no_storage\n.",
        b"\x80\x02cbuiltins\neval\nX\x01\0\0\0001\x85R.",
    ])
    def test_a_pickle_that_would_do_harm(self, path: Path, program: bytes) -> None:
        message = refusal(rewritten(path, lambda _: program))
        assert DAMAGED in message or "that could run code" in message or "holds no state dict" in message

    @pytest.mark.parametrize(("before", "after"), [
        (b"K\x04tq\x07Q", b"J\xff\xff\xff\x7ftq\x07Q"),  # more elements than the file has bytes
        (b"QK\0K\x04\x85", b"QK\0K\x05\x85"),  # a tensor beyond its storage
        (b"QK\0K\x04\x85", b"QK\x01K\x04\x85"),
        (b"K\x01\x85q\x09", b"K\x02\x85q\x09"),
        (b"torch\nFloatStorage", b"torch\nDoubleStorage"),
        (b"X\x01\0\0\0000q", b"X\x01\0\0\0001q"),
    ])
    def test_tensors_that_disagree_with_their_bytes(self, path: Path, before: bytes, after: bytes) -> None:
        def change(content: bytes) -> bytes:
            assert content.count(before) == 1
            return content.replace(before, after)

        with pytest.raises(UserError, match=DAMAGED):
            read_weights(rewritten(path, change))

    def test_a_file_many_times_as_large_as_the_model(self, path: Path) -> None:
        os.truncate(path, 2**40)  # takes no space
        message = refusal(path)
        assert "has 1024.0 GiB, the limit is 1.0 GiB: if you trust it, raise the limit with CHARACT_" in message

    @pytest.mark.parametrize("digit", [0, 1])
    def test_an_old_file_that_passes_for_a_tar_archive(self, path: Path, digit: int) -> None:
        torch.save({"a": torch.arange(4.0)}, path, _use_new_zipfile_serialization=False)
        content = path.read_bytes()
        facts = b"\x80\x02}X" + struct.pack("<I", 500) + b" " * 500 + b"K\x01s."
        begin, _, end = content.partition(b"\x80\x02}q\x00(X\x10\0\0\0protocol_version")
        changed = bytearray(begin + facts + end[end.index(b".\x80\x02") + 1:])
        checksum = sum(changed[:148]) + 256 + sum(changed[156:512])
        changed[148:156] = f"{checksum + digit:07o}\0".encode()
        path.write_bytes(changed)
        if digit:
            assert read_outlines(path, network(1))["a"].shape == (4,)
            assert read_weights(path)["a"].tolist() == [0, 1, 2, 3]
        else:
            assert DAMAGED in refusal(path)

    @pytest.mark.parametrize("header", [
        {"a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 16]}},
        {"a": {"dtype": "F32", "shape": [4], "data_offsets": [4, 20]}},
        {"a": {"dtype": "F32", "shape": [-4], "data_offsets": [0, 16]}},
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}},
        {"a": {"dtype": "X9", "shape": [4], "data_offsets": [0, 16]}},
        {"a": {"dtype": "F32", "shape": [4.0], "data_offsets": [0, 16]}},
        {"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}, "__metadata__": {"b": 1}},
        [], {"a": 1}, [[[]]],
    ])
    def test_a_header_that_disagrees_with_its_bytes(self, path: Path, header: Any) -> None:
        pytest.importorskip("safetensors")
        content = json.dumps(header).encode()
        path = path.with_name("w.safetensors")
        path.write_bytes(struct.pack("<Q", len(content)) + content + bytes(16))
        assert DAMAGED in refusal(path)

    def test_names_that_would_fill_several_lines(self, path: Path) -> None:
        torch.save({"a\nb\x1b[31m" + "c" * 5000: torch.arange(4.0)}, path)
        message = refusal(path)
        assert "\x1b" not in message
        assert len(message) < 500
