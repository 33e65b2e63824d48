"""Nsight Compute: what each kernel of one iteration does, by replaying it alone on the device."""

import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch

from charact.execution.case import Case
from charact.execution.loop import Loop
from charact.machine.facts import find_program
from charact.measure.counters._support.permissions import ADMIN_ONLY, BUSY, UNSUPPORTED, counters_refusal
from charact.measure.counters._support.protocol import Counter, Found, Refusal, Refused, Rows
from charact.measure.counters._support.rerun_case import Ended, child_command, child_refusal, run_child, write_case
from charact.measure.counters.ncu.child import RANGE_PREFIX
from charact.measure.counters.ncu.csv_page import Launch, launches_by, listed_metrics, read_launches
from charact.measure.counters.ncu.metrics import counters_of, wanted_metrics
from charact.record.schema import PHASES

TIMEOUT_S = 1800.0
"""Each kernel is run several times, with its memory saved and restored: an iteration takes minutes."""
_QUERY_TIMEOUT_S = 120.0
_PLACES = ("/usr/local/cuda*/bin/ncu", "/opt/nvidia/nsight-compute/*/ncu", "/usr/local/NVIDIA-Nsight-Compute*/ncu")

_SIGNS = (
    (r"ERR_NVGPUCTRPERM", ADMIN_ONLY),
    (r"driver resource was unavailable|tool \(like DCGM\)", BUSY),
    (r"[Nn]ot supported on (?:this )?device|[Uu]nsupported (?:GPU|device|architecture)", UNSUPPORTED),
)
"""What `ncu` says when it cannot count."""


class NsightCompute:
    """Counters of every kernel of one iteration, which a child process runs under `ncu` between ranges.

    Kernels run one at a time and several times over, so that only shares and amounts are of use: `kernel_s` is the
    device's time without any overlap, and no time of the case is taken from here. The case is brought to life again in
    the child, with the same seed, beside the one of this process: both need memory.

    *Source*: options from the manual of the Nsight Compute CLI ("Command Line Options", "NVTX Filtering": a range's
    name without a slash is one of the whole process).
    """

    name = "ncu"
    cost = "minutes: every kernel of one iteration runs alone and several times, in a process of its own"
    devices = frozenset({"cuda"})
    reads: Literal["device"] = "device"
    taken: Literal["own pass"] = "own pass"
    counters = (
        Counter("warp_occupancy_frac", "active warps over those that fit, while a multiprocessor is at work; mean over "
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
        Counter("dram_bytes", "bytes that went from and to device memory in one iteration", "measured",
                "kernels of one iteration"),
        Counter("kernel_s", "time of the kernels, each alone on the device", "measured", "kernels of one iteration"),
        Counter("num_launches", "launches of kernels", "measured", "kernels of one iteration"),
    )

    def available(self) -> Refusal | None:
        """Where `ncu` is found, and the driver lets it count."""
        refusal = counters_refusal()
        if refusal is None and find_ncu() is None:
            return Refusal("ncu is neither on PATH nor where CUDA puts it", "install Nsight Compute")
        return refusal

    def take(self, loop: Loop) -> Found:
        """Run one iteration of the loop's case under `ncu`; the loop itself is left alone."""
        executable = find_ncu()
        if executable is None:
            raise Refused("ncu is neither on PATH nor where CUDA puts it", "install Nsight Compute")
        if loop.case.device.type == "cuda":
            torch.cuda.empty_cache()  # the child needs as much again
        with tempfile.TemporaryDirectory(prefix="charact-ncu-") as directory:
            launches, num_broken, metrics = _profile(executable, loop.case, Path(directory))
        given = counters_of(launches)
        return Found(rows=_rows(launches, str(loop.case.device)), missing={
            counter.name: "ncu gave none of what it is made of, for this chip or some kernel"
            for counter in self.counters if counter.name not in given
        }, facts={"num_iterations": 1, "num_broken_rows": num_broken, "metrics": metrics})


def find_ncu() -> Path | None:
    """Nsight Compute's command: the one on PATH, else CUDA's, else the newest where its installers put it."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    on_path = find_program("ncu") or (home and find_program("ncu", path=f"{home}/bin"))
    if on_path:
        return Path(on_path)
    for pattern in _PLACES:
        found = sorted(Path("/").glob(pattern.lstrip("/")), key=_version)
        if found:
            return found[-1]
    return None


def _version(path: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", str(path))]


def _profile(executable: Path, case: Case, directory: Path) -> tuple[list[Launch], int, list[str]]:
    """Launches of an iteration, the number of rows that were broken, and the metrics that were asked for."""
    metrics = wanted_metrics(_listed(executable))
    log = directory / "ncu.csv"
    write_case(case, directory / "case.json")
    ended = run_child(_command(executable, metrics, log, directory / "case.json"), TIMEOUT_S, directory / "output.txt")
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    refusal = _refusal(ended, text)
    if refusal is not None:
        raise Refused(refusal.reason, refusal.remedy)
    launches, num_broken = read_launches(text, RANGE_PREFIX)
    if not launches:
        raise Refused("ncu saw no kernel in the iteration", "look whether the case runs on the GPU")
    return launches, num_broken, metrics


def _listed(executable: Path) -> set[str]:
    """Metrics of the chip: their names differ between generations, and one that is unknown fails them all."""
    try:
        done = subprocess.run([executable, "--query-metrics", "--csv"], capture_output=True, text=True,
                              errors="replace", stdin=subprocess.DEVNULL, timeout=_QUERY_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise Refused(f"ncu --query-metrics was not done after {_QUERY_TIMEOUT_S:.0f} s",
                      "try it by hand, and mend what it waits for") from None
    listed = listed_metrics(done.stdout)
    if not listed:
        refusal = _refusal(Ended(done.returncode, done.stdout + done.stderr), "") or Refusal(
            "ncu --query-metrics lists no metrics", "run it by hand, and mend what it misses")
        raise Refused(refusal.reason, refusal.remedy)
    return listed


def _command(executable: Path, metrics: Sequence[str], log: Path, case: Path) -> list[str]:
    ranges = [part for phase in PHASES for part in ("--nvtx-include", RANGE_PREFIX + phase)]
    return [str(executable), "--target-processes", "all", "--nvtx", *ranges, "--replay-mode", "kernel",
            "--cache-control", "none", "--clock-control", "none", "--print-kernel-base", "demangled",
            "--csv", "--page", "raw", "--print-units", "base", "--metrics", ",".join(metrics),
            "--log-file", str(log), *child_command("ncu.child", case)]


def _refusal(ended: Ended, log: str) -> Refusal | None:
    """Why a run under `ncu` is of no use; None where it is."""
    said = [line.removeprefix("==ERROR==").strip() for line in (log + "\n" + ended.output).splitlines()
            if line.startswith("==ERROR==")]
    if ended.status == 0 and not said:
        return None
    for sign, refusal in _SIGNS:
        if any(re.search(sign, line) for line in said):
            return refusal
    # Told is what stands last: what the program said, else the first error, which is the cause of those after it.
    program = [line for line in ended.output.splitlines() if not line.startswith("==")]
    return child_refusal(Ended(ended.status or 1, "\n".join([*reversed(said), *program])))


def _rows(launches: Sequence[Launch], device: str) -> Rows:
    return [{"phase": phase, "kernel": kernel, "device": device, "counter": counter, "value": value}
            for (phase, kernel), group in launches_by(launches).items()
            for counter, value in counters_of(group).items()]


SOURCE = NsightCompute()
