from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch

from charact.measure import capabilities
from charact.measure.capabilities import Check
from charact.measure.counters import all_sources
from charact.measure.counters._support.protocol import Counter, Unavailable


class UnavailableSource:
    name, cost, taken, tried_on = "ncu", "minutes", "own pass", None
    counters = tuple(Counter(f"number_{index}_s", "", "measured", "device") for index in range(6))

    def available(self) -> Unavailable:
        return Unavailable("counters are for administrators only", "ask for them")

    def open(self, _: object) -> None:
        raise AssertionError("a doctor does not open what is not available")


def by_name(checks: list[Check]) -> dict[str, Check]:
    return {check.name: check for check in checks}


def test_every_check_that_is_not_ok_tells_a_reason() -> None:
    checks = capabilities.machine_checks()
    assert len(by_name(checks)) == len(checks)
    assert all(check.finding for check in checks)
    assert all(check.remedy for check in checks if check.status == "limited")


def test_without_a_gpu_the_driver_decides_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capabilities, "gpu_facts", lambda: ([], "torch 2.13.0+cpu is built without CUDA"))
    monkeypatch.setattr(capabilities, "driver_version", lambda: "580.1")
    check = by_name(capabilities.instrument_checks())["kernels"]
    assert (check.status, check.finding) == ("n/a", "torch 2.13.0+cpu is built without CUDA")
    assert check.remedy == "NVIDIA driver 580.1 is here: install a CUDA build of torch"
    monkeypatch.setattr(capabilities, "driver_version", lambda: None)
    remedy = by_name(capabilities.instrument_checks())["kernels"].remedy
    assert remedy is not None
    assert remedy.startswith("no NVIDIA driver")


def test_with_a_gpu_its_instruments_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capabilities, "gpu_facts", lambda: ([{"index": 0, "name": "NVIDIA H100"}], None))
    checks = by_name(capabilities.instrument_checks())
    assert checks["kernels"] == Check("Instruments", "kernels", "ok", "cuda:0 NVIDIA H100")
    assert checks["phases, CUDA events"].status == "ok"


def test_a_source_that_is_refused_is_shown_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capabilities, "all_sources", lambda: {"ncu": UnavailableSource()})
    assert capabilities.counter_checks() == [
        Check("Counters", "ncu", "n/a", "counters are for administrators only", "ask for them",
              "would give number_0_s, number_1_s, number_2_s, number_3_s and 2 more (charact list counters); "
              "in its own pass, if named by --counters; cost: minutes", "not yet run on a device")]


def test_a_source_that_counts_is_shown_with_when_and_at_what_cost() -> None:
    check = by_name(capabilities.counter_checks())["host"]
    assert check.status == "ok"
    assert check.finding.startswith("rss_bytes, ")
    assert check.detail == f"read along with iterations; cost: {all_sources()['host'].cost}"
    assert check.note is None


def test_ceilings_are_looked_for_with_the_present_threads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    check = by_name(capabilities.ceiling_checks({}))["ceilings of cpu"]
    assert (check.status, check.remedy) == ("ok", None)
    assert check.finding.endswith(f", with {torch.get_num_threads()} threads")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert capabilities.ceiling_checks({}) == [
        Check("Ceilings", "ceilings of cpu", "n/a", "they were not measured yet",
              "charact doctor --ceilings measures them")]


@pytest.mark.parametrize(("line", "limit", "status", "finding"), [
    ("flags\t\t: fpu avx512_bf16 amx_bf16", "", "ok", "native (amx_bf16, avx512_bf16)"),
    ("flags\t\t: fpu avx512_bf16", "avx512_core_bf16", "ok", "native (avx512_bf16)"),
    ("Features\t: fp asimd bf16", "", "ok", "native (bf16)"),
    ("flags\t\t: fpu avx2", "", "limited",
     "no bf16 instructions: slower than fp32, and an LSTM runs with AVX-512 only"),
    ("", "", "limited", "no bf16 instructions: slower than fp32, and an LSTM runs with AVX-512 only"),
    ("flags\t\t: fpu avx512_bf16", "avx2", "limited", "the environment limits oneDNN to AVX2, without bf16 "
     "instructions: slower than fp32, and an LSTM runs with AVX-512 only"),
])
def test_bf16_on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, limit: str, status: str,
                         finding: str) -> None:
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    monkeypatch.delenv("DNNL_MAX_CPU_ISA", raising=False)
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{line}\n")
    check = by_name(capabilities.precision_checks(tmp_path / "cpuinfo"))["bf16 on the CPU"]
    assert (check.status, check.finding) == (status, finding)


@pytest.mark.parametrize(("busy_cores", "policy", "load", "openmp"), [
    (0.4, None, "ok", "ok"), (1.1, None, "limited", "limited"), (1.1, "PASSIVE", "limited", "ok"),
    (1.1, "active", "limited", "limited"), (0.4, "passive", "ok", "ok"),
])
def test_other_processes_above_a_quarter_of_the_cores_are_noise(
        monkeypatch: pytest.MonkeyPatch, busy_cores: float, policy: str | None, load: str, openmp: str) -> None:
    if policy is None:
        monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    else:
        monkeypatch.setenv("OMP_WAIT_POLICY", policy)
    monkeypatch.setattr(capabilities, "usable_cores", lambda: 4)
    monkeypatch.setattr(psutil, "cpu_count", lambda: 4)
    monkeypatch.setattr(psutil, "cpu_percent", lambda interval: 100 * busy_cores / 4)
    checks = by_name(capabilities.noise_checks())
    assert (checks["load now"].status, checks["OpenMP threads"].status) == (load, openmp)
    assert f"keep {busy_cores:.1f} of 4 cores busy" in checks["load now"].finding


@pytest.mark.parametrize(("num_threads", "status"), [(2, "ok"), (3, "limited")])
def test_more_threads_than_cores_are_noise(monkeypatch: pytest.MonkeyPatch, num_threads: int, status: str) -> None:
    monkeypatch.setattr(capabilities, "usable_cores", lambda: 2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: num_threads)
    check = by_name(capabilities.noise_checks())["threads"]
    assert check.status == status
    assert check.finding.startswith(f"{num_threads} on 2 usable cores")


@pytest.mark.parametrize(("used_bytes", "status"), [(0, "ok"), (250_000_000, "limited")])
def test_memory_that_was_swapped_out_is_noise(monkeypatch: pytest.MonkeyPatch, used_bytes: int, status: str) -> None:
    monkeypatch.setattr(psutil, "swap_memory", lambda: SimpleNamespace(used=used_bytes))
    assert by_name(capabilities.noise_checks())["swap"].status == status
