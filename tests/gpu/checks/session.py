"""A session of checks: its folder and device, its lines, and charact as a program."""

import os
import shutil
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path

import torch
from support.programs import Ended, only_record, run_bare

from charact import Run
from charact.datasets._common.request import DataRequest
from charact.execution.case import Case
from charact.workload.registry import find_workload

ROOT = Path(__file__).parents[3]
SCRIPTS = ROOT / "tests" / "scripts"
NO_DEVICE = "needs a CUDA device"


class NotHereError(Exception):
    """The check needs what this machine does not have."""


class Session:
    """Lines of checks, and the programs that they run, each in a folder of its own.

    Args:
        out: folder for all that is written.
        device: device of all cases.
    """

    def __init__(self, out: Path, device: torch.device) -> None:
        self.out = out
        self.device = device
        self.lines: list[str] = []
        self._records: dict[str, Run] = {}

    @property
    def on_cuda(self) -> bool:
        return self.device.type == "cuda"

    def line(self, status: str, name: str, value: object, limit: str = "") -> None:
        """Print a line, and add it to `lines.tsv`."""
        shown = f"{value:.5g}" if isinstance(value, float) else " ".join(str(value).split())
        self.lines.append(f"{status}\t{name}\t{shown}\t{limit}")
        print(self.lines[-1], flush=True)
        with open(self.out / "lines.tsv", "a", encoding="utf-8") as file:
            file.write(self.lines[-1] + "\n")

    def holds(self, name: str, true: bool, value: object, limit: str) -> None:
        self.line("PASS" if true else "FAIL", name, value, limit)

    def within(self, name: str, value: float, low: float, high: float) -> None:
        self.holds(name, low <= value <= high, float(value), f"{low:g} .. {high:g}")

    def times_within(self, name: str, ratio: float, low: float, high: float) -> None:
        """Hold a ratio of times; on a CPU, which other programs share, only show it."""
        if self.on_cuda:
            self.within(name, ratio, low, high)
        else:
            self.line("INFO", name, float(ratio), "not held on a CPU")

    def info(self, name: str, value: object) -> None:
        self.line("INFO", name, value)

    def log(self, text: str) -> None:
        with open(self.out / "programs.log", "a", encoding="utf-8") as file:
            file.write(text + "\n")

    def run(self, *arguments: str, folder: str = "programs", timeout: float = 240.0) -> Ended:
        """Run Python with these arguments in a folder of the session."""
        (self.out / folder).mkdir(exist_ok=True)
        begun = time.monotonic()
        environment = os.environ | {"OMP_WAIT_POLICY": "PASSIVE", "COLUMNS": "160"}
        ended = run_bare(arguments, self.out / folder, env=environment, timeout=timeout)
        self.log(f"$ python {' '.join(arguments)}\n[{ended.status}, {time.monotonic() - begun:.1f} s]\n{ended.output}\n"
                 f"{ended.error}\n" + "\n".join(ended.ours))
        return ended

    def charact(self, *arguments: str, folder: str = "programs", timeout: float = 240.0) -> Ended:
        """Run a command of charact.

        Raises:
            RuntimeError: it ended with another status than 0.
        """
        ended = self.run("-m", "charact", *arguments, folder=folder, timeout=timeout)
        if ended.status != 0:
            raise RuntimeError(f"charact {arguments[0]} ended with {ended.status}: {last_words(ended)}")
        return ended

    def recorded(self, name: str, *arguments: str, timeout: float = 240.0) -> tuple[Ended, Run]:
        """Run a command of charact in a new folder of that name; return how it ended, and its record."""
        shutil.rmtree(self.out / name, ignore_errors=True)
        ended = self.charact(*arguments, folder=name, timeout=timeout)
        return ended, only_record(self.out / name)

    def record(self, name: str, *arguments: str, timeout: float = 240.0) -> Run:
        """Return the record of a command of charact, which runs once for each name."""
        if name not in self._records:
            self._records[name] = self.recorded(name, *arguments, timeout=timeout)[1]
        return self._records[name]

    def profiled(self, name: str, *arguments: str, timeout: float = 240.0) -> Run:
        return self.record(name, "profile", *arguments, "--device", self.device.type, "--quiet", timeout=timeout)

    def big(self) -> Run:
        """Return the record in which the device always has work; on a CPU a small one."""
        if self.on_cuda:
            return self.profiled("big", "resnet50", "--input-sizes", "224", "--batch-sizes", "64", "--mode", "train",
                                 "--precision", "fp32,bf16", "--max-seconds", "5")
        return self.profiled("big", "resnet18", "--input-sizes", "32", "--batch-sizes", "4", "--mode", "train",
                             "--max-iterations", "8", "--counters", "none")

    def case(self, name: str, size: int, batch_size: int, mode: str, precision: str,
             variant: str | None = None) -> Case:
        workload = find_workload(name).prepare(variant)
        return Case(workload, size, batch_size, mode, precision, self.device, DataRequest())


Check = Callable[[Session], None]


def on_cuda(check: Check) -> Check:
    """Mark a check that needs a CUDA device."""
    @wraps(check)
    def checked(session: Session) -> None:
        if not session.on_cuda:
            raise NotHereError(NO_DEVICE)
        check(session)

    return checked


def last_words(ended: Ended) -> str:
    return " ".join([ended.error, *ended.ours]).strip()[-300:]
