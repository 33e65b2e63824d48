"""Weights on disk: what was saved comes back, and whatever else is in a file is refused in one line."""

import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from charact.errors import UserError
from charact.measure.out_of_memory import is_out_of_memory, reason_line
from charact.measure.weights import State, load_weights, read_weights, save_weights

DAMAGED = "is no file of weights, or is damaged"


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


class TestRoundTrip:
    def test_saved_weights_come_back_equal(self, tmp_path: Path) -> None:
        saved, loaded = network(1), network(2)
        save_weights(saved, tmp_path / "w.pt")
        load_weights(loaded, tmp_path / "w.pt")
        assert_equal(loaded, saved)
        assert [path.name for path in tmp_path.iterdir()] == ["w.pt"]

    @pytest.mark.parametrize("place", ["model", "state_dict", "weights"])
    def test_a_checkpoint_that_holds_them_among_other_things(self, tmp_path: Path, place: str) -> None:
        saved, loaded = network(1), network(2)
        torch.save({"epoch": 3, place: saved.state_dict(), "optimizer": {"lr": 0.1}}, tmp_path / "w.pt")
        load_weights(loaded, tmp_path / "w.pt")
        assert_equal(loaded, saved)

    def test_the_older_format_of_torch(self, tmp_path: Path) -> None:
        saved, loaded = network(1), network(2)
        torch.save(saved.state_dict(), tmp_path / "w.pth", _use_new_zipfile_serialization=False)
        load_weights(loaded, tmp_path / "w.pth")
        assert_equal(loaded, saved)

    def test_safetensors(self, tmp_path: Path) -> None:
        safetensors = pytest.importorskip("safetensors.torch")
        saved, loaded = network(1), network(2)
        safetensors.save_file(saved.state_dict(), tmp_path / "w.safetensors")
        load_weights(loaded, tmp_path / "w.safetensors")
        assert_equal(loaded, saved)

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
        # A pickle by itself is in no format of PyTorch's.
        assert ("its pickle names 'posix.mkdir'" if save is torch.save else DAMAGED) in refusal(tmp_path / "w.pt")
        assert not (tmp_path / "ran").exists()

    def test_a_pickle_of_a_newer_protocol(self, tmp_path: Path) -> None:
        (tmp_path / "w.pt").write_bytes(pickle.dumps(RunsCode(tmp_path / "ran"), protocol=5))
        assert str(tmp_path / "w.pt") in refusal(tmp_path / "w.pt")
        assert not (tmp_path / "ran").exists()

    def test_a_whole_module(self, tmp_path: Path) -> None:
        torch.save(network(1), tmp_path / "w.pt")
        assert "names 'torch.nn.modules.container.Sequential': save model.state_dict() by itself" in refusal(
            tmp_path / "w.pt")

    @pytest.mark.parametrize("content", [[1, 2], {"epoch": 3}, {}, torch.zeros(2), {"model": {"a": 1}}])
    def test_a_file_without_a_state_dict(self, tmp_path: Path, content: Any) -> None:
        torch.save(content, tmp_path / "w.pt")
        assert "holds no state dict, neither by itself nor as model, state_dict, weights" in refusal(tmp_path / "w.pt")

    @pytest.mark.parametrize("name", ["w.pt", "w.safetensors"])
    @pytest.mark.parametrize("content", [b"", b"weights, they say\n", bytes(4096)])
    def test_a_file_of_something_else(self, tmp_path: Path, name: str, content: bytes) -> None:
        (tmp_path / name).write_bytes(content)
        assert DAMAGED in refusal(tmp_path / name)

    def test_a_place_without_a_file(self, tmp_path: Path) -> None:
        assert "there is no file of weights" in refusal(tmp_path / "w.pt")
        assert "there is no file of weights" in refusal(tmp_path)

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
        assert "w.pt may not be read by you: name another file" in refusal(tmp_path / "w.pt")

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
        return read_weights(path)
    except UserError as error:
        return str(error)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):  # a size was hit: an outcome that is recorded
            raise
        return reason_line(error)


@pytest.mark.parametrize("kind", ["zip", "legacy", "safetensors"])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
