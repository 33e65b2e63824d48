"""Nsight Compute: counters of each kernel of one iteration, by replaying it alone on the device.

Source of the formats: `ncu --csv --page raw` with `--nvtx` writes progress lines that begin with ==, a header, a row of
units, and a row per launch, with all fields quoted. Numbers have commas between thousands; missing values are `n/a` or
`nan`. Ranges are in columns named `thread Domain:Push/Pop_Range:PL_Type:...` and
`Id:Domain:Start/Stop_Range:PL_Type:...`, as `<default domain>:name:none:...` (Nsight Compute CLI, "NVTX Filtering" and
"Page Options"; formats as in exports of the versions 2023 to 2026).
"""

import csv
import math
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

import torch

from charact.execution.case import Case
from charact.execution.loop import Loop
from charact.machine.facts import find_program
from charact.measure.counters._support.protocol import (
    ADMIN_ONLY,
    BUSY,
    UNSUPPORTED,
    Counter,
    Found,
    PassSource,
    Unavailable,
    UnavailableError,
    counters_unavailable,
)
from charact.measure.counters._support.rerun_case import (
    RANGE_PREFIX,
    Ended,
    child_command,
    child_failure,
    run_child,
    write_case,
)
from charact.record.schema import PHASES, Rows

TIMEOUT_S = 1800.0
"""Time limit in seconds: each kernel runs several times, with its memory saved and restored, which takes minutes."""
_QUERY_TIMEOUT_S = 120.0
_PLACES = ("/usr/local/cuda*/bin/ncu", "/opt/nvidia/nsight-compute/*/ncu", "/usr/local/NVIDIA-Nsight-Compute*/ncu")

_SIGNS = (
    (r"ERR_NVGPUCTRPERM", ADMIN_ONLY),
    (r"driver resource was unavailable|tool \(like DCGM\)", BUSY),
    (r"[Nn]ot supported on (?:this )?device|[Uu]nsupported (?:GPU|device|architecture)", UNSUPPORTED),
)
"""Error messages of `ncu`, and their reasons."""


DURATION = "gpu__time_duration.sum"
SHARES = {
    "warp_occupancy_frac": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "warp_execution_efficiency_frac": "smsp__thread_inst_executed_per_inst_executed.pct",
    "nonpredicated_efficiency_frac": "smsp__thread_inst_executed_pred_on_per_inst_executed.pct",
    "bandwidth_utilization_frac": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
}
"""Metrics of counters that are shares."""
_BYTES = "dram__bytes.sum"
_FLOP_OF = {f"smsp__sass_thread_inst_executed_op_{width}{operation}_pred_on.sum": flop * numbers
            for width, numbers in (("h", 2), ("f", 1), ("d", 1))
            for operation, flop in (("add", 1), ("mul", 1), ("fma", 2))}
"""FLOP of an instruction executed by one thread. Instructions of 2 bytes compute two packed numbers.

Source: Nsight Compute's section files, whose roofline charts weight `hadd`, `hmul` and `hfma` by 2, 2 and 4.
"""
_PACKED_FLOP_OF = {f"smsp__sass_thread_inst_executed_op_f{operation}2_pred_on.sum": flop
                   for operation, flop in (("add", 2), ("mul", 2), ("fma", 4))}
"""The same, of two packed numbers of 4 bytes, which chips have from Blackwell on."""
_TENSOR = "sm__ops_path_tensor_"
_FLOAT, _INTEGER = r"(?:mx|nv)?(?:fp|bf|tf)\d+", r"u?int\d+"
_OPERATION, _SPARSITY = r"(?:op_[a-z]+_)?", r"(?:_sparsity_(?:on|off))?"
_TENSOR_FLOP = re.compile(rf"{_TENSOR}{_OPERATION}src_{_FLOAT}(?:_{_FLOAT})*(?:_dst_{_FLOAT})?{_SPARSITY}")
"""Metrics of the operations of tensor cores on floating-point numbers.

Source: metrics of every chip from GV100 to GR100 in CUPTI 12.2 to 13.5. All have `..._src_<formats>`, of all
instructions together; from Hopper on there are parts by instruction (`..._op_hmma_src_<formats>`), too.
"""
_TENSOR_INTEGER = re.compile(rf"{_TENSOR}{_OPERATION}src_{_INTEGER}\w*")
_TENSOR_INSTRUCTIONS = "sm__inst_executed_pipe_tensor.sum"
_FIRST_WITH_TENSOR_CORES = (7, 0)
_MAX_NAMES = 3
_UNITS = {
    "kbyte": 1e3, "mbyte": 1e6, "gbyte": 1e9, "tbyte": 1e12,
    "ns": 1e-9, "nsecond": 1e-9, "us": 1e-6, "usecond": 1e-6, "ms": 1e-3, "msecond": 1e-3,
}
"""Factors to base units. Percentages are recognized by the metric's name."""


