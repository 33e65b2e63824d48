"""Running a case once more in a process of its own, under another tool or where a crash costs nothing."""

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
from charact.measure.counters._support.protocol import Refusal, Refused
from charact.workload.base import Workload
from charact.workload.registry import find_workload
from charact.workload.user_model.input_spec import parse_input_spec
from charact.workload.user_model.model import OwnModel, own_model

NUM_WARM_UPS = 3
"""Iterations before those that count: libraries choose their algorithms, optimizers make their state."""


@dataclass(frozen=True)
class Ended:
    """How a child process ended: what it returned, negative where a signal ended it, and all that it wrote."""

    status: int
    output: str


def write_case(case: Case, path: Path) -> None:
    """Write down a case so that another process can bring it to life: `read_case` gives an equal one.

    Raises:
        Refused: its workload cannot be found by name.
    """
    told = {
        "workload": _workload_facts(case.workload), "num_threads": torch.get_num_threads(),
        "data": asdict(case.data) | {"directory": case.data.directory and str(case.data.directory)},
        "case": {"input_size": case.input_size, "batch_size": case.batch_size, "mode": case.mode,
                 "precision": case.precision, "device": str(case.device), "num_workers": case.num_workers,
                 "channels_last": case.channels_last, "compiled": case.compiled, "accumulate": case.accumulate},
    }  # fmt: skip
    path.write_text(json.dumps(told), encoding="utf-8")


def read_case(path: Path) -> Case:
    """The case that was written down; PyTorch's number of threads is set to what it was there."""
    told = json.loads(path.read_text(encoding="utf-8"))
    torch.set_num_threads(told["num_threads"])
    data, case = told["data"], told["case"]
    directory = None if data["directory"] is None else Path(data["directory"])
    request = DataRequest(**data | {"directory": directory, "synthetic": Synthetic(**data["synthetic"])})
    return Case(workload=_workload(told["workload"]), data=request, **case | {"device": torch.device(case["device"])})


@contextlib.contextmanager
def warm_loop(path: Path) -> Iterator[Loop]:
    """The case that was written down, brought to life and warmed up."""
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
        raise Refused(f"needs {workload.name} in another process, where it cannot be found by its name",
                      "give it an entry point of the group charact.workloads")
    return facts


def _workload(facts: Mapping[str, Any]) -> Workload:
    if "name" in facts:
        return find_workload(facts["name"]).prepare(facts["variant"])
    return own_model(**{**facts, "spec": parse_input_spec(facts["spec"])}).prepare()


def child_command(module: str, *arguments: Path) -> list[str]:
    """Command that runs a module of this package with this Python, and nothing from the working directory."""
    return [sys.executable, "-P", "-m", f"charact.measure.counters.{module}", *map(str, arguments)]


def run_child(command: Sequence[str], timeout_s: float, output: Path) -> Ended:
    """Run a command to its end; whatever ends this earlier ends the command and all that it started, too.

    Its modules are found where this process finds them.

    Args:
        command: what to run.
        timeout_s: time that it may take.
        output: file for what it writes.

    Raises:
        Refused: it took longer.
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with output.open("wb") as file:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                                 env=environment, start_new_session=True)
        try:
            status = child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            _end(child)
            raise Refused(f"was not done after {timeout_s:.0f} s", "choose smaller --batch-sizes") from None
        except BaseException:
            _end(child)
            raise
    return Ended(status, output.read_text(encoding="utf-8", errors="replace"))


def _end(child: "subprocess.Popen[bytes]") -> None:
    """End a child and its group; tools that start programs of their own may leave these behind otherwise."""
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def child_refusal(ended: Ended) -> Refusal | None:
    """Why a child gave nothing, from how it ended; None where it went well."""
    if ended.status == 0:
        return None
    if re.search(r"out ?of ?memory", ended.output, re.IGNORECASE):
        return Refusal("there is not enough memory to run the case a second time beside this process",
                       "choose smaller --batch-sizes")
    if ended.status < 0:
        return Refusal(f"the process that runs the case again was ended by signal {-ended.status}",
                       "look for it in the system's log")
    lines = [line.strip() for line in ended.output.splitlines() if line.strip()]
    return Refusal(f"running the case again failed: {lines[-1][:200] if lines else f'status {ended.status}'}")
