"""A disk that fills at any write of a command loses nothing that had finished, and the run is whole afterwards."""

import re
import shutil
from pathlib import Path

import pytest
from support.forked import Server, assert_clean, assert_holds, hidden, published
from support.programs import TRAINING, num_iterations
from support.traces import training

from charact.measure.script.spans.event_log_reader import read_event_log
from charact.measure.script.spans.event_log_to_record import script_cases
from charact.record.reader import load_run

QUICK = ["--threads", "1", "--quiet"]
COMMANDS: dict[str, list[str]] = {
    "import": ["import", "a.json", "b.json", "c.json", "--quiet"],
    "profile": ["profile", "mlp", "--input-sizes", "2,4", "--batch-sizes", "2", "--mode", "infer", "--max-iterations",
                "6", *QUICK],
    "memory": ["memory", "mlp", "--input-sizes", "2,4", "--batch-sizes", "2", "--mode", "infer", "--predict", *QUICK],
    "ops": ["ops", "--problem", "gemm:8x8x8", "--problem", "gemm:8x8x16", "--max-repetitions", "6", *QUICK],
    "infer": ["infer", "mlp", "--input-sizes", "2,4", "--batch-sizes", "256", "--max-batches", "2", *QUICK],
    "train": ["train", "mlp", "--input-sizes", "2", "--batch-sizes", "2048", "--epochs", "2", *QUICK],
}


def place(directory: Path) -> Path:
    """An empty directory with what the commands need."""
    directory.mkdir()
    for name in "abc":
        training().write(directory / f"{name}.json")
    return directory


def check(server: Server, cwd: Path, command: list[str], full_from: int) -> bool:
    """Run a command whose disk fills at a write, and recover it; returns whether it failed at all."""
    done, flushed = server.run(*command, cwd=cwd, full_from=full_from)
    out = cwd / "runs"
    if done.status in (0, 1):
        return False
    assert (done.status, done.error.count("\n")) == (2, 1), done
    assert re.match("error: no space left while writing ", done.error)
    finished = {case: one for case, one in flushed.items()
                if one.entry["status"] == "ok" or one.entry.passes.get("training", {}).get("num_epochs")}
    assert published(out) == []
    left = hidden(out)
    if not finished:
        assert left == []
        return True
    (partial,) = left
    assert f"runs/{partial.name}" in done.error
    assert re.search("charact (recover|train --resume) ", done.error)
    again, _ = server.run("recover", "--quiet", f"runs/{partial.name}", cwd=cwd)
    assert again.status in ((0, 1) if command[0] == "train" else (0,)), again  # one that is cut off is no success
    (path,) = published(out)
    assert hidden(out) == []
    assert_holds(load_run(path), finished)
    assert_clean(path)
    return True


def walk(server: Server, tmp_path: Path, name: str, steps: int) -> int:
    """Fill the disk at every so many writes of a command; returns how often it failed."""
    whole = place(tmp_path / "whole")
    done, flushed = server.run(*COMMANDS[name], cwd=whole)
    assert done.status == 0, done
    (path,) = published(whole / "runs")
    assert_holds(load_run(path), flushed)
    assert_clean(path)
    return sum(check(server, place(tmp_path / f"full{number}"), COMMANDS[name], number)
               for number in range(1, done.num_writes + 1, steps))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "steps", "least"), [
    ("import", 3, 15), ("profile", 3, 8), ("memory", 3, 4), ("ops", 3, 4), ("infer", 3, 4), ("train", 3, 6)])
def test_a_disk_that_fills_at_any_write(server: Server, tmp_path: Path, name: str, steps: int, least: int) -> None:
    assert walk(server, tmp_path, name, steps) >= least


def watched(server: Server, cwd: Path) -> Path:
    """The hidden run of a program that was killed at its end."""
    cwd.mkdir()
    (cwd / "program.py").write_text(
        TRAINING + "for _ in range(200): step()\ntime.sleep(.3); model(torch.ones(1, 4))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n")
    server.run("run", "program.py", cwd=cwd)
    (partial,) = hidden(cwd / "runs")
    return partial


@pytest.mark.slow
def test_a_disk_that_fills_while_a_run_is_recovered(server: Server, tmp_path: Path) -> None:
    made = watched(server, tmp_path / "made")
    number, failed = 1, 0
    while True:
        cwd = tmp_path / f"full{number}"
        shutil.copytree(made.parent.parent, cwd)
        name = f"runs/{made.name}"
        done, _ = server.run("recover", "--quiet", name, cwd=cwd, full_from=number)
        if done.status == 0:
            break
        assert (done.status, done.error.count("\n")) == (2, 1), done
        assert f"nothing is removed: try again with charact recover {name}" in done.error
        again, _ = server.run("recover", "--quiet", name, cwd=cwd)
        assert again.status == 0, again
        (path,) = published(cwd / "runs")
        assert_clean(path)
        ((entry, tables),) = script_cases(read_event_log(made), "program", "program.py", None, None)
        run = load_run(path)
        assert num_iterations(run) == entry.passes.timing.num_iterations
        assert len(run.iterations) == len(tables["iterations"])
        number, failed = number + 8, failed + 1
    assert failed >= 2
