"""What a machine reaches: probes of known work, and the best block of the fastest of them."""

import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median

import pytest
import torch
from support.ceilings import ceiling
from torch.utils.benchmark import Timer
from torch.utils.flop_counter import FlopCounterMode

from charact.machine import cache_sizes
from charact.machine.cache_sizes import CacheLevel, cache_levels
from charact.machine.ceilings_cache import Ceiling
from charact.measure.microbench import ceiling_probes, ceilings
from charact.measure.microbench.ceiling_probes import Probe, call_seconds, seconds_per_call
from charact.measure.microbench.ceilings import measure_ceilings, theoretical_bytes_per_s
from charact.measure.passes.resident_memory import reset_resident_peak, resident_bytes, resident_peak_bytes

pytestmark = pytest.mark.clock

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def probes() -> list[Probe]:
    return list(ceiling_probes.probes(CPU))


def test_a_products_flop_are_those_that_pytorch_counts(probes: list[Probe]) -> None:
    counted = 0
    for probe in probes:
        with FlopCounterMode(display=False) as counter:
            probe.call()
        if counter.get_total_flops():
            assert (probe.ceiling, probe.unit, probe.amount) == ("gemm", "flop_per_s", counter.get_total_flops())
            counted += 1
    assert counted >= 2
    # oneDNN's own product has no formula: it is one of the sizes that torch.mm is tried at.
    plain = {probe.amount for probe in probes if probe.ceiling == "gemm" and probe.working_set_bytes == 3 * 512**2 * 4}
    assert plain == {2.0 * 512**3}


def test_a_copy_moves_its_array_twice_and_a_triad_three_of_them(probes: list[Probe]) -> None:
    streams = [probe for probe in probes if probe.unit == "bytes_per_s"]
    assert {probe.ceiling for probe in streams} == {"copy", "triad"}
    for probe in streams:
        assert isinstance(probe.call, partial)
        result = probe.call.func.__self__ if probe.ceiling == "copy" else probe.call.keywords["out"]  # type: ignore[attr-defined]
        arrays = [result, *probe.call.args]
        assert len({array.data_ptr() for array in arrays}) == {"copy": 2, "triad": 3}[probe.ceiling]
        assert probe.amount == probe.working_set_bytes == sum(array.nbytes for array in arrays)


def test_a_triad_is_what_its_name_says(probes: list[Probe]) -> None:
    triad = next(probe for probe in probes if probe.ceiling == "triad")
    assert torch.equal(triad.call(), torch.full_like(triad.call(), 1 + 1.5 * 1))  # type: ignore[arg-type, call-overload]


@pytest.mark.parametrize("name", ["gemm", "copy"])
def test_a_probe_takes_as_long_as_an_independent_clock_tells(probes: list[Probe], name: str) -> None:
    probe = [probe for probe in probes if probe.ceiling == name][0 if name == "gemm" else -1]
    timer = Timer("call()", globals={"call": probe.call}, num_threads=torch.get_num_threads())
    call_seconds(probe, CPU)
    ours, theirs, ratio = [], [], 0.0
    for _ in range(100):  # until both have had their core to themselves once
        ours.append(seconds_per_call(probe, CPU, 3))
        theirs.append(timer.timeit(3).mean)
        ratio = min(ours) / min(theirs)
        if len(ours) >= 10 and abs(ratio - 1) < 0.2:
            break
    assert ratio == pytest.approx(1, abs=0.3)


@pytest.mark.slow
def test_no_product_of_the_same_size_is_much_faster_than_the_ceiling(measured_ceilings: list[Ceiling]) -> None:
    reached = next(row["value"] for row in measured_ceilings if row["precision"] == "fp32")
    left, right = torch.randn(768, 768), torch.randn(768, 768)
    timer = Timer("left @ right", globals={"left": left, "right": right}, num_threads=torch.get_num_threads())
    independent = 2 * 768**3 / median(timer.timeit(5).mean for _ in range(9))
    assert independent < 1.15 * reached


@pytest.mark.slow
def test_every_ceiling_has_its_interval_around_it(measured_ceilings: list[Ceiling]) -> None:
    keys = [(row["ceiling"], row["precision"], row["level"]) for row in measured_ceilings]
    assert len(set(keys)) == len(keys)
    assert {("gemm", "fp32", None), ("copy", None, "memory"), ("triad", None, "memory"),
            ("launch", None, None)} <= set(keys)
    for row in measured_ceilings:
        assert 0 < row["low"] <= row["value"] <= row["high"] < math.inf
        assert (row["cores_frac"] is None) == (row["ceiling"] != "gemm")
        assert row["device"] == "cpu"
        assert row["datasheet"] is row["datasheet_source"] is row["theoretical"] is None


