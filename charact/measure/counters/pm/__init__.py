"""CUPTI's sampling of the hardware's counters, without replaying kernels: the literature's metrics for each phase."""

import importlib.util
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch

from charact.execution.loop import Loop
from charact.measure.counters._support.cupti import VERSIONS
from charact.measure.counters._support.permissions import counters_refusal
from charact.measure.counters._support.protocol import Counter, Found, Refusal, Refused
from charact.measure.counters._support.rerun_case import child_command, child_refusal, run_child, write_case

TIMEOUT_S = 600.0
_NO_FLOP = ("sampling has no counts of instructions by what they compute; tensor_pipe_frac tells how busy tensor cores "
            "are, and --counters ncu counts FLOP")


class PmSampling:
    """Counters of the whole device, many times in an iteration, shared out among phases by time.

    Sampling locks the device's clocks, so no time of the case is taken here. It runs in a child process: CUPTI's
    profiler must not be begun twice in one, and needs its own library rather than PyTorch's. The case is brought to
    life again there, with the same seed, beside the one of this process: both need memory.

    *Error*: samples are laid onto the host's clock by bursts of work at known times; `clock_error_s` in the manifest
    bounds what phases may be off by. A sample on the border of two phases counts for each by its share of time. What
    other programs do on the device is counted, too.

    *Source*: CUPTI, "PM Sampling"; cupti-python 13.4.
    """

    name = "pm"
    cost = "some seconds in a process of its own; locks the device's clocks meanwhile"
    devices = frozenset({"cuda"})
    reads: Literal["device"] = "device"
    taken: Literal["own pass"] = "own pass"
    counters = (
        Counter("warp_occupancy_frac", "active warps over those that fit, while a multiprocessor is at work",
                "sampled", "device"),
        Counter("warp_execution_efficiency_frac", "active threads of an executed warp instruction, of 32; no chip to "
                "date counts it in one pass", "sampled", "device"),
        Counter("nonpredicated_efficiency_frac", "threads of an executed warp instruction that are active and not "
                "predicated off, of 32", "sampled", "device"),
        Counter("bandwidth_utilization_frac", "use of the device memory's bandwidth, idle time included",
                "sampled", "device"),
        Counter("dram_bytes", "bytes that went from and to device memory in one iteration", "sampled", "device"),
        Counter("tensor_pipe_frac", "share of cycles in which tensor cores were busy, idle time included",
                "sampled", "device"),
    )

    def available(self) -> Refusal | None:
        """Where cupti-python can sample, and the driver lets it."""
        return counters_refusal() or _package_refusal()

    def take(self, loop: Loop) -> Found:
        """Sample iterations of the loop's case in a child process; the loop itself is left alone."""
        refusal = _package_refusal()
        if refusal is not None:
            raise Refused(refusal.reason, refusal.remedy)
        if loop.case.device.type == "cuda":
            torch.cuda.empty_cache()  # the child needs as much again
        with tempfile.TemporaryDirectory(prefix="charact-pm-") as directory:
            answer = _answer(loop, Path(directory))
        if "refusal" in answer:
            raise Refused(**answer["refusal"])
        found = Found(**answer["found"])
        return Found(found.rows, {**found.missing, "flop_per_s": _NO_FLOP}, found.facts)


def _package_refusal() -> Refusal | None:
    spec = importlib.util.find_spec("cupti")  # importing it would load PyTorch's CUPTI under it
    if spec is None or spec.submodule_search_locations is None:
        return Refusal("cupti-python is not installed", VERSIONS)
    if not any((Path(place) / "pm_sampling.py").exists() for place in spec.submodule_search_locations):
        return Refusal("this cupti-python cannot sample: it needs 13.3 or later", VERSIONS)
    return None


def _answer(loop: Loop, directory: Path) -> Mapping[str, Any]:
    case, answer = directory / "case.json", directory / "answer.json"
    write_case(loop.case, case)
    ended = run_child(child_command("_support.pm_child", case, answer), TIMEOUT_S, directory / "output.txt")
    refusal = child_refusal(ended)
    if refusal is not None:
        raise Refused(refusal.reason, refusal.remedy)
    told: Mapping[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
    return told


SOURCE = PmSampling()
