"""Exported programs in files: read without running what they may hold."""

import io
import json
import pickle
import re
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from charact.bricks.capture.capture import capture
from charact.bricks.capture.exported_file import read_saved
from charact.bricks.commands._generate import sources_of
from charact.bricks.suite.captured_graph import LEAF_KINDS
from charact.core.bounded_reading import limited_to
from charact.core.errors import UserError


class Net(nn.Module):
    """A bit of everything that the format writes."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.rnn = nn.LSTM(4, 4, batch_first=True)
        self.register_buffer("places", torch.arange(36.0), persistent=False)
        self.out = nn.Linear(4, 4)

    def forward(self, image: Tensor, *, mask: Tensor, unused: Tensor | None = None) -> dict[str, Tensor]:
        """Image (2, 3, 8, 8) and mask (2, 36) to tensors by name."""
        x = torch.relu_(self.norm(self.convolution(image))).flatten(2) + self.places
        first, second = x.transpose(1, 2).to(torch.float64).float().split(18, 1)
        x, _ = self.rnn(torch.cat([first, second], 1))
        x = x.masked_fill(mask[:, :, None], float("-inf")).nan_to_num(neginf=0.0)
        return {"last": self.out(x[:, -1]), "made": x.new_zeros(3, device=x.device), "scaled": torch.tensor(2.0) * x}


INPUTS = (torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0)),)
NAMED = {"mask": torch.arange(72).reshape(2, 36) % 5 == 0}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Net]:
    torch.manual_seed(0)
    net = Net().eval()
    path = tmp_path_factory.mktemp("saved") / "net.pt2"
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's, of the list in which recurrent layers hold their weights
        program = torch.export.export(net, INPUTS, NAMED, strict=False)
    torch.export.save(program, path)
    return path, net


def changed(path: Path, to: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    """A copy of a file with other parts."""
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    change(parts)
    with zipfile.ZipFile(to, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return to


def in_json(name: str, change: Callable[[Any], None]) -> Callable[[dict[str, bytes]], None]:
    def apply(parts: dict[str, bytes]) -> None:
        full = next(each for each in parts if each.endswith(name))
        content = json.loads(parts[full])
        change(content)
        parts[full] = json.dumps(content).encode()

    return apply


def node(content: Any, number: int = 0) -> Any:
    return content["graph_module"]["graph"]["nodes"][number]


def test_a_file_gives_what_the_model_gives(saved: tuple[Path, Net]) -> None:
    path, net = saved
    source, = sources_of([str(path)])
    with torch.inference_mode():
        built = source.build()
        found = built.workload.forward(built.model, built.batch)
        wanted = list(net(*INPUTS, **NAMED).values())
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    assert re.fullmatch(r"net\.[0-9a-f]{6}-8-b2-infer-fp32", source.id)


def test_a_file_is_captured_as_the_model_is(saved: tuple[Path, Net]) -> None:
    source, = sources_of([str(saved[0])])
    captured = capture(source)
    kinds = list(captured.leaves.values())
    assert [kinds.count(kind) for kind in LEAF_KINDS] == [2, 10, 4, 0]
    assert [layer.operator.split(".")[1] for layer in captured.layers][:4] == [
        "conv2d", "batch_norm", "relu_", "flatten"]
    assert captured.num_parameters == sum(parameter.numel() for parameter in saved[1].parameters())
    assert captured.notes == []


def test_inputs_that_are_no_plain_tensors_are_made_up(saved: tuple[Path, Net], tmp_path: Path) -> None:
    def drop(parts: dict[str, bytes]) -> None:
        del parts[next(name for name in parts if "sample_inputs" in name)]

    found = read_saved(changed(saved[0], tmp_path / "made.pt2", drop))
    image, mask = (found.leaves[value][1] for value in found.inputs)
    assert image.shape == (2, 3, 8, 8)
    assert image.std().item() == pytest.approx(1, abs=0.2)
    assert (mask.dtype, int(mask.sum())) == (torch.bool, 0)


class Evil:
    """Would leave a file behind if it were unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("place", ["weights/weight_0", "constants/tensor_0", "sample_inputs/model.pt"])
