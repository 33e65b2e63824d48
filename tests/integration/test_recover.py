"""`charact recover`: what a program left that was killed becomes a run, and one that is going on is left alone."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.forked import Child, Server
from support.programs import TRAINING, num_iterations, only_record

from charact import load_run
from charact.machine.facts import torch_facts
from charact.measure.script.spans.event_log import EventLogWriter
from charact.measure.script.spans.recorder import Kind, Slice
from charact.record.in_progress import begin_run

ENDLESS = TRAINING + """
for number in range(1, 10**9):
    step()
    time.sleep(.02)
    if number == 50:
        print("50", flush=True)
"""


@pytest.fixture
def going_on(tmp_path: Path, server: Server) -> Iterator[tuple[Path, Child]]:
    """A program's hidden directory, and the program, which has gone through 50 iterations and goes on."""
    (tmp_path / "endless.py").write_text(ENDLESS)
    child = server.start("run", "endless.py", cwd=tmp_path)
    child.until(lambda: child.output() == "50\n")
    (partial,) = (tmp_path / "runs").iterdir()
    yield partial, child
    child.kill()


@pytest.mark.views
def test_a_run_that_goes_on_is_shown_and_one_that_was_killed_becomes_whole(
        tmp_path: Path, going_on: tuple[Path, Child], here: Callable[..., Any]) -> None:
    partial, child = going_on
    name = f"runs/{partial.name}"
    refused = here("recover", name, cwd=tmp_path)
    assert refused == (2, "", f"error: {partial} is being written by another process: wait for it, or end it\n")
    assert here("report", "--partial", name, "--to", "so_far.html", cwd=tmp_path) == (0, "Wrote so_far.html\n", "")
    page = (tmp_path / "so_far.html").read_text()
    assert "unfinished" in page
    assert "endless-train" in page

    child.kill()
    assert child.wait().status == -signal.SIGKILL
    done = here("recover", "--quiet", name, cwd=tmp_path)
    run = only_record(tmp_path)
    assert done == (0, f"Wrote {run.path}\n", "")
    assert run.path.name == partial.name.removeprefix(".partial-")
    assert (run.manifest["status"], run.manifest["ending"]) == ("interrupted", "killed")
    assert num_iterations(run) > 30  # what was flushed: all but the last quarter of a second
    again = here("recover", f"runs/{run.path.name}", cwd=tmp_path)
    assert (again.returncode, again.stderr) == (2, f"error: {run.path} is finished: there is nothing to resume\n")

    (run.path / "report.html").unlink()  # as if the process that writes views in the background had been killed
    done = here("recover", "--quiet", str(run.path), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"Wrote {run.path}\n")
    assert "endless-train" in (run.path / "report.html").read_text()


@pytest.mark.slow
def test_a_program_does_not_wait_for_an_import_of_pytorch(tmp_path: Path) -> None:
    begun = begun_run(tmp_path, "waited_for")
    EventLogWriter(begun).notes([{"note": "torch", "facts": torch_facts() | {"num_threads": 1}}])
    published, waiting = os.pipe()
    program = ("import sys; from charact.commands._shared import publish; from charact.cli import run\n"
               "publish.write_views = lambda _: sys.exit(40 + ('torch' in sys.modules))\n"
               f"run(['recover', '--waiting', '{waiting}', '-q', {begun.name!r}])")
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, pass_fds=[waiting], check=False)
    assert (done.returncode, os.read(published, 9)) == (40, b"\n")
    (path,) = tmp_path.iterdir()
    assert load_run(path).manifest["machine"]["cpu"]["capability"]
    os.close(published)
    os.close(waiting)


@pytest.mark.slow
def test_one_that_cannot_be_recovered_leaves_the_others(tmp_path: Path, server: Server) -> None:
    (tmp_path / "quick.py").write_text(ENDLESS.replace("10**9", "9") +
                                       "time.sleep(.3); model(torch.ones(1, 4)); os.abort()\n")
    killed = server.charact("run", "quick.py", cwd=tmp_path)
    assert killed.returncode == -signal.SIGABRT
    (partial,) = (tmp_path / "runs").iterdir()
    (tmp_path / "none").mkdir()
    done = server.charact("recover", "-q", "none", f"runs/{partial.name}", "nowhere", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == (f"error: {tmp_path / 'none'} holds no run.json: name a run directory, such as one below "
                           "runs/; nowhere does not exist: . has no unfinished run\n")
    assert num_iterations(only_record(tmp_path)) == 6


def test_one_that_holds_nothing_is_removed(tmp_path: Path, server: Server, here: Callable[..., Any]) -> None:
    (tmp_path / "early.py").write_text("import os, torch; os.abort()\n")
    assert server.charact("run", "early.py", cwd=tmp_path).returncode == -signal.SIGABRT
    (partial,) = (tmp_path / "runs").iterdir()
    assert load_run(partial, partial=True).cases.empty
    done = here("recover", str(partial), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (
        2, f"error: {partial} had no measurements, and is removed\n")
    assert list((tmp_path / "runs").iterdir()) == []


def begun_run(out: Path, name: str, **facts: Any) -> Path:
    """A hidden run of a program that was killed after three iterations."""
    begun = begin_run(out, name, {
        "command_line": [], "started": "2026-11-21T10:00:00+0000", "machine": {}, "software": {}, **facts,
        "options": {"script": "train.py", "arguments": [], "skip": 0, "iterations": None, "passes": []}})  # fmt: skip
    os.close(begun.lock)
    kinds = 3 * [Kind.FORWARD, Kind.BACKWARD, Kind.STEP]
    EventLogWriter(begun.directory).slices(
        [Slice(kind, 10 * place, 10 * place + 9, kind, ends=True) for place, kind in enumerate(kinds)], int)
    return begun.directory


@pytest.mark.views
@pytest.mark.parametrize(("hostname", "is_told"), [(os.uname().nodename, True), ("elsewhere", False)])
def test_facts_of_another_machine_are_not_taken_for_the_programs(
        tmp_path: Path, here: Callable[..., Any], hostname: str, is_told: bool) -> None:
    begun = begun_run(tmp_path, "killed", hostname=hostname)
    done = here("recover", begun.name, cwd=tmp_path, status=0)
    run = load_run(tmp_path / begun.name.removeprefix(".partial-"))
    assert bool(run.manifest["machine"]) == bool(run.manifest["software"]) == is_told
    assert ("this is not elsewhere, where the program ran" in done.stderr) != is_told
    reason = 'n/a <small class="ch-reason">(not recorded)</small>'
    assert reason in (run.path / "report.html").read_text() or is_told


def test_a_program_that_called_no_model_tells_what_to_do(tmp_path: Path, here: Callable[..., Any]) -> None:
    words = {"torchrun --no-python charact run train.py": [], "without torch.compile": [Kind.COMPILE]}
    for remedy, kinds in words.items():
        begun = begin_run(tmp_path, "blind", {
            "command_line": [], "options": {"script": "train.py", "skip": 0, "iterations": None, "passes": []}})
        os.close(begun.lock)
        writer = EventLogWriter(begun.directory)
        writer.slices([Slice(kind, 0, 1, 0, ends=True) for kind in kinds], int)
        writer.notes([{"note": "end", "ending": "to its end", "time_s": 0}])
        done = here("recover", begun.directory.name, cwd=tmp_path, status=2)
        assert remedy in done.stderr
        assert done.stderr.count("\n") == 1
