"""Devices that memory is predicted for: their sizes, their names, and amounts of memory as people write them."""

from types import SimpleNamespace

import psutil
import pytest
import torch

from charact.core.errors import UserError
from charact.measure.memory_estimate import target_devices
from charact.measure.memory_estimate.allocation_trace import AllocationTrace, Op
from charact.measure.memory_estimate.cuda_workspaces import held
from charact.measure.memory_estimate.target_devices import (
    GIB,
    MIB,
    parse_memory,
    target_like,
    target_of_memory,
    targets_of_about,
    this_device,
)


@pytest.mark.parametrize(("text", "num_bytes"), [
    ("16GiB", 17_179_869_184), ("16 gib", 17_179_869_184), ("16GB", 16_000_000_000), ("1.5TiB", 1_649_267_441_664),
    ("900MiB", 943_718_400), (".5KiB", 512), ("512", 512), ("512B", 512), (" 2 kb ", 2000),
])
def test_memory_is_read_as_it_is_written(text: str, num_bytes: int) -> None:
    assert parse_memory(text) == num_bytes


@pytest.mark.parametrize("text", ["", "GiB", "16 bananas", "-1GiB", "1e9", "16G", "nan", "16GiB,32GiB", "0", "0.1B",
                                  "2000TiB"])
def test_what_is_no_memory_is_refused_with_how_to_write_it(text: str) -> None:
    with pytest.raises(UserError, match="16GiB") as error:
        parse_memory(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("name", "nominal_gib"), [
    ("k80", 12), ("p100", 16), ("v100-16gb", 16), ("v100-32gb", 32), ("t4", 16), ("a100-40gb", 40), ("a100-80gb", 80),
    ("rtx3090", 24), ("rtx4090", 24), ("rtx5090", 32), ("l4", 24), ("l40s", 48), ("rtx6000-ada", 48),
    ("h100-80gb", 80), ("h200", 141e9 / GIB * 1.074), ("b200", 192e9 / GIB * 1.074),
])
def test_a_device_has_a_little_less_than_its_datasheet_says(name: str, nominal_gib: float) -> None:
    target = target_like(name)
    assert target.kind == "cuda"
    assert target.memory_bytes is not None
    assert 0.88 < target.memory_bytes / GIB / nominal_gib < 1
    assert 0 < target.context_bytes < 2**30
    assert target.source


def test_every_device_of_the_table_is_tested() -> None:
    tested = test_a_device_has_a_little_less_than_its_datasheet_says.pytestmark[0].args[1]  # type: ignore[attr-defined]
    assert {name for name, _ in tested} == set(target_devices._TABLE)


@pytest.mark.parametrize("name", ["A100-80GB", " a100 80gb", "a100_80GB"])
def test_a_name_may_be_written_in_several_ways(name: str) -> None:
    assert target_like(name) == target_like("a100-80gb")


@pytest.mark.parametrize(("name", "near"), [
    ("a100", "a100-40gb, a100-80gb"), ("RTX 4090", "rtx4090"), ("h10", "h100-80gb"), ("v100-64gb", "v100-16gb"),
    ("abacus", "k80"),
])
def test_an_unknown_device_is_refused_with_near_names(name: str, near: str) -> None:
    with pytest.raises(UserError, match=near):
        target_like(name)


def test_a_gpu_known_by_its_memory_has_a_context_and_a_cpu_has_none() -> None:
    gpu, cpu = target_of_memory(16 * GIB, "cuda"), target_of_memory(16 * GIB, "cpu")
    assert gpu.memory_bytes == cpu.memory_bytes == 16 * GIB
    assert gpu.context_bytes == target_like("a100-80gb").context_bytes
    assert (cpu.context_bytes, cpu.capability) == (0, None)
    assert "16 GiB" in gpu.name


def test_a_newer_architecture_takes_no_smaller_context() -> None:
    contexts = [target_like(name).context_bytes for name in ("k80", "t4", "a100-80gb", "h200", "b200", "rtx5090")]
    assert contexts == sorted(contexts)
    assert target_devices._context_bytes((11, 0)) == target_like("b200").context_bytes


def test_this_machine_offers_what_it_has_or_what_it_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    total = psutil.virtual_memory().total
    for limit, expected in ((None, total), (total // 2, total // 2), (2 * total, total)):
        monkeypatch.setattr("charact.machine.cgroups.memory_limit_bytes", lambda limit=limit: limit)
        target = this_device(torch.device("cpu"))
        assert (target.kind, target.memory_bytes, target.context_bytes) == ("cpu", expected, 0)


@pytest.mark.parametrize(("name", "number", "workspace"), [
    ("gfx942:sramecc+:xnack-", (9, 4), 128 * MIB), ("gfx90a", (9, 0), 32 * MIB), ("gfx1100", (11, 0), 32 * MIB)])
def test_an_architecture_of_amd_is_not_hopper(
        monkeypatch: pytest.MonkeyPatch, name: str, number: tuple[int, int], workspace: int) -> None:
    properties = SimpleNamespace(name="AMD", total_memory=192 * GIB, major=number[0], minor=number[1], gcnArchName=name)
    monkeypatch.setattr(torch.version, "hip", "6.2")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    target = this_device(torch.device("cuda", 0))
    assert (target.capability, target.memory_bytes) == (target_devices.ASSUMED_CAPABILITY, 192 * GIB)
    assert held(AllocationTrace(ops=[Op("aten::mm", "forward", None)]), target) == [workspace]


@pytest.mark.parametrize(("gib", "names"), [
    (16, ["p100", "v100-16gb", "t4"]), (24, ["rtx3090", "rtx4090", "l4"]), (80, ["a100-80gb", "h100-80gb"]),
    (2, []), (12, ["k80"]), (60, []),
])
def test_the_devices_of_about_a_memory(gib: int, names: list[str]) -> None:
    assert targets_of_about(gib * GIB) == names


def test_the_context_has_an_upper_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    target = target_like("a100-80gb")
    monkeypatch.delenv("CUDA_MODULE_LOADING", raising=False)
    assert target.context_bytes < target.context_high_bytes < 2**30
    monkeypatch.setenv("CUDA_MODULE_LOADING", "EAGER")
    assert target.context_high_bytes == 1343 * 2**20
    assert target_of_memory(2**30, "cpu").context_high_bytes == 0
