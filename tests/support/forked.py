"""Commands in forked children of a process that has imported everything: each starts at once, and may be killed.

A child keeps a list of what its records had flushed, and can be given a disk that is full from its n-th write on.
"""

import atexit
import contextlib
import errno
import gc
import importlib
import json
import os
import resource
import runpy
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pandas as pd
import pyarrow as pa
import pytest

from charact.record.in_progress import LEFTOVERS, LOCK, PARTIAL_PREFIX
from charact.record.manifest import CaseEntry, typed_entry
from charact.record.reader import Run, load_run
from charact.record.tables import arrow_schema

_ANSWER_S = 900.0
SHORT_COUNTER_PASS_S = 0.1
"""Duration of the counter pass where no test looks at what it counts; users have a second."""


class Done(NamedTuple):
    """What a command left: its exit status (below 0 the signal), its output, and the number of files it wrote."""

    status: int
    output: str
    error: str
    num_writes: int


class Flushed(NamedTuple):
    """A case as a record took it in."""

    entry: CaseEntry
    tables: dict[str, list[dict[str, Any]]]


class Child:
    """A command that runs in a forked child."""

    def __init__(self, server: "Server", pid: int, place: Path) -> None:
        self._server, self.pid, self._place = server, pid, place
        self._status: int | None = None

    def kill(self, number: int = signal.SIGKILL) -> None:
        if not self.has_ended():
            os.kill(self.pid, number)

    def has_ended(self) -> bool:
        """Whether it has ended."""
        if self._status is None:
            self._status = self._server.ask({"poll": self.pid})
        return self._status is not None

    def wait(self) -> Done:
        """Wait for its end."""
        until = time.monotonic() + _ANSWER_S
        while not self.has_ended():
            assert time.monotonic() < until, "the command hangs"
            time.sleep(0.01)
        assert self._status is not None
        return Done(self._status, self.output(), self._kept("err"), int(self._kept("writes") or -1))

    def until(self, happened: Callable[[], object]) -> None:
        """Wait until something has happened while it runs."""
        deadline = time.monotonic() + 120
        while not happened():
            assert not self.has_ended(), self.wait()
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def output(self) -> str:
        return self._kept("out")

    def error(self) -> str:
        return self._kept("err")

    def flushed(self) -> dict[str, Flushed]:
        lines = map(json.loads, self._kept("flushed").split("\n")[:-1])
        return {entry["case"]: Flushed(typed_entry(entry), tables) for entry, tables in lines}

    def _kept(self, name: str) -> str:
        path = self._place / name
        return path.read_text() if path.exists() else ""


