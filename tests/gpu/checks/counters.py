"""Counters of every source, under loads of known work, bytes, occupancy and power."""

import time
from collections.abc import Callable, Mapping
from functools import partial
from statistics import fmean
from typing import Any

import pandas as pd
import pynvml
import torch
from gpu.checks.session import NotHereError, Session, on_cuda
from support.device_clocks import peak_bytes_per_s, sampled_powers_w, spin_kernel

from charact.measure.counters import all_sources, gpm, ncu, nvml
from charact.measure.counters._support.protocol import UnavailableError
from charact.measure.counters.ncu import wanted_metrics

ROWS, FEATURES, WIDTH = 4096, 512, 1024


def need(source: str) -> None:
    if (unavailable := all_sources()[source].available()) is not None:
        raise NotHereError(f"{source}: {unavailable.reason}")


def nan_or(values: Mapping[str, float], name: str) -> float:
    return values.get(name, float("nan"))


def values_by(rows: pd.DataFrame, column: str) -> dict[str, float]:
    return dict(zip(rows[column], rows["value"], strict=True))


@on_cuda
def check_counter_pass(session: Session) -> None:
    """Counters of the trace against the kernels' table, and the outcome of every source."""
    run = session.big()
    for entry in run.manifest["cases"]:
        precision, passes = entry["precision"], entry["passes"]
        sources = passes["counters"]["sources"]
        session.info(f"counter sources, {precision}",
                     {name: outcome["reason"] or outcome["status"] for name, outcome in sources.items()})
        rows = run.counters[(run.counters["case"] == entry["case"]) & (run.counters["source"] == "kineto")]
        values = values_by(rows, "counter")
        kernels_s = run.kernels[run.kernels["case"] == entry["case"]]["device_s"].sum()
        session.within(f"trace's busy time / kernels of counted iterations, {precision}",
                       nan_or(values, "busy_s") / (passes["operators"]["num_counted_iterations"] * kernels_s),
                       0.9, 1.001)
        # In bf16 convolutions are so fast that batch norms and copies to another layout take most of the time.
        low, high = (0, 0) if precision == "fp32" else (0.1, 1)
        session.within(f"tensor-core share in {precision}", nan_or(values, "tensor_core_frac"), low, high)


@on_cuda
def check_energy(session: Session) -> None:
    """NVML's meter over a load against power that is sampled here; memory against the allocator."""
    need("nvml")
    pynvml.nvmlInit()
    uuid = str(torch.cuda.get_device_properties(session.device).uuid).removeprefix("GPU-")
    gpu = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    product = _product(session)
    _load(product, 2.0)  # until power is steady
    with sampled_powers_w(gpu) as powers_w:
        reading = nvml.SOURCE.open(session.device)
        begun_s = time.perf_counter()
        _load(product, 6.0)
        sample = reading.sample()
        whole = reading.close()
        ended_s = time.perf_counter()
    mean_w = fmean([power_w for at_s, power_w in powers_w if begun_s <= at_s <= ended_s] or [float("nan")])
    session.info("nvml", {name: f"{value:.4g}" for name, value in {**sample, **whole}.items()})
    session.info("nvml missing", reading.missing)
    energy_j, power_w = nan_or(whole, "energy_j"), nan_or(whole, "power_w")
    session.within("energy / (sampled power x time)", energy_j / (mean_w * (ended_s - begun_s)), 0.93, 1.07)
    session.within("power / limit", power_w / (pynvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1e3), 0.3, 1.05)
    free, total = torch.cuda.mem_get_info()
    session.within("memory by NVML / by CUDA", nan_or(sample, "memory_used_bytes") / (total - free), 0.95, 1.1)


def _product(session: Session) -> Callable[[], object]:
    left, right = (torch.randn(8192, 8192, device=session.device, dtype=torch.bfloat16) for _ in range(2))
    return partial(torch.mm, left, right, out=torch.empty_like(left))


def _load(launch: Callable[[], object], seconds: float) -> int:
    """Repeat launches for some time; return their number."""
    begun, number = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        for _ in range(4):
            launch()
        number += 4
        torch.cuda.synchronize()
    return number