@dataclass(frozen=True)
class Launch:
    """One kernel launch: its phase, and its metrics in base units by name."""

    phase: str | None
    kernel: str
    values: Mapping[str, float]


def read_launches(text: str, range_prefix: str) -> tuple[list[Launch], int]:
    """Return the launches in the text, and the number of incomplete rows, as in a truncated file.

    Ranges with the prefix are phases.
    """
    lines = (line.strip().replace("\0", "") for line in text.splitlines())
    # Lines are parsed separately: a quote may be cut off.
    rows = [next(csv.reader([line])) for line in lines if line.startswith('"')]
    start = next((number for number, row in enumerate(rows) if "ID" in row and "Kernel Name" in row), None)
    if start is None:
        return [], 0
    header, rows = rows[start], rows[start + 1:]
    units = dict.fromkeys(header, "")
    if rows and len(rows[0]) == len(header) and not rows[0][header.index("ID")]:
        units, rows = dict(zip(header, rows[0], strict=True)), rows[1:]
    whole = [row for row in rows if len(row) == len(header) and row[header.index("ID")].isdigit()]
    launches = []
    for row in (dict(zip(header, row, strict=True)) for row in whole):
        ranges = " ".join(cell for column, cell in row.items() if "_Range:" in column)
        phase = re.search(rf"{re.escape(range_prefix)}(\w+)", ranges)
        values = {name: _number(cell, name, units[name]) for name, cell in row.items() if "__" in name}
        launches.append(Launch(phase[1] if phase else None, row["Kernel Name"],
                               {name: value for name, value in values.items() if value is not None}))
    return launches, len(rows) - len(whole)


def _number(cell: str, name: str, unit: str) -> float | None:
    factor = 0.01 if ".pct" in name else _UNITS.get(unit.strip().lower(), 1.0)
    try:
        value = float(cell.replace(",", ""))
    except ValueError:
        return None
    return value * factor if math.isfinite(value) else None


def listed_metrics(text: str) -> set[str]:
    """Return the metrics in the output of `ncu --query-metrics`, without suffixes, from CSV or columns."""
    return set(re.findall(r'^"?([a-z0-9]+__\w+)', text, re.MULTILINE))


def launches_by(launches: Sequence[Launch]) -> dict[tuple[str | None, str | None], list[Launch]]:
    """Return the launches by (phase, kernel): of the whole, of each phase, and of each kernel in a phase."""
    groups: dict[tuple[str | None, str | None], list[Launch]] = {(None, None): list(launches)}
    for launch in launches:
        if launch.phase is not None:
            groups.setdefault((launch.phase, None), []).append(launch)
        groups.setdefault((launch.phase, launch.kernel), []).append(launch)
    return groups


@dataclass(frozen=True)
class Wanted:
    """Metrics to request, and why they do not count all operations of tensor cores; None if they do."""

    metrics: list[str]
    tensor_gap: str | None = None


def wanted_metrics(listed: AbstractSet[str], capability: tuple[int, int] | None) -> Wanted:
    """Return the metrics to request, of those that the chip has; names are compared without suffix.

    Metrics of tensor-core operations differ by chip, and some have parts (`..._dst_fp32`, `..._op_hmma_...`) in
    addition to the sum; then only the sum is used. If some have unknown names, the instructions of tensor cores are
    requested: the FLOP of a launch that executes none are known.

    `capability` is the compute capability, if it is a CUDA device.
    """
    def is_part(name: str, other: str) -> bool:
        of_all_instructions = re.sub(rf"^{_TENSOR}op_[a-z]+_", _TENSOR, name)
        return name != other and (of_all_instructions == other or any(
            part.startswith(f"{other}_") for part in (name, of_all_instructions)))

    tensor = sorted(name for name in listed if _TENSOR_FLOP.fullmatch(name))
    whole = [name for name in tensor if not any(is_part(name, other) for other in tensor)]
    gap = _tensor_gap(listed, bool(tensor), capability)
    fixed = [DURATION, *SHARES.values(), _BYTES, *_FLOP_OF, *_PACKED_FLOP_OF, *([_TENSOR_INSTRUCTIONS] if gap else [])]
    metrics = [name for name in fixed if name.partition(".")[0] in listed] + [f"{name}.sum" for name in whole]
    return Wanted(metrics, gap)