@pytest.mark.slow
def test_caches_are_faster_than_memory(measured_ceilings: list[Ceiling]) -> None:
    rates = {row["level"]: row["value"] for row in measured_ceilings if row["ceiling"] == "copy"}
    if len(rates) == 1:
        pytest.skip("the system tells of no cache")
    assert rates.pop("memory") < max(rates.values())


def test_measuring_leaves_threads_and_random_numbers_as_they_were() -> None:
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    for probe in ceiling_probes.probes(CPU):
        seconds_per_call(probe, CPU, 1)
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)


def test_a_probe_by_one_thread_runs_with_one() -> None:
    before, seen = torch.get_num_threads(), []
    torch.set_num_threads(2)
    try:
        seconds_per_call(Probe("copy", "bytes_per_s", 1, lambda: seen.append(torch.get_num_threads()), num_threads=1),
                         CPU, 1)
        assert (seen, torch.get_num_threads()) == ([1], 2)
    finally:
        torch.set_num_threads(before)


def sleeping(seconds: Callable[[], float], ceiling: str = "gemm", unit: str = "flop_per_s", **facts: object) -> Probe:
    return Probe(ceiling, unit, 1.0 if unit == "s" else 1e6, lambda: time.sleep(seconds()), **facts)  # type: ignore[arg-type]


def made_of(monkeypatch: pytest.MonkeyPatch, *probes: Probe) -> list[Ceiling]:
    monkeypatch.setattr(ceilings, "probes", lambda device: iter(probes))
    return measure_ceilings(CPU)


