"""`charact run --live` and `charact watch`: in a terminal and without one, when a process is killed or stopped."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from support.programs import num_iterations, only_record
from support.screen import Screen
from support.terminal import InTerminal

from charact import cli

pytestmark = pytest.mark.clock

SCRIPT = str(Path(__file__).parents[1] / "scripts" / "counts.py")
QUIET = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
CHARACT = [sys.executable, "-m", "charact"]


def live(tmp_path: Path, *arguments: int) -> InTerminal:
    command = [*CHARACT, "run", "--live", "--skip", "0", "--out", str(tmp_path / "runs"), SCRIPT, *map(str, arguments)]
    return InTerminal(command, tmp_path, QUIET)


def at_iteration(number: int) -> Callable[[Screen], bool]:
    """Whether the panel is drawn and tells of so many iterations."""
    def reached(screen: Screen) -> bool:
        found = re.search(r"^charact counts, training, iteration (\d+) ", "\n".join(screen.rows), re.MULTILINE)
        return found is not None and int(found[1]) >= number

    return reached


def shows(text: str) -> Callable[[Screen], bool]:
    return lambda screen: any(row.startswith(text) for row in screen.rows)


def printed(num_iterations: int) -> list[str]:
    return [f"iteration {number} {'-' * (number % 60)}".rstrip() for number in range(num_iterations)] + ["no children"]


def of_the_script(lines: list[str]) -> list[str]:
    found = [line.rstrip() for line in lines if line.startswith(("iteration ", "no children"))]
    return [*found[:-1], found[-1][:len("no children")]]


def watcher(tmp_path: Path) -> psutil.Process:
    """The process that draws, which no one but this test knows."""
    (directory,) = (tmp_path / "runs").glob(".partial-*")
    found = [one for one in psutil.process_iter(["cmdline"]) if (one.info["cmdline"] or [])[-2:] == [
        "--of-run", str(directory)]]  # fmt: skip
    assert len(found) == 1
    return found[0]


@pytest.mark.slow
def test_the_panel_tells_the_truth_and_leaves_the_programs_output_alone(tmp_path: Path) -> None:
    terminal = live(tmp_path, 60, 15, 30)
    terminal.read(until=at_iteration(8))
    panel = terminal.screen.rows[-6:]
    assert panel[0].startswith("charact counts, training, iteration ")
    assert panel[1].strip() == "most time is spent in backward: " + panel[1].strip()[-6:]
    numbers = re.fullmatch(r"(\d+\.\d) ms per iteration, [\d.]+ samples/s, memory \d+ MB", panel[2].strip())
    assert numbers is not None, panel
    for number, num_rows in [(15, 30), (30, 20)]:
        terminal.read(until=shows(f"iteration {number - 1} "))
        terminal.resize(num_rows)
        terminal.read(until=lambda screen: screen.rows[-6].startswith("charact counts"))
        assert sum(row.startswith("charact counts") for row in terminal.screen.rows) == 1
        terminal.type("\n")
    assert terminal.wait() == 0
    assert terminal.screen.is_whole
    assert of_the_script(terminal.lines()) == printed(60)
    assert not any("charact counts" in line for line in terminal.lines())
    run = only_record(tmp_path)
    timing = run.entry("counts-train").passes.timing
    assert float(numbers[1]) / 1000 == pytest.approx(timing.median_s, rel=0.1)
    assert timing.num_iterations == 60
    assert not (run.path / "panel").exists()


@pytest.mark.slow
def test_when_the_panel_is_killed_the_program_gives_the_terminal_back(tmp_path: Path) -> None:
    terminal = live(tmp_path, 25)
    terminal.read(until=at_iteration(3))
    watcher(tmp_path).kill()
    assert terminal.wait() == 0
    assert terminal.screen.is_whole
    assert of_the_script(terminal.lines()) == printed(25)
    assert not any("charact counts" in line for line in terminal.lines())
    assert num_iterations(only_record(tmp_path)) == 25


@pytest.mark.slow
def test_when_the_program_is_killed_the_panel_gives_the_terminal_back(tmp_path: Path) -> None:
    terminal = live(tmp_path, 1000)
    terminal.read(until=at_iteration(3))
    drawing = watcher(tmp_path)
    os.kill(terminal.process, signal.SIGKILL)
    drawing.wait(timeout=10)
    assert terminal.wait() == 128 + signal.SIGKILL
    assert terminal.screen.is_whole
    assert not any("charact counts" in line for line in terminal.lines())
    (directory,) = (tmp_path / "runs").glob(".partial-*")
    text = "".join(line.ljust(80) for line in terminal.lines()).replace(" ", "")
    message = f"charact: the program was killed: complete its record with charact recover {directory}"
    assert message.replace(" ", "") in text
    assert not (directory / "panel").exists()


@pytest.mark.slow
def test_ctrl_c_is_the_programs(tmp_path: Path) -> None:
    terminal = live(tmp_path, 1000)
    terminal.read(until=at_iteration(3))
    terminal.type("\x03")
    assert terminal.wait() != 0
    assert terminal.screen.is_whole
    assert any(line.startswith("KeyboardInterrupt") for line in terminal.lines())
    assert only_record(tmp_path).manifest["ending"].startswith("KeyboardInterrupt")


@pytest.mark.slow
def test_a_stopped_program_gives_the_terminal_back_until_it_goes_on(tmp_path: Path) -> None:
    terminal = live(tmp_path, 40)
    terminal.read(until=at_iteration(3))
    terminal.type("\x1a")
    terminal.read(until=lambda screen: screen.is_whole)
    assert not any("charact counts" in line for line in terminal.lines())
    terminal.type("fg\n")
    terminal.read(until=at_iteration(20))
    assert terminal.wait() == 0
    assert terminal.screen.is_whole
    assert num_iterations(only_record(tmp_path)) == 40


@pytest.fixture
def program(tmp_path: Path) -> subprocess.Popen[str]:
    """A program without a terminal that is being watched, at work."""
    command = [*CHARACT, "run", "--live", "--out", str(tmp_path / "runs"), SCRIPT, "70"]
    process = subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               env=os.environ | QUIET)
    assert process.stdout is not None
    assert process.stdout.readline() == "iteration 0 \n"
    return process


@pytest.mark.slow
def test_without_a_terminal_there_are_lines_and_another_may_watch(
        tmp_path: Path, program: subprocess.Popen[str]) -> None:
    (directory,) = (tmp_path / "runs").glob(".partial-*")
    watch = subprocess.run([*CHARACT, "watch", str(directory)], capture_output=True, text=True, timeout=100)
    stdout, stderr = program.communicate(timeout=100)
    assert program.returncode == 0
    assert [line.rstrip() for line in stdout.splitlines()] == printed(70)[1:]
    assert "\x1b" not in stderr + watch.stdout
    line = r"^charact: counts, training, iteration \d+: .* per iteration, .*data \d+.\d %.*; most time is spent in bac"
    assert re.search(line, stderr, re.MULTILINE), stderr
    assert re.search(line, watch.stdout, re.MULTILINE), watch
    assert (watch.returncode, watch.stderr) == (0, "")


def test_a_run_that_has_ended_cannot_be_watched(record: Path, refused: Callable[..., None]) -> None:
    refused("watch", record, said=f"{record} is not a running charact run: give a directory such as runs/.partial-…")


@pytest.mark.parametrize(("local_rank", "draws"), [(None, True), ("0", True), ("1", False)])
def test_of_several_ranks_on_a_machine_one_draws(
        monkeypatch: pytest.MonkeyPatch, local_rank: str | None, draws: bool) -> None:
    started: list[bool] = []
    monkeypatch.setattr("charact.measure.script.run_script.run_program",
                        lambda _, *, live, **options: started.append(live))
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if local_rank is not None:
        monkeypatch.setenv("LOCAL_RANK", local_rank)
    cli.run(["run", "--live", "train.py"])
    assert started == [draws]


@pytest.mark.slow
def test_all_ranks_are_watched_and_a_killed_one_is_named(tmp_path: Path) -> None:
    ranks = str(Path(__file__).parents[1] / "scripts" / "ranks.py")
    command = [*CHARACT, "run", "--nproc", "2", "--out", "runs", ranks, "--seconds", "0.1", "--iterations", "300"]
    program = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while len(list(tmp_path.glob("runs/.partial-ranks-*/rank-*/.partial-*/run.json"))) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        (job,) = tmp_path.glob("runs/.partial-ranks-*")
        watching = subprocess.Popen([*CHARACT, "watch", str(job)], stdout=subprocess.PIPE, text=True)
        assert watching.stdout is not None
        first = watching.stdout.readline()
        victim = next(one for one in psutil.Process(program.pid).children(recursive=True)
                      if one.environ().get("RANK") == "1")
        victim.kill()
        rest, _ = watching.communicate(timeout=90)
    finally:
        program.wait(timeout=90)
    assert re.search(r"rank 0: iteration \d+, 1\d\d ms, .*; rank 1: iteration \d+, 1\d\d ms, ", first)
    assert "charact: killed: rank 1" in rest or "the ranks have ended" in rest
