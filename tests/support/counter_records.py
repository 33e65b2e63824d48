"""Records of cases whose counters were read: of a GPU with every source there is, and of a CPU."""

import copy
import math
from pathlib import Path
from typing import Any

from charact.record.schema import Rows
from support.kept import written_once
from support.records import TRAIN_PHASES, case_entry, case_tables, manifest, publish

KERNEL = "void gemm<bf16, (Tile)128>(Params<a&b>)"
"""A kernel whose name is as hostile as those of templates are."""
NUM_ITERATIONS, DURATION_S, BATCH_SIZE = 20, 2.0, 8
POWERS_W = [300.0 + 20 * math.sin(number / 3) for number in range(40)]
CEILING_FLOP_PER_S = 20e12
REMEDY = "set options nvidia NVreg_RestrictProfilingToAdminUsers=0"


def _described(method: str, *names: str, scope: str = "device") -> dict[str, dict[str, str]]:
    return {name: {"definition": f"what {name} means", "method": method, "scope": scope} for name in names}


FIVE = ("warp_occupancy_frac", "warp_execution_efficiency_frac", "nonpredicated_efficiency_frac",
        "bandwidth_utilization_frac", "flop_per_s")  # fmt: skip
DESCRIBED = {
    "host": _described("measured", "rss_bytes", "cpu_utilization_frac", "num_major_page_faults", scope="process"),
    "nvml": _described("sampled", "utilization_frac", "power_w", "memory_used_bytes", "sm_clock_hz", "temperature_c",
                       "throttled_frac") | _described("measured", "energy_j"),
    "gpm": _described("sampled", "sm_utilization_frac", "sm_occupancy_frac", "bandwidth_utilization_frac",
                      "tensor_pipe_frac", "fp64_pipe_frac") | _described("estimated", "warp_occupancy_frac"),
    "kineto": _described("measured", "utilization_frac", "gap_s", "num_gaps", "tensor_core_frac")
    | _described("estimated", "warp_occupancy_frac"),
    "pm": _described("sampled", *FIVE[:4], "dram_bytes"),
    "ncu": _described("measured", *FIVE, "dram_bytes", scope="kernel"),
    "rapl": _described("measured", "energy_j", scope="processor package"),
}  # fmt: skip
CEILINGS = [
    {"device": "cuda:0", "ceiling": "gemm", "precision": "bf16", "working_set_bytes": None, "level": None,
     "value": CEILING_FLOP_PER_S, "low": 19.9e12, "high": 20.1e12, "unit": "flop_per_s", "datasheet": 22e12,
     "datasheet_source": "a datasheet"},
    {"device": "cpu", "ceiling": "gemm", "precision": "fp32", "working_set_bytes": None, "level": None,
     "value": 100e9, "low": 99e9, "high": 101e9, "unit": "flop_per_s", "datasheet": None, "datasheet_source": None},
]


def row(source: str, counter: str, value: float, **place: Any) -> dict[str, Any]:
    """A row of the table `counters`: over the whole pass where no place is named."""
    device = "cpu" if source in ("host", "rapl", "perf") else "cuda:0"
    return {"phase": None, "time_s": None, "rank": 0, "device": device, "source": source, "kernel": None,
            "counter": counter, "value": value, **place}  # fmt: skip


def outcome(status: str = "ok", reason: str | None = None, remedy: str | None = None,
            **missing: str) -> dict[str, Any]:
    return {"status": status, "reason": reason, "remedy": remedy, "missing": missing}


def spans(num_iterations: int = NUM_ITERATIONS) -> list[list[Any]]:
    """Phases of iterations that follow one another."""
    found, at_s = [], 0.0
    for _ in range(num_iterations):
        for phase, seconds in TRAIN_PHASES.items():
            if phase != "other":
                found.append([at_s, at_s + seconds, phase])
            at_s += seconds
    return found


def counter_pass(**sources: dict[str, Any]) -> dict[str, Any]:
    return {"status": "ok", "reason": None, "num_iterations": NUM_ITERATIONS, "duration_s": DURATION_S,
            "spans": spans(), "sources": sources}


def gpu_entry(name: str = "resnet50", input_size: int = 224) -> dict[str, Any]:
    """A case on a GPU whose counters were asked for from every source."""
    entry = case_entry(name, input_size, "train")
    only_cuda = outcome("n/a", "the driver lists no AMD device")
    entry["passes"]["kernels"] = {"status": "ok", "reason": None}
    entry["passes"]["counters"] = counter_pass(
        host=outcome(), kineto=outcome(), pm=outcome(flop_per_s="PM sampling counts no instructions by type"),
        nvml=outcome(pcie_sent_bytes_per_s="virtual GPUs do not tell"), gpm=outcome(), ncu=outcome(), amd=only_cuda,
        rapl=outcome("n/a", "its files are for administrators only", "run as root"),
        perf=outcome("n/a", "the machine is virtual and has no counters"),
    )  # fmt: skip
    case = f"{name}-{input_size}-b{BATCH_SIZE}-train-bf16-cuda"
    return entry | {"case": case, "precision": "bf16", "device": "cuda", "device_name": "NVIDIA H100"}


