"""CUPTI's sampling of hardware counters, without kernel replay: occupancy, efficiency and bandwidth by phase."""

import importlib.util
import json
import tempfile
from pathlib import Path

import torch

from charact.execution.loop import Loop
from charact.measure.counters._support.cupti import VERSIONS
from charact.measure.counters._support.protocol import (
    Counter,
    Found,
    PassSource,
    Unavailable,
    UnavailableError,
    counters_unavailable,
)
from charact.measure.counters._support.rerun_case import child_command, child_failure, run_child, write_case

TIMEOUT_S = 600.0
_NEVER = {
    "flop_per_s": "sampling cannot count instructions by operation; tensor_pipe_frac shows how busy tensor cores are, "
                  "and --counters ncu counts FLOP",
    "warp_execution_efficiency_frac": "every chip counts it in more than one pass, and sampling has one: "
                                      "use --counters ncu",
}
"""Metrics of the literature that sampling does not give, and why.

Source: queries of CUPTI 13.0 for every chip from TU102 to GB20B; each needs three passes to count all threads of an
instruction.
"""


class PmSampling(PassSource):
    """Counters of the whole device, many times per iteration, attributed to phases by time.

    Sampling locks the device's clocks, so it gives no times of the case. It runs in a child process: CUPTI's profiler
    can be started only once per process, and needs its own library instead of PyTorch's. The child creates the case
    again with the same seed, so both processes need memory at the same time.

    *Error*: samples are aligned with the host's clock by bursts of work at known times; `clock_error_s` in the manifest
    bounds the error of phases. A sample across two phases counts for each by its share of time. Other programs on the
    device are counted, too.

    *Source*: CUPTI, "PM Sampling"; cupti-python 13.4.
    """

    name = "pm"
    cost = "some seconds in a separate process, during which the device's clocks are locked"
    taken = "own pass"
    counters = (
        Counter("warp_occupancy_frac", "active warps over those that fit, while a multiprocessor is active",
                "sampled", "device"),
        Counter("nonpredicated_efficiency_frac", "threads of an executed warp instruction that are active and not "
                "predicated off, of 32", "sampled", "device"),
        Counter("bandwidth_utilization_frac", "use of the device memory's bandwidth, idle time included",
                "sampled", "device"),
        Counter("dram_bytes", "bytes read from and written to device memory in one iteration", "sampled", "device"),
        Counter("tensor_pipe_frac", "share of cycles in which tensor cores were busy, idle time included",
                "sampled", "device"),
    )

    def available(self) -> Unavailable | None:
        """Return why the source cannot be used; it needs cupti-python with sampling, and the driver's permission."""
        return counters_unavailable() or _package_unavailable()

    def take(self, loop: Loop) -> Found:
        """Sample iterations of the loop's case in a child process; the loop itself is not used."""
        unavailable = _package_unavailable()
        if unavailable is not None:
            raise UnavailableError(unavailable)
        if loop.case.device.type == "cuda":
            torch.cuda.empty_cache()  # the child needs the same amount
        with tempfile.TemporaryDirectory(prefix="charact-pm-") as name:
            directory = Path(name)
            write_case(loop.case, directory / "case.json")
            command = child_command("_support.pm_child", directory / "case.json", directory / "answer.json")
            failure = child_failure(run_child(command, TIMEOUT_S, directory / "output.txt"))
            if failure is not None:
                raise UnavailableError(failure)
            answer = json.loads((directory / "answer.json").read_text(encoding="utf-8"))
        if "unavailable" in answer:
            raise UnavailableError(**answer["unavailable"])
        result = Found(**answer["found"])
        return Found(result.rows, {**result.missing, **_NEVER}, result.facts)


def _package_unavailable() -> Unavailable | None:
    spec = importlib.util.find_spec("cupti")  # an import would load PyTorch's CUPTI
    if spec is None or spec.submodule_search_locations is None:
        return Unavailable("cupti-python is not installed", VERSIONS)
    if not any((Path(place) / "pm_sampling.py").exists() for place in spec.submodule_search_locations):
        return Unavailable("this cupti-python cannot sample: it needs 13.3 or later", VERSIONS)
    return None


SOURCE = PmSampling()
