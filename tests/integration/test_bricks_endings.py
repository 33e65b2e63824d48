"""`charact bricks` that is killed, interrupted, run twice at once, on a full disk, or told what does not fit."""

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.forked import no_file_above

from charact import cli, load_run
from charact.bricks.suite.audit import audit
from charact.bricks.suite.composition import load_compositions
from charact.bricks.suite.suite import load_suite
from charact.record.in_progress import write_manifest
from charact.record.reader import Run

Here = Callable[..., Any]
TINY = ["--input-sizes", "8", "--batch-sizes", "2"]
LONG = ["--max-rounds", "1000000", "--max-seconds", "600", "--precision-target", "0", "--threads", "1"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a suite of one model, and a run of it, `runs/done`."""
    directory = tmp_path_factory.mktemp("endings")
    suite = str(directory / "suite")
    assert cli.run(["bricks", "generate", "mlp", *TINY, "--out", suite, "--quiet"]) == 0
    assert cli.run(["bricks", "run", suite, "--max-rounds", "6", "--threads", "1", "--out", str(directory / "runs"),
                    "--quiet"]) == 0
    (run,) = (directory / "runs").iterdir()
    run.rename(directory / "runs" / "done")
    return directory


@pytest.fixture
def there(made: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    done = tmp_path / "runs" / "done"
    write_manifest(done, json.loads((done / "run.json").read_text().replace(str(made), str(tmp_path))))
    return tmp_path


def started(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-m", "charact", "bricks", *arguments], cwd=cwd, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def flushed_rounds(directory: Path) -> int:
    """Rounds that the record of the run that is going on holds."""
    for path in directory.glob("runs/.partial-*/run.json"):
        for case in json.loads(path.read_text())["cases"]:
            return int(case["passes"]["bricks"]["num_rounds"])
    return 0


def ended(directory: Path, number: signal.Signals) -> tuple[Path, int, str]:
    """The hidden directory of a run that was sent a signal after its first rounds, its status and standard error."""
    process = started("run", "suite", *LONG, cwd=directory)
    deadline = time.monotonic() + 120
    while flushed_rounds(directory) < 6:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=120)
    (path,) = (directory / "runs").glob(".partial-*")
    return path, process.returncode, stderr


def shorten(directory: Path) -> None:
    """Let a run that is gone on with end after its next rounds."""
    manifest = json.loads((directory / "run.json").read_text())
    manifest["options"]["max_rounds"] = manifest["cases"][0]["passes"]["bricks"]["num_rounds"] + 3
    write_manifest(directory, manifest)


def the_run(directory: Path) -> Run:
    (path,) = (path for path in (directory / "runs").iterdir() if path.name != "done")
    return load_run(path)


class TestEndings:
    @pytest.mark.slow
    def test_after_kill_9_whole_rounds_are_kept_and_gone_on_with(self, there: Path, here: Here) -> None:
        partial, status, _ = ended(there, signal.SIGKILL)
        assert status == -signal.SIGKILL
        before = load_run(partial, partial=True).brick_times
        num_rounds = int(before["round"].max()) + 1
        shown = here("report", "--partial", "--to", "early.html", str(partial), cwd=there)
        assert shown.returncode == 0, shown.stderr
        early = (there / "early.html").read_text()
        assert "bricks-suite-g1-infer-fp32-cpu" in early
        assert "bricks have no time" not in early
        shorten(partial)
        here("bricks", "run", "--resume", str(partial), cwd=there, status=0)
        run = the_run(there)
        (entry,) = run.entries
        assert (entry.status, entry.passes.bricks.num_resumed) == ("ok", 1)
        assert run.brick_times["round"].nunique() == num_rounds + 3
        kept = run.brick_times[run.brick_times["round"] < num_rounds].sort_values(["brick", "round"])
        assert kept["host_s"].tolist() == before.sort_values(["brick", "round"])["host_s"].tolist()

    @pytest.mark.slow
    def test_after_an_interrupt_it_says_how_to_go_on(self, there: Path, here: Here) -> None:
        partial, status, stderr = ended(there, signal.SIGINT)
        assert status == 130
        assert f"bricks run --resume runs/{partial.name}" in stderr
        shorten(partial)
        here("bricks", "run", "--resume", str(partial), cwd=there, status=0)
        assert the_run(there).entries[0].status == "ok"

    @pytest.mark.slow
    def test_a_suite_that_was_changed_is_not_resumed(self, there: Path, here: Here) -> None:
        partial, _, _ = ended(there, signal.SIGTERM)
        here("bricks", "generate", "mlp", "--input-sizes", "9", "--batch-sizes", "2", "--out", "suite", cwd=there,
             status=0)
        done = here("bricks", "run", "--resume", partial, cwd=there, status=2)
        assert "is not the suite that" in done.stderr

    @pytest.mark.slow
    def test_two_that_write_one_suite_leave_it_whole(self, tmp_path: Path) -> None:
        sizes = ("8", "9")
        both = [started("generate", "mlp", "--input-sizes", size, "--batch-sizes", "2", "--out", "s", cwd=tmp_path)
                for size in sizes]
        told = [process.communicate(timeout=240) for process in both]
        assert [process.returncode for process in both] == [0, 0], told
        assert [each.input_size for each in load_compositions(tmp_path / "s.private")] == [8, 9]
        assert audit(tmp_path / "s").findings == []

    def test_a_full_disk_leaves_the_suite_that_was_there(self, there: Path, here: Here) -> None:
        before = load_suite(there / "suite")
        for name in ("s", "suite"):
            with no_file_above(1000):
                done = here("bricks", "generate", "mlp", "--input-sizes", "9", "--batch-sizes", "2", "--out", name,
                            cwd=there, status=2)
            assert done.stderr.count("\n") == 1
            assert done.stderr.startswith(f"error: no space left while writing {name}/")
        assert not (there / "s" / "suite.json").exists()
        assert load_suite(there / "suite").digest == before.digest
        here("bricks", "generate", "mlp", *TINY, "--out", "s", cwd=there, status=0)

    def test_a_full_disk_leaves_no_record(self, there: Path, here: Here) -> None:
        for arguments in (["run", "suite", "--max-rounds", "6"], ["construct", "mlp", "runs/done"]):
            with no_file_above(3000):
                done = here("bricks", *arguments, cwd=there)
            assert (done.returncode, done.stderr.count("\n")) == (2, 1)
            assert "no space left while writing runs/" in done.stderr
            assert [path.name for path in (there / "runs").iterdir()] == ["done"]


def test_what_another_machine_began_is_not_resumed(there: Path, here: Here) -> None:
    partial = (there / "runs" / "done").rename(there / "runs" / ".partial-done")
    manifest = json.loads((partial / "run.json").read_text())
    manifest["status"], manifest["machine"]["fingerprint"] = "running", "0" * 12
    write_manifest(partial, manifest)
    done = here("bricks", "run", "--resume", partial, cwd=there, status=2)
    assert done.stderr.count("\n") == 1
    assert "was begun on another machine" in done.stderr
    assert partial.exists()


@pytest.mark.parametrize(("change", "said"), [
    (lambda index: index | {"g": 3}, "was changed after it was written"),
    (lambda index: index | {"schema_version": 2}, "has schema version 2, this charact reads up to 1"),
    (lambda index: [], "is not part of a suite"),
])
def test_a_damaged_suite_is_refused(there: Path, refused: Here, change: Callable[[Any], Any], said: str) -> None:
    path = there / "suite" / "suite.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    refused("bricks", "run", "suite", "--max-rounds", "6", cwd=there, said=said)


@pytest.mark.parametrize(("arguments", "said"), [
    (["generate"], "missing argument 'MODEL"),
    (["generate", "mlp", "-g", "0"], "-g: '0' is not allowed"),
    (["generate", "mlp", "--cut", "rows"], "--cut: 'rows' is not one of chains, paper, heavy"),
    (["generate", "mlp", "--input-spec", "S"], "--input-spec is for models of your own"),
    (["run"], "name the suite to run"),
    (["run", "runs"], "no suite of bricks in runs"),
    (["run", "suite", "--mode", "train"],
     "suite holds no bricks for these options (it has infer fp32 at batch size 2)"),
    (["run", "suite", "--share", "0"], "--share: 0 is not a share"),
    (["run", "suite", "--share", "1.5"], "--share: 1.5 is not a share"),
    (["run", "suite", "--share", "nan"], "--share"),
    (["generate", "x" * 300], ""),
    (["construct", "x" * 300, "suite"], ""),
    (["run", "suite", "--resume", "runs/done"], "name the suite to run"),
    (["construct", "mlp"], "name a run of a suite"),
    (["construct", "runs/done"], "name models, or all, as in charact bricks construct all runs/done"),
    (["construct", "all", "runs/done", "--compositions", "runs"], "no compositions in runs"),
    (["calibrate", "runs/done", "vgg16"], "vgg16 is not one of the suite's models (mlp)"),
    (["calibrate", "runs/done"], "a correction needs 2 models"),
])
def test_bad_input_is_one_line(there: Path, refused: Here, arguments: list[str], said: str) -> None:
    refused("bricks", *arguments, said=said, cwd=there)


def test_a_record_that_is_no_run_of_a_suite(there: Path, here: Here, refused: Here) -> None:
    here("bricks", "construct", "mlp", "runs/done", cwd=there, status=0)
    other = the_run(there).path
    for command in (["construct", "mlp", other], ["calibrate", other]):
        refused("bricks", *command, cwd=there, said="is not a run of a suite: charact bricks run makes one")