def _nvml_rows() -> Rows:
    """40 samples, one every 50 ms; the device draws 300 W on average, 6 % more or less."""
    rows = [row("nvml", "energy_j", 600.0)]
    for number, power_w in enumerate(POWERS_W):
        place = {"time_s": 0.05 * number, "phase": "forward" if number % 2 else "backward"}
        rows += [row("nvml", counter, value, **place) for counter, value in {
            "utilization_frac": 0.9 if number % 2 else 1.0, "power_w": power_w, "sm_clock_hz": 1.98e9,
            "memory_used_bytes": 2e10 + 1e8 * number, "temperature_c": 60.0 + number / 4, "throttled_frac": 0.0,
        }.items()]  # fmt: skip
    return rows


def _gpm_rows() -> Rows:
    return [
        row("gpm", counter, value * (1 + 0.1 * math.cos(number)), time_s=0.1 * number, phase="forward")
        for number in range(1, 20) for counter, value in {
            "sm_utilization_frac": 0.8, "sm_occupancy_frac": 0.4, "warp_occupancy_frac": 0.5,
            "bandwidth_utilization_frac": 0.3, "tensor_pipe_frac": 0.2, "fp64_pipe_frac": 0.0,
        }.items()
    ]  # fmt: skip


def gpu_rows() -> Rows:
    """Rows of every source; where several give the same, their values differ."""
    pm = dict(zip(FIVE, (0.62, 0.97, 0.91, 0.35), strict=False))
    per_phase = [row("pm", counter, 0.9 * value, phase="forward") for counter, value in pm.items()]
    of_kernel = {KERNEL.replace(" ", ""): (0.7, 1.0, 0.95, 0.4, 15e12), "renamed<1>": (0.5, 0.5, 0.5, 0.5, 1e12)}
    return [
        row("host", "rss_bytes", 4e9), row("host", "cpu_utilization_frac", 0.12),
        row("host", "num_major_page_faults", 3),
        *_nvml_rows(), *_gpm_rows(),
        *(row("pm", counter, value) for counter, value in pm.items()), *per_phase, row("pm", "dram_bytes", 5e11),
        *(row("ncu", counter, value) for counter, value in zip(FIVE, (0.6, 0.96, 0.9, 0.33, 8e12), strict=True)),
        *(row("ncu", counter, value, kernel=kernel, phase=phase)
          for kernel, values in of_kernel.items()
          for phase, kernel_s, part in (("forward", 0.02, 1.0), ("backward", 0.01, 0.7))
          for counter, value in [("kernel_s", kernel_s), *zip(FIVE, (part * value for value in values), strict=True)]),
        *(row("kineto", counter, value) for counter, value in {
            "utilization_frac": 0.95, "gap_s": 0.004, "num_gaps": 120, "tensor_core_frac": 0.55,
            "warp_occupancy_frac": 0.45}.items()),
    ]  # fmt: skip


def gpu_tables() -> dict[str, Rows]:
    """Rows of every table of a case on a GPU: three kernels, one of them launched in two ways, and a copy."""
    def kernel(name: str, device_s: float, occupancy_frac: float | None, grid: str | None) -> dict[str, Any]:
        return {"phase": "forward", "operator": "aten::mm", "kernel": name, "num_calls": 2.0, "device_s": device_s,
                "grid": grid, "block": grid and "[256,1,1]", "registers": grid and 128,
                "shared_memory_bytes": grid and 49152, "occupancy_frac": occupancy_frac}  # fmt: skip

    return case_tables("train", 224) | {"counters": gpu_rows(), "kernels": [
        kernel(KERNEL, 0.030, 0.25, "[64,2,1]"), kernel("layer_norm", 0.008, 0.5, "[64,1,1]"),
        kernel("layer_norm", 0.008, 0.7, "[128,1,1]"), kernel("Memcpy HtoD (Pinned -> Device)", 0.004, None, None)]}


def cpu_entry(name: str = "resnet50", input_size: int = 32) -> dict[str, Any]:
    """A case on a CPU that tells what it draws."""
    entry = case_entry(name, input_size, "train")
    entry["passes"]["counters"] = counter_pass(
        host=outcome(), rapl=outcome(), nvml=outcome("n/a", "counts on cuda devices only"),
        gpm=outcome("n/a", "counts on cuda devices only"), kineto=outcome("n/a", "kernels run on GPUs only"),
        perf=outcome("n/a", "counters of the processor are not for every user",
                     "sysctl kernel.perf_event_paranoid=1"),
    )  # fmt: skip
    return entry


def cpu_tables(slowness: float = 1.0) -> dict[str, Rows]:
    """Rows of every table of a case on a CPU; the processor takes 50 J, times `slowness`."""
    used = [row("host", "rss_bytes", 1e9 + 2e6 * number, time_s=0.1 * number, phase="forward") for number in range(20)]
    return case_tables("train", 32) | {"counters": [
        *used, row("host", "cpu_utilization_frac", 0.93), row("rapl", "energy_j", 50.0 * slowness)]}


def described() -> dict[str, Any]:
    return manifest("profile", "resnet50", "--counters", "all") | {
        "counters": copy.deepcopy(DESCRIBED), "ceilings": copy.deepcopy(CEILINGS), "ceilings_reason": None}


@written_once
def write_gpu(out: Path, *, name: str = "resnet50", sizes: tuple[int, ...] = (224,)) -> Path:
    return publish(out, name, described(), *((gpu_entry(name, size), gpu_tables()) for size in sizes))


@written_once
def write_cpu(out: Path, *, name: str = "resnet50", sizes: tuple[int, ...] = (32,)) -> Path:
    """A run on a CPU, a case for each input size, each of which takes more energy than the one before."""
    cases = ((cpu_entry(name, size), cpu_tables(1.0 + number)) for number, size in enumerate(sizes))
    return publish(out, name, described(), *cases)