@on_cuda
def check_gpm(session: Session) -> None:
    """GPM under a kernel of known occupancy, a copy of known bytes, and a product."""
    need("gpm")
    try:
        _check_occupancy(session)
        source = torch.randn(2**29, device=session.device)
        whole, seconds, number = _counted(session, partial(torch.empty_like(source).copy_, source))
        pynvml.nvmlInit()
        peak = peak_bytes_per_s(pynvml.nvmlDeviceGetHandleByIndex(0))
        session.within("gpm: bandwidth / bytes over time", nan_or(whole, "bandwidth_utilization_frac")
                       / (2 * source.nbytes * number / seconds / peak), 0.9, 1.1)
        whole, _, _ = _counted(session, _product(session))
        session.info("gpm under a product", {name: f"{value:.3g}" for name, value in whole.items()})
        session.within("gpm: tensor pipe under a product", nan_or(whole, "tensor_pipe_frac"), 0.5, 1.0)
    except UnavailableError as error:
        raise NotHereError(f"gpm: {error.unavailable.reason}") from error


def _counted(session: Session, launch: Callable[[], object]) -> tuple[Mapping[str, float], float, int]:
    """Return GPM's counters over repeated launches, the time that they took (s), and their number."""
    reading = gpm.SOURCE.open(session.device)
    _load(launch, 2 * gpm.LAG_S)
    reading.sample()  # the first snapshot, which shows the load
    begun = time.perf_counter()
    number = _load(launch, 1.2)
    whole = reading.close()
    return whole, time.perf_counter() - begun, number


def _check_occupancy(session: Session) -> None:
    spin: Any = spin_kernel()
    if spin is None:
        session.line("N/A", "gpm: spin kernel", "this PyTorch compiles no kernels")
        return
    gpu = torch.cuda.get_device_properties(session.device)
    occupancy = 1024 / gpu.max_threads_per_multi_processor
    for share in (1.0, 0.5):
        blocks = int(gpu.multi_processor_count * share)
        whole, _, _ = _counted(session, partial(spin, (blocks, 1, 1), (1024, 1, 1), [20_000_000]))
        for name, label, expected, high in (
                ("sm_utilization_frac", "busy SMs", share, 1.05),
                ("sm_occupancy_frac", "occupancy", share * occupancy, 1.1),
                ("warp_occupancy_frac", "occupancy of busy SMs", occupancy, 1.1)):
            session.within(f"gpm: {label}, {blocks} blocks of 1024", nan_or(whole, name) / expected, 0.9, high)


@on_cuda
def check_ncu(session: Session) -> None:
    """Nsight Compute counts the FLOP of a product of known size, phase by phase."""
    need("ncu")
    executable = ncu.find_ncu()
    if executable is None:
        raise NotHereError("ncu: not found")
    listed = ncu._listed(executable)
    wanted = wanted_metrics(listed, torch.cuda.get_device_capability(session.device))
    session.within("ncu: metrics listed", len(listed), 100, 1e6)
    session.holds("ncu: work of tensor cores is counted", wanted.tensor_gap is None, wanted.tensor_gap or "yes", "yes")
    session.info("ncu: metrics requested", ",".join(wanted.metrics))
    run = session.profiled(
        "ncu", "--model", "support.rerun_nets:Wide", "--input-spec", "S", "--loss", "support.rerun_nets:squared",
        "--input-sizes", str(FEATURES), "--batch-sizes", str(ROWS), "--mode", "train", "--precision", "bf16",
        "--max-iterations", "8", "--counters", "ncu")
    rows = run.counters[run.counters["source"] == "ncu"]
    session.holds("ncu: pass", len(rows) > 0, run.manifest["cases"][0]["passes"]["counters"].get("sources"), "rows")
    by_phase = values_by(rows[rows["kernel"].isna() & (rows["counter"] == "executed_flop")], "phase")
    product = 2 * ROWS * FEATURES * WIDTH
    for phase in ("forward", "backward"):
        session.within(f"ncu: FLOP of a product, {phase}", nan_or(by_phase, phase) / product, 0.95, 1.1)


@on_cuda
def check_pm(session: Session) -> None:
    """CUPTI's samples: the pass ends well, and gives every counter that the source promises."""
    need("pm")
    run = session.profiled("pm", "resnet50", "--input-sizes", "224", "--batch-sizes", "64", "--mode", "train",
                           "--max-iterations", "8", "--counters", "pm")
    outcome = run.manifest["cases"][0]["passes"]["counters"]["sources"].get("pm", {})
    session.holds("pm: pass", outcome.get("status") == "ok", outcome.get("reason") or outcome.get("status"), "ok")
    rows = run.counters[(run.counters["source"] == "pm") & run.counters["time_s"].isna()]
    given = set(rows["counter"])
    session.holds("pm: counters", given == {one.name for one in all_sources()["pm"].counters}, sorted(given), "all")
    for counter, of_counter in rows.groupby("counter"):
        values = values_by(of_counter, "phase")
        session.info(f"pm {counter}", {phase: f"{value:.3g}" for phase, value in values.items()})
