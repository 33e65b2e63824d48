"""Programs that go on after their event log is full, which these make small themselves."""

import signal
from pathlib import Path

import pytest
from support.programs import TRAINING, Ended, only_record, run_watched

from charact.commands import recover
from charact.record.reader import Run, load_run

SMALL_LOG = TRAINING + """
from charact.measure.script import session
from charact.measure.script.windows import window_log

session.MAX_SLICES, session.FLUSH_S, window_log.WINDOW_NS = 600, 0, 20_000_000
"""
NUM = 1500


def ended(directory: Path, text: str) -> Ended:
    (directory / "program.py").write_text(SMALL_LOG + text)
    return run_watched(["--passes", "timing", "program.py"], directory)


def num_recorded(run: Run) -> int:
    """Number of iterations that a record has, one by one and in windows, with those of the warm-up."""
    windows = run.windows[run.windows["phase"].isna()]
    (timing,) = (entry.passes.timing for entry in run.entries)
    assert windows["num_iterations"].sum() == timing.num_iterations + timing.num_window_iterations
    return int(windows["num_iterations"].sum()) + timing.num_warmup_iterations


def test_a_program_is_recorded_to_its_end(tmp_path: Path) -> None:
    assert ended(tmp_path, f"for _ in range({NUM}):\n    step()\n").status == 0
    run = only_record(tmp_path)
    assert NUM - 2 <= num_recorded(run) < NUM  # the one that was running when the log was full is left out
    assert run.windows["rss_bytes"].max() > 2**24
    (program,) = (entry.passes.timing.program for entry in run.entries)
    assert program.after_s + program.before_s + program.between_s < 0.9 * program.duration_s


def test_a_killed_program_loses_little(tmp_path: Path) -> None:
    program = f"for number in range({10 * NUM}):\n    step()\n    if number == {NUM}:\n        " \
              "print(number, flush=True)\n        os.kill(os.getpid(), signal.SIGKILL)\n"
    killed = ended(tmp_path, program)
    assert (killed.status, killed.output) == (-signal.SIGKILL, f"{NUM}\n")
    assert recover.command(list((tmp_path / "runs").glob(".partial-*")), quiet=True) == 0
    (path,) = (tmp_path / "runs").iterdir()
    windows = load_run(path).windows
    lengths_s = (windows["end_s"] - windows["start_s"]).max()
    rate = windows["num_iterations"].sum() / windows["end_s"].max()
    assert num_recorded(load_run(path)) >= NUM - 5 - 5 * rate * lengths_s


@pytest.mark.parametrize("error", ["MemoryError('no more')",
                                   "torch.OutOfMemoryError('Tried to allocate 2.00 GiB.')"])
def test_a_program_whose_memory_runs_out_names_what_held_it(tmp_path: Path, error: str) -> None:
    text = f"held = [torch.ones(2**20) for _ in range(16)]\nfor _ in range(20):\n    step()\nraise {error}\n"
    done = ended(tmp_path, text)
    assert done.status == 1
    (line,) = (each for each in done.ours if "memory ran out" in each)
    assert f"at program.py:{(tmp_path / 'program.py').read_text().count(chr(10))}" in line
    assert "16 tensors of shape [1048576] in held 64.0 MiB" in line
    (program,) = (entry.passes.timing.program for entry in only_record(tmp_path).entries)
    assert f"charact: {program.out_of_memory}" == line
