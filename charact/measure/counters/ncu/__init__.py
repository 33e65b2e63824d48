"""Nsight Compute: counters of each kernel of one iteration, by replaying it alone on the device."""

import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
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
from charact.measure.counters.ncu.csv_page import (
    Launch,
    Wanted,
    counters_of,
    launches_by,
    listed_metrics,
    read_launches,
    wanted_metrics,
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
        """Require `ncu` and the driver's permission."""
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
    command = _command(executable, wanted.metrics, log, directory / "case.json")
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


def _command(executable: Path, metrics: Sequence[str], log: Path, case: Path) -> list[str]:
    ranges = [part for phase in PHASES for part in ("--nvtx-include", RANGE_PREFIX + phase)]
    return [str(executable), "--target-processes", "all", "--nvtx", *ranges, "--replay-mode", "kernel",
            "--cache-control", "none", "--clock-control", "none", "--print-kernel-base", "demangled",
            "--csv", "--page", "raw", "--print-units", "base", "--metrics", ",".join(metrics),
            "--log-file", str(log), *child_command("_support.rerun_case", case)]


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
