"""Every command on standard streams that are closed, full, or of another encoding: work is done, and nothing raised."""

import gzip
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
from support import records
from support.hand_made_bricks import a_suite, product

# Here, so that the children need not import them.
import charact.commands.doctor
import charact.measure.capabilities
import charact.views.html.report
import charact.views.tensorboard.scalars  # noqa: F401
from charact import cli
from charact.core.plugins import module_names
from charact.record.in_progress import PARTIAL_PREFIX
from charact.record.manifest import typed_entry
from charact.record.reader import load_run
from charact.sweeps.definition import Definition, SweepCase
from charact.sweeps.directory import SweepDirectory

COMMANDS: dict[str, tuple[list[str], int]] = {
    "--version": ([], 0), "--help": ([], 0), "list": ([], 0), "list --json": ([], 0), "doctor": ([], 0),
    "show": (["run"], 0), "show --json": (["run"], 0),
    "report": (["run", "--to", "r.html"], 0), "export": (["run", "--format", "csv", "--to", "out"], 0),
    "figures": (["run", "--format", "svg", "--to", "drawn"], 0),
    "compare": (["run", "run", "--by", "case,layer", "--explain", "--fail-if", "time > 1.05", "--allow-single"], 0),
    "recover": (["killed"], 0), "import": (["t.json.gz"], 0), "bricks show": (["suite"], 0),
    "bricks audit": (["suite"], 0), "data check": (["mnist"], 1), "report none": ([], 2), "nothing": ([], 2),
    "sweep status": (["sweep"], 0), "sweep merge": (["sweep"], 2),
    "history": ([".", "--case", "resnet50-32-b8-train-fp32-cpu"], 0),
    "query": (["select count(*) from cases", "run"], 0),
    "study deep500": (["--dry-run", "--out", "studies"], 0), "study none": ([], 2),
}
"""Commands that take under a second or two, their further arguments, and their exit status."""
DRAWING = {"report", "figures", "compare", "recover", "import", "doctor"}
ELSEWHERE = {"run", "watch", "tensorboard", "profile", "train", "infer", "memory", "ops", "bricks", "data",
             "sweep", "try"}
