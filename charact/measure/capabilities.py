"""Checks of what this machine can measure, with reasons and remedies."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path
from typing import Literal

from charact.core.units import quantity
from charact.machine.ceilings_cache import CachedCeilings, NotCached, ceilings_file, read_cached
from charact.machine.facts import driver_version, gpu_facts, machine_facts, native_bf16, onednn_limit, usable_cores
from charact.measure.counters import all_sources
from charact.measure.counters._support.protocol import NOT_TRIED, CounterSource

NOISY_LOAD_FRAC = 0.25
"""Share of the cores that other processes may use before timing counts as noisy."""

_LOAD_WINDOW_S = 0.5
_MAX_NAMES = 4
_TAKEN = {
    "along": "read along with iterations", "trace": "from the operator pass's trace",
    "own pass": "in its own pass, if named by --counters",
}  # fmt: skip


@dataclass(frozen=True)
class Check:
    """Result of one check; if it is not `ok`, also the remedy."""

    group: str
    name: str
    status: Literal["ok", "limited", "n/a"]
    finding: str
    remedy: str | None = None
    detail: str | None = None
    """Additional information."""
    note: str | None = None
    """Reservation about the check's values, in a few words."""


def machine_checks(measured: Mapping[str, CachedCeilings] | None = None) -> list[Check]:
    """Return every check, by group, in the order of the report.

    `measured` are ceilings by device, including those that could not be saved.
    """
    return [*instrument_checks(), *counter_checks(), *ceiling_checks(measured or {}), *precision_checks(),
            *noise_checks(), *view_checks()]


def instrument_checks() -> list[Check]:
    """Return what each pass over a case can measure here."""
    group = "Instruments"
    gpus, reason = gpu_facts()
    checks = [
        Check(group, "phases, host clock", "ok", "data, forward, loss, backward, update, other"),
        Check(group, "operators", "ok", "torch.profiler: types, layers, shapes; in their own pass"),
        Check(group, "memory", "ok", "allocator statistics on CUDA devices, profiler events on the CPU; categories"),
        Check(group, "FLOP", "ok", "counted on fake tensors; needs no device"),
    ]
    cuda = ("phases, CUDA events", "kernels")
    if gpus:
        names = ", ".join(f"cuda:{gpu['index']} {gpu['name']}" for gpu in gpus)
        return checks + [Check(group, name, "ok", names) for name in cuda]
    driver = driver_version()
    remedy = (f"NVIDIA driver {driver} is here: install a CUDA build of torch" if driver
              else "no NVIDIA driver here either: run charact on a machine with a GPU")
    return checks + [Check(group, name, "n/a", str(reason), remedy) for name in cuda]


def counter_checks() -> list[Check]:
    """Return a check of each counter source: its counters or why it is unavailable, when it is read, its cost."""
    checks = []
    for source in all_sources().values():
        unavailable, names = source.available(), _names(source)
        how = f"{_TAKEN[source.taken]}; cost: {source.cost}"
        note = NOT_TRIED if source.tried_on is None else None
        checks.append(
            Check("Counters", source.name, "ok", names, detail=how, note=note) if unavailable is None
            else Check("Counters", source.name, "n/a", unavailable.reason, unavailable.remedy,
                       f"would give {names}; {how}", note))
    return checks


def _names(source: CounterSource) -> str:
    names = [counter.name for counter in source.counters]
    rest = f" and {len(names) - _MAX_NAMES} more (charact list counters)" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + rest


def ceiling_checks(measured: Mapping[str, CachedCeilings]) -> list[Check]:
    """Return a check of each device: whether its ceilings are in the cache, for PyTorch's current number of threads.

    `measured` are ceilings that were measured just now, by device; those that the cache lacks could not be saved.
    """
    import torch

    machine = machine_facts()
    checks = []
    for device in ("cpu", *(f"cuda:{gpu['index']}" for gpu in machine["gpus"])):
        name = f"ceilings of {device}"
        threads = torch.get_num_threads()
        try:
            file = ceilings_file(machine["fingerprint"], torch.__version__, threads, device)
            cached = read_cached(file, CachedCeilings)
        except NotCached as missing:
            if device in measured:
                checks.append(Check("Ceilings", name, "limited", f"measured {measured[device].when}, but not saved",
                                    "charact doctor --ceilings, when the machine is idle and the cache can be written"))
                continue
            checks.append(Check("Ceilings", name, "n/a", str(missing), "charact doctor --ceilings measures them"))
        else:
            checks.append(Check("Ceilings", name, "ok", f"measured {cached.when}, with {threads} threads"))
    return checks


