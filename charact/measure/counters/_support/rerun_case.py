"""Reruns of a case in a child process, under another tool or isolated from crashes.

Run as a program, it is the child process of `ncu`: it runs one iteration of a case with NVTX ranges.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from charact.core.errors import UserError
from charact.datasets._common.request import DataRequest, Synthetic
from charact.execution.case import Case
from charact.execution.loop import Loop
from charact.execution.precision import float32_products
from charact.measure.counters._support.protocol import Unavailable, UnavailableError
from charact.workload.base import Workload
from charact.workload.registry import find_workload
from charact.workload.user_model.input_spec import parse_input_spec
from charact.workload.user_model.model import OwnModel, own_model

RANGE_PREFIX = "charact_phase_"
"""Beginning of the names of NVTX ranges of phases."""
NUM_WARM_UPS = 3
"""Warm-up iterations: libraries select algorithms, optimizers create their state."""


@dataclass(frozen=True)
class Ended:
    """End of a child process: its exit status, negative for a signal, and its output."""

    status: int
    output: str


def write_case(case: Case, path: Path) -> None:
    """Write a case to a file, from which `read_case` in another process restores an equal one.

    Raises:
        UnavailableError: its workload cannot be found by name.
    """
    facts = {
        "workload": _workload_facts(case.workload), "num_threads": torch.get_num_threads(),
        "data": asdict(case.data) | {"directory": case.data.directory and str(case.data.directory)},
        "case": {"input_size": case.input_size, "batch_size": case.batch_size, "mode": case.mode,
                 "precision": case.precision, "device": str(case.device), "num_workers": case.num_workers,
                 "channels_last": case.channels_last, "compiled": case.compiled, "accumulate": case.accumulate,
                 "output_size": case.output_size, "cache": case.cache, "attention": case.attention,
                 "lora_rank": case.lora_rank},
    }  # fmt: skip
    path.write_text(json.dumps(facts), encoding="utf-8")


def read_case(path: Path) -> Case:
    """Restore a case; sets PyTorch's number of threads to the original one."""
    facts = json.loads(path.read_text(encoding="utf-8"))
    torch.set_num_threads(facts["num_threads"])
    data, case = facts["data"], facts["case"]
    directory = None if data["directory"] is None else Path(data["directory"])
    request = DataRequest(**data | {"directory": directory, "synthetic": Synthetic(**data["synthetic"])})
    return Case(workload=_workload(facts["workload"]), data=request, **case | {"device": torch.device(case["device"])})


@contextlib.contextmanager
def warm_loop(path: Path) -> Iterator[Loop]:
    """Yield a warmed-up loop of a case from a file."""
    case = read_case(path)
    if case.device.type == "cuda":
        torch.cuda.set_device(case.device)
    with float32_products(case.precision):
        loop = Loop(case)
        try:
            for _ in range(NUM_WARM_UPS):
                loop.iteration(contextlib.nullcontext)
            yield loop
        finally:
            loop.close()


def _workload_facts(workload: Workload) -> dict[str, Any]:
    if isinstance(workload, OwnModel):
        arguments = ", ".join(f"{name}={value!r}" for name, value in workload.arguments.items())
        return {"target": workload.source, "arguments": arguments, "spec": workload.spec.text,
                "loss": workload.loss_name, "optimizer": workload.optimizer_class.__name__,
                "learning_rate": workload.learning_rate}
    facts = {"name": workload.name, "variant": workload.variant}
    try:
        same = _workload(facts) == workload
    except UserError:
        same = False
    if not same:
        raise UnavailableError(f"needs {workload.name} in another process, where it cannot be found by its name",
                               "register it as an entry point of the group charact.workloads")
    return facts


def _workload(facts: Mapping[str, Any]) -> Workload:
    if "name" in facts:
        return find_workload(facts["name"]).prepare(facts["variant"])
    return own_model(**{**facts, "spec": parse_input_spec(facts["spec"])}).prepare()


def child_command(module: str, *arguments: Path) -> list[str]:
    """Return the command that runs a module of this package with this Python, isolated from the working directory."""
    return [sys.executable, "-P", "-m", f"charact.measure.counters.{module}", *map(str, arguments)]


def run_child(command: Sequence[str], timeout_s: float, output: Path) -> Ended:
    """Run a command to its end; an exception ends the command and all its child processes.

    It has the same module search path as this process.

    Raises:
        UnavailableError: it exceeded the limit.
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with output.open("wb") as file:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                                 env=environment, start_new_session=True)
        try:
            status = child.wait(timeout_s)
        except BaseException as error:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            raise UnavailableError(f"did not end within {timeout_s:.0f} s", "choose smaller --batch-sizes") from None
    return Ended(status, output.read_text(encoding="utf-8", errors="replace"))


def child_failure(ended: Ended) -> Unavailable | None:
    """Return why a child failed; None if it succeeded."""
    if ended.status == 0:
        return None
    if re.search(r"out ?of ?memory", ended.output, re.IGNORECASE):
        return Unavailable("not enough memory to run the case a second time in addition to this process",
                           "choose smaller --batch-sizes")
    if ended.status < 0:
        return Unavailable(f"the process that reruns the case was ended by signal {-ended.status}",
                           "look for it in the system's log")
    lines = [line.strip() for line in ended.output.splitlines() if line.strip()]
    return Unavailable(f"rerunning the case failed: {lines[-1][:200] if lines else f'status {ended.status}'}")


def main(path: Path) -> None:
    """Warm up, then run one iteration of a case from a file with a range around each phase."""
    @contextlib.contextmanager
    def nvtx_range(phase: str) -> Iterator[None]:
        number = torch.cuda.nvtx.range_start(RANGE_PREFIX + phase)
        yield
        torch.cuda.nvtx.range_end(number)

    with warm_loop(path) as loop:
        loop.iteration(nvtx_range)
        if loop.case.device.type == "cuda":
            torch.cuda.synchronize(loop.case.device)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