def test_nothing_is_unpickled(saved: tuple[Path, Net], tmp_path: Path, place: str) -> None:
    def poison(parts: dict[str, bytes]) -> None:
        name = next(each for each in parts if each.endswith(place))
        if place.startswith("sample"):
            buffer = io.BytesIO()
            torch.save(Evil(tmp_path / "ran"), buffer)
            parts[name] = buffer.getvalue()
            return
        parts[name] = pickle.dumps(Evil(tmp_path / "ran"))
        config = next(each for each in parts if each.endswith(f"{place.split('/')[0]}_config.json"))
        content = json.loads(parts[config])
        for entry in content["config"].values():
            entry["use_pickle"] = True
        parts[config] = json.dumps(content).encode()

    path = changed(saved[0], tmp_path / "evil.pt2", poison)
    with pytest.raises(UserError, match="would have to be unpickled, which could run code") as raised:
        read_saved(path)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(("change", "message"), [
    (lambda content: node(content).update(target="torch.ops.other.thing.default"), "thing.default is not a PyTorch"),
    (lambda content: node(content).update(target="os.system"), "its operator os.system is not a PyTorch operator"),
    (lambda content: content["schema_version"].update(major=9), "its format version is 9, charact reads 8"),
    (lambda content: node(content)["inputs"][0].update(arg={"as_graph": {}}), "an argument of the kind as_graph"),
    (lambda content: node(content)["inputs"][0].update(arg={"as_sym_int": {"as_name": "s0"}}), "dynamic sizes"),
    (lambda content: node(content)["outputs"][0].update(as_tensor={"name": "nobody"}), "is damaged"),
    (lambda content: node(content).update(target="torch.ops.aten.no_such_thing.default"), "a brick may not call"),
    (lambda content: node(content).update(target="torch.ops.aten.from_file.default"), "a brick may not call"),
    (lambda content: node(content).update(target="torch.ops.aten.relu.no_such_thing"), "has no operator"),
    (lambda content: node(content)["inputs"].append(
        {"name": "x", "kind": 2, "arg": {"as_string": {"any": "load"}}}), "an unknown or repeated argument"),
    (lambda content: content.pop("graph_module"), "is damaged"),
])
def test_what_is_not_read_is_one_line(saved: tuple[Path, Net], tmp_path: Path, change: Callable[[Any], None],
                                      message: str) -> None:
    path = changed(saved[0], tmp_path / "other.pt2", in_json("models/model.json", change))
    with pytest.raises(UserError, match=message) as raised:
        read_saved(path)
    assert "\n" not in str(raised.value)


class TestLimits:
    def test_an_archive_that_unpacks_to_more_is_refused(self, saved: tuple[Path, Net], tmp_path: Path) -> None:
        def bomb(parts: dict[str, bytes]) -> None:
            parts[next(iter(parts)).partition("/")[0] + "/extra"] = bytes(2**26)

        path = changed(saved[0], tmp_path / "bomb.pt2", bomb)
        with limited_to(2**24), pytest.raises(UserError, match=r"unpacks to 64\.\d MiB, the limit is 16\.0 MiB"):
            read_saved(path)
        with limited_to(2**27):
            read_saved(path)

    def test_so_is_one_within_it(self, saved: tuple[Path, Net], tmp_path: Path) -> None:
        def bomb(parts: dict[str, bytes]) -> None:
            packed = io.BytesIO()
            with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
                archive.writestr("data/0", bytes(2**26))
            parts[next(each for each in parts if each.endswith("sample_inputs/model.pt"))] = packed.getvalue()

        path = changed(saved[0], tmp_path / "bomb.pt2", bomb)
        with limited_to(2**24), pytest.raises(UserError, match="the limit is"):
            read_saved(path)

    def test_so_are_made_up_inputs(self, saved: tuple[Path, Net], tmp_path: Path) -> None:
        def large(content: Any) -> None:
            graph = content["graph_module"]["graph"]
            for told in graph["tensor_values"].values():
                told["sizes"] = [{"as_int": 2**20}] * 2

        path = changed(saved[0], tmp_path / "large.pt2", in_json("models/model.json", large))
        with pytest.raises(UserError, match="the limit is"):
            read_saved(path)


def test_changing_sizes_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "dynamic.pt2"
    batch = torch.export.Dim("batch")
    program = torch.export.export(nn.Linear(4, 2), (torch.zeros(3, 4),), dynamic_shapes=({0: batch},), strict=False)
    torch.export.save(program, path)
    with pytest.raises(UserError, match="dynamic sizes: export it with static sizes"):
        read_saved(path)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_broken_file_is_a_mistake_of_the_users(saved: tuple[Path, Net], tmp_path: Path, data: st.DataObject) -> None:
    whole = bytearray(saved[0].read_bytes())
    if data.draw(st.booleans()):
        del whole[data.draw(st.integers(0, len(whole) - 1)):]
    else:
        for _ in range(data.draw(st.integers(1, 8))):
            whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "broken.pt2"
    path.write_bytes(whole)
    try:
        read_saved(path)
    except UserError as error:
        assert "\n" not in str(error)  # noqa: PT017  (a lucky change may leave it whole)


class Flagged(nn.Module):
    """Takes a flag and what may be left out, as models of transformers do."""

    def forward(self, x: Tensor, mask: Tensor | None = None, *, as_dict: bool = True) -> Any:
        """(N, 4) to the same."""
        x = x.relu() if mask is None else x * mask
        return {"x": x} if as_dict else x


def test_flags_stand_where_they_are_used(tmp_path: Path) -> None:
    path = tmp_path / "flagged.pt2"
    torch.export.save(torch.export.export(Flagged(), (torch.ones(2, 4), None), {"as_dict": False}, strict=False), path)
    source, = sources_of([str(path)])
    assert [layer.operator for layer in capture(source).layers] == ["aten.relu.default"]


@pytest.mark.parametrize(("dtype", "precision", "note"), [
    (torch.bfloat16, "pure-bf16", []),
    (torch.float64, "fp32", ["it computes in float64, as it was exported; the record calls this fp32"]),
])
def test_a_program_runs_in_the_types_that_it_was_exported_in(
        tmp_path: Path, dtype: torch.dtype, precision: str, note: list[str]) -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).to(dtype)
    torch.export.save(torch.export.export(net, (torch.ones(2, 4, dtype=dtype),)), tmp_path / "net.pt2")
    (source,) = sources_of([str(tmp_path / "net.pt2")])
    assert source.case.precision == precision
    captured = capture(source)
    assert {told.dtype for told in captured.types.values()} == {str(dtype).removeprefix("torch.")}
    assert captured.notes == note