def precision_checks(cpuinfo: Path = Path("/proc/cpuinfo")) -> list[Check]:
    """Return the precisions that autocast supports on each device."""
    import torch

    from charact.execution.precision import unsupported_reason

    group, native = "Precision", native_bf16(cpuinfo)
    lacking, remedy = "no bf16 instructions", "measure it on a newer CPU or a GPU"
    if limit := onednn_limit():
        lacking = f"the environment limits oneDNN to {limit}, without bf16 instructions"
        remedy = "unset ONEDNN_MAX_CPU_ISA DNNL_MAX_CPU_ISA"
    checks = [
        Check(group, "bf16 on the CPU", "ok", f"native ({', '.join(native)})") if native
        else Check(group, "bf16 on the CPU", "limited",
                   f"{lacking}: slower than fp32, and an LSTM runs with AVX-512 only", remedy),
        *(Check(group, f"{name} on the CPU", "n/a", unsupported_reason(name, torch.device("cpu")) or "")
          for name in ("fp16", "tf32")),
    ]
    gpus, _ = gpu_facts()
    if gpus:
        bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
        checks.append(Check(group, "bf16 on the GPU", "ok", "native") if bf16
                      else Check(group, "bf16 on the GPU", "limited", "emulated: slower than fp32", "use fp16"))
        checks.append(Check(group, "fp16 on the GPU", "ok", "native"))
    return checks


def noise_checks() -> list[Check]:
    """Return sources of timing noise: more threads than cores, other processes, swapped memory."""
    import psutil
    import torch

    group, cores, busy_cores = "Noise", usable_cores(), cores_in_use(_LOAD_WINDOW_S)
    num_threads, policy = torch.get_num_threads(), os.environ.get("OMP_WAIT_POLICY")
    swapped_bytes, is_loaded = psutil.swap_memory().used, busy_cores > NOISY_LOAD_FRAC * cores
    origin = "OMP_NUM_THREADS" if "OMP_NUM_THREADS" in os.environ else "torch's default"
    threads = f"{num_threads} on {cores} usable cores ({origin})"
    load = f"other processes keep {busy_cores:.1f} of {cores} cores busy"
    spinning = f"spin while they wait (OMP_WAIT_POLICY {policy or 'not set'})"
    if policy is not None and policy.lower() == "passive":
        openmp = Check(group, "OpenMP threads", "ok", "sleep while they wait (OMP_WAIT_POLICY=PASSIVE)")
    elif is_loaded:
        openmp = Check(group, "OpenMP threads", "limited", f"{spinning}: many times slower while other processes run",
                       "export OMP_WAIT_POLICY=PASSIVE")
    else:
        openmp = Check(group, "OpenMP threads", "ok", f"{spinning}: harmless while the cores are free")
    return [
        Check(group, "threads", "ok", threads) if num_threads <= cores else
        Check(group, "threads", "limited", threads, f"--threads {cores}: more threads wait for each other"),
        Check(group, "load now", "limited", f"{load}: times will vary", "wait until they end") if is_loaded else
        Check(group, "load now", "ok", load),
        openmp,
        Check(group, "swap", "limited", f"{quantity(swapped_bytes, 'B')} swapped out: page faults in timed code",
              "end programs that use much memory, then sudo swapoff -a && sudo swapon -a") if swapped_bytes else
        Check(group, "swap", "ok", "none in use"),
    ]


def cores_in_use(window_s: float) -> float:
    """Return how many cores are busy while this process waits, mean over a time (s)."""
    import psutil

    return psutil.cpu_percent(interval=window_s) / 100 * (psutil.cpu_count() or 1)


def view_checks() -> list[Check]:
    """Return whether TensorBoard can show the record, and which optional packages are installed."""
    group = "Views"
    report = Check(group, "HTML report", "ok", "one file; any browser opens it, none is needed to write it")
    if any(point.name == "charact" for point in entry_points(group="tensorboard_plugins")):
        tab = Check(group, "TensorBoard tab", "ok", f"charact's plugin in tensorboard {version('tensorboard')}")
    else:
        tab = Check(group, "TensorBoard tab", "n/a", "charact's plugin is not registered", "install charact with pip")
    try:
        finding = f"{version('torch-tb-profiler')}: finds the traces in each run"
        viewer = Check(group, "torch-tb-profiler", "ok", finding)
    except PackageNotFoundError:
        viewer = Check(group, "torch-tb-profiler", "n/a", "not installed; charact's own tab does not need it",
                       'pip install "charact[torch-tb-profiler]"')
    return [report, tab, viewer]