def _tensor_gap(listed: AbstractSet[str], any_known: bool, capability: tuple[int, int] | None) -> str | None:
    """Return why operations of tensor cores are not counted; None if they are, or if the chip has no tensor cores."""
    names = sorted(name for name in listed if name.startswith(_TENSOR) and not name.endswith("_realtime")
                   and not _TENSOR_FLOP.fullmatch(name) and not _TENSOR_INTEGER.fullmatch(name))
    if not names:
        if any_known:
            return None
        # A GTX 16 has metrics of tensor instructions, which other units execute, but none of their operations.
        names = sorted(name for name in listed if re.match(r"sm__\w*_pipe_tensor", name))
        if not names and (capability is None or capability < _FIRST_WITH_TENSOR_CORES):
            return None
    listing = ", ".join([*names[:_MAX_NAMES], *(["..."] if len(names) > _MAX_NAMES else [])])
    return ("this chip's tensor-core counters have names that charact does not know: "
            f"{listing or 'none has tensor in its name'}")


def counters_of(launches: Sequence[Launch], wanted: Wanted) -> dict[str, float]:
    """Return counters over some launches by name: shares are means weighted by duration, the others are sums.

    A sum is omitted if a launch does not contain its metric.
    """
    counters: dict[str, float] = {"num_launches": len(launches)}
    for counter, metric in SHARES.items():
        weighed = [(launch.values[metric], launch.values[DURATION]) for launch in launches
                   if metric in launch.values and launch.values.get(DURATION, 0) > 0]
        if weighed:
            counters[counter] = sum(value * time_s for value, time_s in weighed) / sum(time_s for _, time_s in weighed)
    sums: dict[str, Callable[[Mapping[str, float]], float | None]] = {
        "kernel_s": lambda values: values.get(DURATION), "dram_bytes": lambda values: values.get(_BYTES),
        "executed_flop": lambda values: _flop(values, wanted)}
    for counter, of in sums.items():
        parts = [part for launch in launches if (part := of(launch.values)) is not None]
        if len(parts) == len(launches) > 0:
            counters[counter] = sum(parts)
    if "executed_flop" in counters and counters.get("kernel_s", 0) > 0:
        counters["flop_per_s"] = counters["executed_flop"] / counters["kernel_s"]
    return counters


def _flop(values: Mapping[str, float], wanted: Wanted) -> float | None:
    """Return the FLOP of a launch: of 2, 4 and 8 bytes, fused operations count twice, and of tensor cores.

    None where a part of them is not known: a sum without tensor cores would be much too low.
    """
    flop_of = {name: _FLOP_OF.get(name) or _PACKED_FLOP_OF.get(name) or 1 for name in wanted.metrics
               if name in _FLOP_OF or name in _PACKED_FLOP_OF or name.startswith(_TENSOR)}
    if not flop_of.keys() >= _FLOP_OF.keys() or not values.keys() >= flop_of.keys():
        return None
    if wanted.tensor_gap is not None and values.get(_TENSOR_INSTRUCTIONS) != 0:
        return None
    return sum(values[name] * flop for name, flop in flop_of.items())


class NsightCompute(PassSource):
    """Counters of every kernel of one iteration, which a child process runs under `ncu` in ranges.

    Kernels run one at a time and several times, so only shares and amounts are meaningful: `kernel_s` is the device's
    time without overlap, not a time of the case. The child creates the case again with the same seed, so both processes
    need memory at the same time.

    *Source*: options from the manual of the Nsight Compute CLI ("Command Line Options", "NVTX Filtering": a range's
    name without a slash applies to the whole process).
    """

    name = "ncu"
    cost = "minutes: every kernel of one iteration runs alone and several times, in a separate process"
    taken = "own pass"
    tried_on = "NVIDIA H200"
    counters = (
        Counter("warp_occupancy_frac", "active warps over those that fit, while a multiprocessor is active; mean over "
                "kernels by their duration", "measured", "kernels of one iteration"),
        Counter("warp_execution_efficiency_frac", "active threads of an executed warp instruction, of 32; mean over "
                "kernels by their duration", "measured", "kernels of one iteration"),
        Counter("nonpredicated_efficiency_frac", "threads of an executed warp instruction that are active and not "
                "predicated off, of 32; mean over kernels by their duration", "measured", "kernels of one iteration"),
        Counter("bandwidth_utilization_frac", "use of the device memory's bandwidth; mean over kernels by their "
                "duration", "measured", "kernels of one iteration"),
        Counter("flop_per_s", "executed_flop over kernel_s", "measured", "kernels of one iteration"),
        Counter("executed_flop", "additions, multiplications and twice the fused ones of 2, 4 and 8 bytes that threads "
                "executed, and operations of tensor cores", "measured", "kernels of one iteration"),
        Counter("dram_bytes", "bytes read from and written to device memory in one iteration", "measured",
                "kernels of one iteration"),
        Counter("kernel_s", "time of the kernels, each alone on the device", "measured", "kernels of one iteration"),
        Counter("num_launches", "launches of kernels", "measured", "kernels of one iteration"),
    )

    def available(self) -> Unavailable | None:
        """Return why the source cannot be used; it needs `ncu` and the driver's permission."""
        unavailable = counters_unavailable()
        if unavailable is None and find_ncu() is None:
            return Unavailable("ncu is neither on PATH nor in CUDA's directories", "install Nsight Compute")
        return unavailable

    def take(self, loop: Loop) -> Found:
        """Run one iteration of the loop's case under `ncu`; the loop itself is not used."""
        executable = find_ncu()
        if executable is None:
            raise UnavailableError("ncu is neither on PATH nor in CUDA's directories", "install Nsight Compute")
        if loop.case.device.type == "cuda":
            torch.cuda.empty_cache()  # the child needs the same amount
        with tempfile.TemporaryDirectory(prefix="charact-ncu-") as directory:
            launches, num_broken, wanted = _profile(executable, loop.case, Path(directory))
        given = counters_of(launches, wanted)
        reasons = dict.fromkeys(("executed_flop", "flop_per_s"), wanted.tensor_gap)
        rows: Rows = [{"phase": phase, "kernel": kernel, "device": str(loop.case.device), "counter": counter,
                       "value": value} for (phase, kernel), group in launches_by(launches).items()
                      for counter, value in counters_of(group, wanted).items()]
        return Found(rows=rows, missing={
            counter.name: reasons.get(counter.name) or "ncu gave none of its metrics, for this chip or some kernel"
            for counter in self.counters if counter.name not in given
        }, facts={"num_iterations": 1, "num_broken_rows": num_broken, "metrics": wanted.metrics})


