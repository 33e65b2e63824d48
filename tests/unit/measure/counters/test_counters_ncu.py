"""Nsight Compute: a case is brought to life under it, its CSV becomes counters, and each refusal is one line."""

import _thread
import os
import re
import stat
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from support import stub_ncu
from support.small import small_case

from charact.datasets._common.request import DataRequest
from charact.execution.case import Case
from charact.execution.loop import Loop
from charact.measure.counters import ncu
from charact.measure.counters._support.protocol import Found, UnavailableError
from charact.measure.passes.counters import counter_pass
from charact.workload.user_model.input_spec import parse_input_spec
from charact.workload.user_model.model import own_model

FEATURES, WIDTH, BATCH = 32, 64, 8


def own_case(model: str = "Product", mode: str = "train", **options: Any) -> Case:
    workload = own_model(f"support.rerun_nets:{model}", f"features={FEATURES}", parse_input_spec("S"),
                         "support.rerun_nets:squared", "SGD", 0.1).prepare()
    return Case(workload, FEATURES, BATCH, mode, "fp32", torch.device("cpu"), DataRequest(seed=7), **options)


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A command `ncu` on PATH that is the stub."""
    command = tmp_path / "bin" / "ncu"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{stub_ncu.__file__}" "$@"\n', encoding="utf-8")
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{command.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("TESTS_PROCESS", str(os.getpid()))
    return command


def take(case: Case) -> Found:
    loop = Loop(case)
    try:
        return ncu.SOURCE.take(loop)
    finally:
        loop.close()


def value(found: Found, counter: str, phase: str | None = None, kernel: str | None = None) -> float:
    [row] = [row for row in found.rows
             if (row["counter"], row["phase"], row["kernel"]) == (counter, phase, kernel)]
    return row["value"]


@pytest.mark.slow
def test_flop_of_each_phase_and_kernel_are_those_of_the_products(stub: Path) -> None:
    found = take(own_case())
    product = 2 * BATCH * FEATURES * WIDTH
    assert value(found, "executed_flop", "forward") == product
    assert value(found, "executed_flop", "backward") == product  # of the weights; the input needs no gradient
    assert value(found, "executed_flop", "update") == 0
    assert value(found, "executed_flop") == 2 * product
    kernel = "void aten.mm.default<float, 4>(T1 *, T2)"
    assert value(found, "executed_flop", "forward", kernel) == product
    assert value(found, "flop_per_s", "forward", kernel) == pytest.approx(product / 2e-6)
    assert value(found, "nonpredicated_efficiency_frac", "forward") == pytest.approx(0.875)
    assert value(found, "warp_execution_efficiency_frac") == pytest.approx(1.0)
    assert value(found, "dram_bytes") == 2**20 * value(found, "num_launches")
    assert found.missing == {}
    assert {row["counter"] for row in found.rows} == {counter.name for counter in ncu.SOURCE.counters}
    assert {row["phase"] for row in found.rows} >= {"forward", "loss", "backward", "update"}


@pytest.mark.slow
def test_a_chip_with_unknown_tensor_metrics_has_flop_only_where_no_tensor_core_works(
        stub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB_NCU", stub_ncu.UNKNOWN_CHIP)
    found = take(own_case())
    flop = {row["phase"] for row in found.rows if row["counter"] == "executed_flop" and row["kernel"] is None}
    assert flop >= {"loss", "update"}
    assert flop.isdisjoint({None, "forward", "backward"})
    reason = ("this chip's tensor-core counters have names that charact does not know: "
              "sm__ops_path_tensor_src_posit8")
    assert found.missing == {"executed_flop": reason, "flop_per_s": reason}


@pytest.mark.slow
def test_an_inference_has_no_phases_but_data_and_forward(stub: Path) -> None:
    assert {row["phase"] for row in take(own_case(mode="infer")).rows} <= {None, "data", "forward"}


def test_rows_are_those_of_the_counter_pass(stub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ncu.NsightCompute, "devices", frozenset({"cpu"}))
    monkeypatch.setattr(ncu.NsightCompute, "available", lambda self: None)
    loop = Loop(own_case(mode="infer"))
    try:
        rows, facts = counter_pass(loop, [ncu.SOURCE])
    finally:
        loop.close()
    assert facts.sources["ncu"].status == "ok"
    assert facts.sources["ncu"].num_iterations == 1
    assert {row["time_s"] for row in rows} == {None}
    assert {row["source"] for row in rows} == {"ncu"}
    assert {row["device"] for row in rows} == {"cpu"}


@pytest.mark.slow_variants
@pytest.mark.parametrize(("failure", "reason", "remedy"), [
    ("permission", "only administrators", "NVreg_RestrictProfilingToAdminUsers=0"),
    ("busy", "another profiler", "dcgmi profile --pause"),
    ("unsupported", "architecture", "release notes"),
    ("memory", "not enough memory", "--batch-sizes"),
])
def test_what_ncu_refuses_is_one_line_with_its_remedy(
    stub: Path, monkeypatch: pytest.MonkeyPatch, failure: str, reason: str, remedy: str,
) -> None:
    monkeypatch.setenv("STUB_NCU", failure)
    with pytest.raises(UnavailableError, match=reason) as refused:
        take(own_case())
    assert remedy in str(refused.value.unavailable.remedy)
    assert "\n" not in refused.value.unavailable.reason


@pytest.mark.parametrize(("failure", "said"), [
    ("other", "Failed to prepare kernel for profiling"),
    ("old driver", r"Cuda driver is not compatible with Nsight Compute\."),
])
def test_another_error_is_told_as_ncu_said_it(
    stub: Path, monkeypatch: pytest.MonkeyPatch, failure: str, said: str,
) -> None:
    monkeypatch.setenv("STUB_NCU", failure)
    with pytest.raises(UnavailableError, match=rf"rerunning the case failed: {said}$"):
        take(own_case())


def test_a_command_that_lists_no_metrics_is_told(stub: Path) -> None:
    stub.write_text("#!/bin/sh\n", encoding="utf-8")
    with pytest.raises(UnavailableError, match="lists no metrics"):
        take(own_case())


@pytest.mark.slow
@pytest.mark.parametrize(("model", "reason"), [
    pytest.param("NoMemory", "not enough memory", marks=pytest.mark.slow), ("Killed", "ended by signal 9")])
def test_a_child_that_breaks_down_is_told(stub: Path, model: str, reason: str) -> None:
    with pytest.raises(UnavailableError, match=reason):
        take(own_case(model))


def test_a_workload_that_another_process_cannot_find_is_refused(stub: Path) -> None:
    with pytest.raises(UnavailableError, match="two_layers in another process") as refused:
        take(small_case())
    assert "charact.workloads" in str(refused.value.unavailable.remedy)


@pytest.mark.slow
def test_what_takes_too_long_is_ended(stub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB_NCU", "hangs")
    monkeypatch.setattr(ncu, "TIMEOUT_S", 3.0)
    with pytest.raises(UnavailableError, match="did not end within 3 s"):
        take(own_case())
    assert not children()


def test_an_interrupt_ends_the_child_with_its_group(stub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB_NCU", "hangs")

    def interrupt() -> None:
        while not children():
            time.sleep(0.05)
        _thread.interrupt_main()

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        take(own_case())
    thread.join()
    assert not children()


def children() -> list[str]:
    """Command lines of runs of the stub that this process started and that go on."""
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            parent = re.search(r"\) . (\d+) ", (directory / "stat").read_text(encoding="ascii", errors="replace"))
            command = (directory / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if parent is not None and int(parent[1]) == os.getpid() and "--log-file" in command:
            found.append(command)
    return found


def test_ncu_is_looked_for_on_path_then_where_cuda_puts_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setattr(ncu, "_PLACES", (f"{tmp_path}/nsight/*/ncu",))
    assert ncu.find_ncu() is None
    for version in ("2024.3.2", "2024.10.1"):
        (tmp_path / "nsight" / version).mkdir(parents=True)
        (tmp_path / "nsight" / version / "ncu").touch()
    assert ncu.find_ncu() == tmp_path / "nsight" / "2024.10.1" / "ncu"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ncu").touch(mode=0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert ncu.find_ncu() == tmp_path / "bin" / "ncu"