"""Commands that measure, which are tried below, or serve, and those whose parts stand above."""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with what commands need."""
    records.write_record(tmp_path).rename(tmp_path / "run")
    writer = records.RunWriter(tmp_path, "resnet50", records.manifest("profile"))
    writer.add_case(typed_entry(records.case_entry("resnet50", 32, "train")), records.case_tables("train", 32))
    os.close(writer._lock)
    writer.directory.rename(tmp_path / f"{PARTIAL_PREFIX}x")
    a_suite(tmp_path / "suite", product())
    SweepDirectory(tmp_path / "sweep").create(Definition("sweep", (SweepCase("infer", (), 1),)))
    (tmp_path / "killed").symlink_to(f"{PARTIAL_PREFIX}x")
    events = [{"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 1.0, "dur": 2.0}]
    with gzip.open(tmp_path / "t.json.gz", "wt") as file:
        json.dump({"traceEvents": events}, file)
    return tmp_path


def forked(command: str, cwd: Path, *, stdout: int | None, stderr: int | None, encoding: str = "utf-8") -> int:
    """Status of a command in a child of this process, with these standard streams; None is a closed one."""
    child = os.fork()
    if child == 0:
        _become(command, cwd, stdout, stderr, encoding)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _become(command: str, cwd: Path, stdout: int | None, stderr: int | None, encoding: str) -> NoReturn:
    status = 99
    try:
        os.chdir(cwd)
        for number, name, given in ((1, "stdout", stdout), (2, "stderr", stderr)):
            os.close(number) if given is None else os.dup2(given, number)
            # As Python does at its start.
            setattr(sys, name, None if given is None else io.TextIOWrapper(
                io.FileIO(number, "w", closefd=False) if number == 2 else
                io.BufferedWriter(io.FileIO(number, "w", closefd=False)),  # type: ignore[arg-type]
                encoding, errors="strict" if number == 1 else "backslashreplace", write_through=number == 2))
        from charact.core.output import occupy_closed_descriptors

        occupy_closed_descriptors()
        try:
            status = cli.run([*command.split(), *COMMANDS[command][0]])
        except SystemExit as leaving:
            status = int(leaving.code or 0)
        if sys.stdout is not None:
            sys.stdout.flush()  # as Python does at exit, where an error gives the status 120
    except BaseException as error:
        import traceback

        status = 120
        if stderr is not None:
            os.write(stderr, "".join(traceback.format_exception(error)).encode())
    os._exit(status)


def pipe_without_reader() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


STREAMS: dict[str, Callable[[], int | None]] = {
    "closed": lambda: None, "full": lambda: os.open("/dev/full", os.O_WRONLY), "gone": pipe_without_reader}


def test_every_command_is_tried() -> None:
    names = {name.rpartition(".")[2].rstrip("_") for name in module_names("charact.commands")}
    assert names <= {command.split()[0] for command in COMMANDS} | ELSEWHERE


def _some_slow(kinds: dict[str, bool]) -> list[Any]:
    return [pytest.param(command, kind, marks=[] if quick or command.split()[0] not in DRAWING else pytest.mark.slow)
            for command in COMMANDS for kind, quick in kinds.items()]


@pytest.mark.slow_variants
@pytest.mark.parametrize(("command", "kind"), _some_slow({"full": True, "closed": False, "gone": False}))
def test_standard_output_that_takes_nothing(command: str, kind: str, place: Path) -> None:
    given = STREAMS[kind]()
    with open(place / "err", "wb") as errors:
        status = forked(command, place, stdout=given, stderr=errors.fileno())
    if given is not None:
        os.close(given)
    said = (place / "err").read_text()
    expected = COMMANDS[command][1]
    assert "Traceback" not in said
    if expected == 2:
        assert (status, said.count("\n")) == (2, 1)
        return
    helped = command in ("--help",) and kind == "closed"  # nothing is printed where there is no stream
    assert status == (0 if helped else 1)
    assert ("cannot write to standard output" in said) == (kind != "gone" and not helped)
    made = {"report": "r.html", "export": "out", "recover": "*-resnet50-*/run.json", "import": "runs/*-t-*/run.json"}
    if command in made:
        assert list(place.glob(made[command])), "what was asked for is made all the same"


@pytest.mark.parametrize(("command", "kind"), [
    (command, kind) for command in ("export", "report none", "nothing") for kind in ("closed", "full", "gone")
])
def test_standard_error_that_takes_nothing(command: str, kind: str, place: Path) -> None:
    given = STREAMS[kind]()
    with open(place / "out.txt", "wb") as out:
        status = forked(command, place, stdout=out.fileno(), stderr=given)
    if given is not None:
        os.close(given)
    assert status == COMMANDS[command][1]


@pytest.mark.slow_variants
@pytest.mark.parametrize(("command", "encoding"), _some_slow({"ascii": True, "latin-1": False}))
def test_another_encoding(command: str, encoding: str, place: Path) -> None:
    with open(place / "out.txt", "wb") as out, open(place / "err", "wb") as errors:
        status = forked(command, place, stdout=out.fileno(), stderr=errors.fileno(), encoding=encoding)
    shown, said = (place / "out.txt").read_bytes(), (place / "err").read_text(encoding)
    assert (status, "Traceback" in said) == (COMMANDS[command][1], False), said
    shown.decode(encoding)
    assert b"\\u" not in shown or "--json" in command, "charact's own characters have stand-ins"


@pytest.mark.slow
@pytest.mark.parametrize("command", [
    "profile resnet18 --input-sizes 32 --batch-sizes 2 --mode infer --max-iterations 6 --max-seconds 1 --counters none",
    "memory resnet18 --input-sizes 32 --batch-sizes 2",
])
def test_what_was_measured_is_kept_where_it_cannot_be_printed(command: str, tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run([sys.executable, "-m", "charact", *command.split()], cwd=tmp_path, stdout=full,
                              stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert done.stderr.splitlines()[-1] == ("error: cannot write to standard output (no space left on device): "
                                            "redirect it to another place")
    assert "Traceback" not in done.stderr
    (run,) = (tmp_path / "runs").iterdir()
    assert set(load_run(run).cases["status"]) == {"ok"}
    assert (run / "report.html").exists()


@pytest.mark.slow
def test_a_watched_program_ends_as_it_would_where_it_cannot_print(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text("import torch\nmodel = torch.nn.Linear(4, 4)\n"
                                   "for _ in range(9): model(torch.ones(2, 4))\nprint('x')\n")
    ended = []
    for command in (["s.py"], ["-m", "charact", "run", "s.py"]):
        with open("/dev/full", "wb") as full:
            done = subprocess.run([sys.executable, *command], cwd=tmp_path, stdout=full, stderr=subprocess.PIPE,
                                  text=True, check=False)
        ended.append((done.returncode, "OSError: [Errno 28] No space left on device" in done.stderr))
    assert ended[0] == ended[1]
    assert len(list((tmp_path / "runs").iterdir())) == 1