@pytest.fixture
def told_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sleeping takes no time: what was to be slept is the time that a call took."""
    slept: list[float] = []

    def seconds(probe: Probe, device: torch.device, num_calls: int) -> float:
        slept.clear()
        for _ in range(num_calls):
            probe.call()
        return sum(slept) / num_calls

    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(ceilings, "seconds_per_call", seconds)
    monkeypatch.setattr(ceilings, "call_seconds", lambda probe, device: seconds(probe, device, 2))


@pytest.mark.usefixtures("told_time")
def test_of_several_probes_the_fastest_is_the_ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    row, = made_of(monkeypatch, sleeping(lambda: 0.008), sleeping(lambda: 0.002, working_set_bytes=7),
                   sleeping(lambda: 0.012))
    assert (row["working_set_bytes"], row["value"]) == (7, pytest.approx(5e8))


@pytest.mark.usefixtures("told_time")
def test_of_a_launch_the_shortest_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    row, = made_of(monkeypatch, *(sleeping(lambda seconds=seconds: seconds, "launch", "s")  # type: ignore[misc]
                                  for seconds in (0.008, 0.002, 0.012)))
    assert row["value"] == pytest.approx(0.002)


@pytest.mark.usefixtures("told_time")
def test_a_burst_of_other_load_spoils_a_block_and_not_the_ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Iterator[int] = iter(range(10**6))
    # Two calls to warm up; then the first two blocks of nine are slow.
    row, = made_of(monkeypatch, sleeping(lambda: 0.010 if next(calls) < 20 else 0.001))
    assert row["value"] == pytest.approx(1e9)


@pytest.mark.usefixtures("told_time")
def test_one_lucky_repeat_is_no_ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Iterator[int] = iter(range(10**6))
    row, = made_of(monkeypatch, sleeping(lambda: 0.0 if next(calls) % 9 == 5 else 0.004))
    assert row["value"] == pytest.approx(1e6 / 0.004)


def test_what_sleeps_had_none_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    row, = made_of(monkeypatch, sleeping(lambda: 0.004))
    assert row["cores_frac"] is not None
    assert row["cores_frac"] < 0.5


def test_neither_the_memory_it_took_nor_its_peak_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    if not reset_resident_peak():
        pytest.skip("the system begins no peak anew")
    before = resident_bytes()
    made_of(monkeypatch, Probe("copy", "bytes_per_s", 1e6, lambda: torch.ones(50_000_000)))
    assert resident_peak_bytes() < before + 100_000_000  # a call takes 200


def test_a_slow_machine_gets_one_block(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    made_of(monkeypatch, Probe("gemm", "flop_per_s", 1e6, lambda: (calls.append(1), time.sleep(0.05))))
    assert len(calls) == 2 + 9


def cpu_tree(root: Path, cores: dict[int, list[tuple[str, str, str, str]]]) -> Path:
    for core, caches in cores.items():
        for index, values in enumerate(caches):
            folder = root / f"cpu{core}" / "cache" / f"index{index}"
            folder.mkdir(parents=True)
            for name, value in zip(("level", "type", "size", "shared_cpu_list"), values, strict=True):
                (folder / name).write_text(value + "\n")
    return root


def test_caches_that_cores_share_count_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_sizes.os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    root = cpu_tree(tmp_path, {core: [
        ("1", "Data", "32K", str(core)), ("1", "Instruction", "64K", str(core)), ("2", "Unified", "1024K", str(core)),
        ("3", "Unified", "32M", "0-1" if core < 2 else "2-3")] for core in range(6)})
    assert cache_levels(8, root) == [CacheLevel("L1", 2**15, 4), CacheLevel("L2", 2**20, 4), CacheLevel("L3", 2**25, 2)]
    assert cache_levels(1, root)[2].usable_bytes == 2**25
    assert cache_levels(3, root)[1].usable_bytes == 3 * 2**20


def test_a_system_that_tells_no_caches_has_memory_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_levels(2, tmp_path) == []
    monkeypatch.setattr(ceiling_probes, "cache_levels", lambda threads: [])
    assert {probe.level for probe in ceiling_probes._bandwidths(CPU, 2**30)} == {"memory"}


@pytest.mark.parametrize(("free", "memory_bytes"), [(2**34, 4 * 2**28), (6 * 2**30, int(0.6 * 2**30)), (2**30, None)])
def test_memory_is_four_times_the_last_cache_or_what_a_quarter_of_it_allows(
        monkeypatch: pytest.MonkeyPatch, free: int, memory_bytes: int | None) -> None:
    made: list[tuple[str, int]] = []
    monkeypatch.setattr(ceiling_probes, "cache_levels", lambda threads: [CacheLevel("L3", 2**28, 1)])
    monkeypatch.setattr(ceiling_probes, "_streams",
                        lambda device, level, num_bytes, threads: made.append((level, num_bytes)) or ())
    list(ceiling_probes._bandwidths(CPU, free // 4))
    # Where not even twice the cache fits, it would be the cache that is measured.
    assert dict(made).get("memory") == memory_bytes


def test_only_precisions_with_instructions_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceiling_probes, "native_bf16", lambda: [])
    assert ceiling_probes._precisions(CPU) == ["fp32"]
    monkeypatch.setattr(ceiling_probes, "native_bf16", lambda: ["avx512_bf16"])
    assert ceiling_probes._precisions(CPU) == ["fp32", "bf16"]


class Properties:
    memory_clock_rate, memory_bus_width = 2_619_000, 5120


def test_memory_moves_two_transfers_a_clock_over_its_width() -> None:
    assert theoretical_bytes_per_s(Properties()) == pytest.approx(3.352e12, rel=1e-3)
    assert theoretical_bytes_per_s(object()) is None


@pytest.mark.parametrize(("name", "figures"), [
    ("NVIDIA H100 PCIe", [756.5e12, 51e12, None, 2e12, None]), ("NVIDIA H100 PCIe MIG 1g.10gb", [None] * 5)])
def test_a_gpus_products_and_memory_stand_beside_its_datasheet(
        monkeypatch: pytest.MonkeyPatch, name: str, figures: list[float | None]) -> None:
    monkeypatch.setattr(ceilings, "device_name", lambda device: name)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties())
    rows = [ceiling("gemm", 7e14, "flop_per_s", precision="bf16"),
            ceiling("gemm", 5e13, "flop_per_s", precision="fp32"),
            ceiling("copy", 5e12, "bytes_per_s", level="L2"), ceiling("copy", 2e12, "bytes_per_s", level="memory"),
            ceiling("launch", 5e-6, "s")]
    beside = [ceilings._with_datasheet(row, torch.device("cuda", 0)) for row in rows]
    assert [row["datasheet"] for row in beside] == figures
    assert [row["datasheet_source"] is None for row in beside] == [figure is None for figure in figures]
    assert [row["theoretical"] is None for row in beside] == [True, True, True, False, True]