def find_ncu() -> Path | None:
    """Return Nsight Compute's command: on PATH, else in CUDA's directory, else the newest installed version."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    on_path = find_program("ncu") or (home and find_program("ncu", path=f"{home}/bin"))
    if on_path:
        return Path(on_path)
    for pattern in _PLACES:
        if paths := list(Path("/").glob(pattern.lstrip("/"))):
            return max(paths, key=lambda path: [int(number) for number in re.findall(r"\d+", str(path))])
    return None


def _profile(executable: Path, case: Case, directory: Path) -> tuple[list[Launch], int, Wanted]:
    """Return the launches of an iteration, the number of invalid rows, and the requested metrics."""
    capability = torch.cuda.get_device_capability(case.device) if case.device.type == "cuda" else None
    wanted = wanted_metrics(_listed(executable), capability)
    log = directory / "ncu.csv"
    write_case(case, directory / "case.json")
    ranges = [part for phase in PHASES for part in ("--nvtx-include", RANGE_PREFIX + phase)]
    command = [str(executable), "--target-processes", "all", "--nvtx", *ranges, "--replay-mode", "kernel",
               "--cache-control", "none", "--clock-control", "none", "--print-kernel-base", "demangled",
               "--csv", "--page", "raw", "--print-units", "base", "--metrics", ",".join(wanted.metrics),
               "--log-file", str(log), *child_command("_support.rerun_case", directory / "case.json")]
    ended = run_child(command, TIMEOUT_S, directory / "output.txt")
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    unavailable = _failure(ended, text)
    if unavailable is not None:
        raise UnavailableError(unavailable)
    launches, num_broken = read_launches(text, RANGE_PREFIX)
    if not launches:
        raise UnavailableError("ncu recorded no kernel in the iteration", "check that the case runs on the GPU")
    return launches, num_broken, wanted


def _listed(executable: Path) -> set[str]:
    """Return the metrics of the chip: names differ between generations, and `ncu` fails on an unknown one."""
    try:
        done = subprocess.run([executable, "--query-metrics", "--csv"], capture_output=True, text=True,
                              errors="replace", stdin=subprocess.DEVNULL, timeout=_QUERY_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"ncu --query-metrics did not end within {_QUERY_TIMEOUT_S:.0f} s",
                               "run it by hand to find the cause") from None
    listed = listed_metrics(done.stdout)
    if not listed:
        unavailable = _failure(Ended(done.returncode, done.stdout + done.stderr), "") or Unavailable(
            "ncu --query-metrics lists no metrics", "run it by hand to find the cause")
        raise UnavailableError(unavailable)
    return listed


def _failure(ended: Ended, log: str) -> Unavailable | None:
    errors = [line.removeprefix("==ERROR==").strip() for line in (log + "\n" + ended.output).splitlines()
            if line.startswith("==ERROR==")]
    if ended.status == 0 and not errors:
        return None
    for sign, unavailable in _SIGNS:
        if any(re.search(sign, line) for line in errors):
            return unavailable
    # The last line becomes the reason: the program's own, else the first error, which causes the later ones.
    program = [line for line in ended.output.splitlines() if not line.startswith("==")]
    return child_failure(Ended(ended.status or 1, "\n".join([*reversed(errors), *program])))


SOURCE = NsightCompute()