class Server:
    """The process that children are forked from."""

    def __init__(self) -> None:
        self._process = subprocess.Popen([sys.executable, "-m", "support.forked"], cwd=Path(__file__).parents[1],
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._num_started = 0

    def start(self, *arguments: object, cwd: Path, full_from: int | None = None, stays_hidden: bool = False,
              recovers_afresh: bool = False, draws_views: bool = False, largest_file_bytes: int | None = None,
              **environment: str) -> Child:
        """Start a command, or a script alone, in `cwd`; its output is kept next to that.

        There is no space left from the write number `full_from` on, from 1, or for files above `largest_file_bytes`.
        The run of a watched program `stays_hidden` as if its process had been killed at its end, or `recovers_afresh`,
        by a process of its own, as for users. Views are only written if the command `draws_views`.
        """
        self._num_started += 1
        place = cwd.with_name(f"{cwd.name}.{self._num_started}")
        place.mkdir()
        pid = self.ask({"arguments": list(map(str, arguments)), "cwd": str(cwd), "place": str(place),
                        "full_from": full_from, "stays_hidden": stays_hidden, "recovers_afresh": recovers_afresh,
                        "draws_views": draws_views, "largest_file_bytes": largest_file_bytes,
                        "environment": environment})
        assert pid is not None
        return Child(self, pid, place)

    def run(self, *arguments: object, cwd: Path, full_from: int | None = None) -> tuple[Done, dict[str, Flushed]]:
        child = self.start(*arguments, cwd=cwd, full_from=full_from, draws_views=True)
        return child.wait(), child.flushed()

    def charact(self, *arguments: object, cwd: Path, **options: Any) -> subprocess.CompletedProcess[str]:
        done = self.start(*arguments, cwd=cwd, **options).wait()
        return subprocess.CompletedProcess(arguments, done.status, done.output, done.error)

    def ask(self, question: dict[str, Any]) -> int | None:
        """Answer of the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        answer: int | None = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        self._process.communicate()


@contextlib.contextmanager
def serving() -> Iterator[Server]:
    """A server that ends with the block."""
    server = Server()
    try:
        yield server
    finally:
        server.close()


@contextlib.contextmanager
def no_file_above(num_bytes: int) -> Iterator[None]:
    """In this process, larger files meet a full disk within the block."""
    handler, limits = signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def assert_holds(run: Run, flushed: dict[str, Flushed]) -> None:
    """A published run holds what was flushed, row for row."""
    for case, (entry, tables) in flushed.items():
        assert run.entry(case) == entry
        for table, rows in tables.items():
            held = run.table(table)
            held = held[held["case"] == case].reset_index(drop=True)
            schema = arrow_schema(table)
            wanted = pa.Table.from_pylist([{"case": case, **row} for row in rows], schema=schema).to_pandas()
            pd.testing.assert_frame_equal(held, wanted)


def assert_clean(path: Path) -> None:
    """A published run holds nothing that only the way to it needs."""
    names = [str(file.relative_to(path)) for file in path.rglob("*")]
    left = [name for name in names if Path(name).name.startswith(".") or Path(name).parts[0] in (*LEFTOVERS, LOCK)]
    assert left == []
    run = load_run(path)
    traces = {f"trace/{entry.case}.pt.trace.json.gz" for entry in run.entries}
    known = {"run.json", "report.html", "events.out.tfevents.0000000000.charact", "trace", "weights"} | traces | {
        f"{table}.parquet" for table in run.manifest["tables"]} | {
        f"weights/{entry.case}.pt" for entry in run.entries}
    assert set(names) <= known
    assert {"run.json", "report.html", "events.out.tfevents.0000000000.charact"} <= set(names)


def hidden(out: Path) -> list[Path]:
    return sorted(out.glob(f"{PARTIAL_PREFIX}*")) if out.exists() else []


def published(out: Path) -> list[Path]:
    return sorted(path for path in out.iterdir() if not path.name.startswith(".")) if out.exists() else []


# The process that forks

def _serve() -> None:
    import torch

    # Children import nothing of these: an optimizer's first step alone takes a second for `torch._dynamo`.
    for name in ("torch._dynamo", "charact.commands._shared.run_cases", "charact.measure.passes.flops",
                 "charact.measure.training.infer_case", "charact.measure.training.train_case",
                 "charact.views.html.report", "charact.views.tensorboard.scalars"):
        importlib.import_module(name)
    from charact import cli
    from charact.measure.passes import counters
    from support.plain_figures import leave_titles

    counters.MIN_SECONDS = SHORT_COUNTER_PASS_S
    os.fsync = os.fstat  # nobody cuts the power
    leave_titles(pytest.MonkeyPatch())
    cli.build_command()
    torch.set_num_threads(1)  # a pool of threads does not outlive a fork
    gc.collect()
    gc.freeze()  # each measured case calls the collector, which need not walk all that was imported
    ended: dict[int, int] = {}
    for line in sys.stdin:
        question = json.loads(line)
        if "poll" in question:
            while question["poll"] not in ended:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                ended[pid] = os.waitstatus_to_exitcode(status)
            answer = ended.pop(question["poll"], None)  # another child may get the same number later
        else:
            answer = os.fork()
            if answer == 0:
                _run(**question)
        print(json.dumps(answer), flush=True)


def _run(arguments: Sequence[str], cwd: str, place: str, full_from: int | None, stays_hidden: bool,
         recovers_afresh: bool, draws_views: bool, largest_file_bytes: int | None, environment: dict[str, str]) -> None:
    status = 70
    try:
        os.setpgid(0, 0)
        os.chdir(cwd)
        os.environ.update(environment)
        if largest_file_bytes is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file_bytes, largest_file_bytes))
        nowhere = os.open(os.devnull, os.O_RDONLY)
        for file, number in ((nowhere, 0), *((os.open(Path(place, name), os.O_WRONLY | os.O_CREAT), number)
                                             for name, number in (("out", 1), ("err", 2)))):
            os.dup2(file, number)
        is_script = arguments[0].endswith(".py")
        sys.argv = [*arguments] if is_script else ["charact", *arguments]
        _keep_list(Path(place, "flushed"))
        count = _count_writes(full_from)
        from charact import cli
        from charact.commands._shared import publish
        from charact.measure.script.exit_handling import ExitHandler

        if not draws_views:
            publish.write_views = lambda run: None
        if stays_hidden:
            ExitHandler._recover = lambda *_: None  # type: ignore[method-assign]
        elif arguments[0] == "run" and not recovers_afresh:
            ExitHandler._recover = _Recovery().make  # type: ignore[method-assign]

        try:
            if is_script:
                sys.path.insert(0, str(Path(arguments[0]).parent))
                runpy.run_path(arguments[0], run_name="__main__")
                status = 0
            else:
                status = cli.run(arguments)
        except SystemExit as leaving:
            status = int(leaving.code or 0) if isinstance(leaving.code, int | None) else 1
        if is_script or arguments[0] == "run":
            atexit._run_exitfuncs()
        Path(place, "writes").write_text(str(count[0]))
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        Path(place, "err").write_text(traceback.format_exc())
    finally:
        os._exit(status)


class _Recovery:
    """A process that makes the record of a watched program in time, forked before the program changes anything."""

    def __init__(self) -> None:
        waiting, self._asks = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._asks)
            os.dup2(2, 1)
            command = [each for each in os.read(waiting, 10_000).decode().split("\0") if each]
            os._exit(_status_of(["recover", *command]) if command else 0)
        os.close(waiting)

    def make(self, directory: Path, _: bool) -> str | None:
        """Do as `ExitHandler._recover`."""
        os.write(self._asks, "\0".join(["--quiet", str(directory)]).encode())
        os.close(self._asks)
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return signal.Signals(-status).name if status < 0 else None


def _status_of(arguments: Sequence[str]) -> int:
    from charact import cli

    try:
        return cli.run(arguments)
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _keep_list(path: Path) -> None:
    from charact.record.writer import RunWriter

    add_case = RunWriter.add_case

    def kept(writer: RunWriter, case: CaseEntry, tables: dict[str, list[dict[str, Any]]]) -> None:
        line = json.dumps([msgspec.to_builtins(case), {table: rows for table, rows in tables.items() if rows}])
        add_case(writer, case, tables)
        with path.open("a") as file:
            file.write(line + "\n")

    RunWriter.add_case = kept  # type: ignore[method-assign]


def _count_writes(full_from: int | None) -> list[int]:
    """Count writes by their syncing, of which each has one; from some number on there is no space."""
    count, sync = [0], os.fsync

    def fsync(file: int) -> None:
        count[0] += 1
        if full_from is not None and count[0] >= full_from:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(file)

    os.fsync = fsync
    return count


if __name__ == "__main__":
    _serve()
