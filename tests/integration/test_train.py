"""`charact train` as a user runs it: killed and gone on with, on a disk that fills, with options that do not fit."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from support.forked import Done, Server
from support.programs import only_record

from charact import load_run
from charact.datasets._common.request import DataRequest
from charact.measure.training.weight_files import save_weights
from charact.record.reader import Run
from charact.workload.registry import find_workload

pytestmark = pytest.mark.clock

MNIST = Path(__file__).parents[3] / "shared" / "data" / "mnist"
WIKITEXT = MNIST.parent / "wikitext-2"
# Epochs of about a second, with dropout, which must be drawn alike again.
SMALL = ["seq2seq", "--input-sizes", "3", "--epochs", "2", "--synthetic", "vocabulary=30", "--batch-sizes", "256",
         "--threads", "1"]
CASE = "seq2seq-3-b256-train-fp32-cpu"


Here = Callable[..., Any]
Unbroken = tuple[subprocess.CompletedProcess[str], Run]


def flushed_epochs(directory: Path) -> int:
    """Whole epochs that the record of the one training below `runs` holds."""
    for path in directory.glob("runs/.partial-*/run.json"):
        cases = json.loads(path.read_text())["cases"]
        return sum(case["passes"]["training"]["num_epochs"] for case in cases)
    return 0


def interrupted(server: Server, cwd: Path, number: signal.Signals) -> Done:
    """What a training left that was sent a signal in its second epoch."""
    child = server.start("train", *SMALL, cwd=cwd)
    child.until(lambda: flushed_epochs(cwd) >= 1)
    time.sleep(0.3)
    child.kill(number)
    return child.wait()


def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty directory with room next to it for what the server keeps."""
    directory = tmp_path_factory.mktemp("train") / "place"
    directory.mkdir()
    return directory


def partial(directory: Path) -> Path:
    (path,) = (directory / "runs").glob(".partial-*")
    return path


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory, server: Server) -> Unbroken:
    directory = place(tmp_path_factory)
    done = server.charact("train", *SMALL, cwd=directory)
    assert done.returncode == 0, done.stderr
    return done, only_record(directory)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory, server: Server) -> Path:
    """Where a training was killed in its second epoch."""
    directory = place(tmp_path_factory)
    assert interrupted(server, directory, signal.SIGKILL).status == -signal.SIGKILL
    return directory


def copy_of(killed: Path, tmp_path: Path) -> Path:
    shutil.copytree(killed / "runs", tmp_path / "runs")
    return tmp_path


def assert_same(run: Run, other: Run, weights: str = CASE) -> None:
    """Equal weights and metrics, bit for bit, and the same stages."""
    first, second = (torch.load(each.path / "weights" / f"{weights}.pt", weights_only=True) for each in (run, other))
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name
    assert run.metrics.equals(other.metrics)
    keys = ["case", "stage", "number", "phase", "num_iterations", "num_samples"]
    assert run.stages[keys].equals(other.stages[keys])


def start_two_ranks(cwd: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-m", "charact", "train", *arguments], cwd=cwd, text=True,
                            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def ranks_of(program: subprocess.Popen[str]) -> list[psutil.Process]:
    return [child for child in psutil.Process(program.pid).children() if "spawn_main" in " ".join(child.cmdline())]


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["starter", "rank 0", "rank 1"])
def test_two_ranks_that_are_killed_end_as_if_they_were_not(victim: str, tmp_path: Path) -> None:
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    command = [*SMALL, "--nproc", "2"]
    assert start_two_ranks(tmp_path / "whole", *command).communicate()[1] == ""
    whole, killed = only_record(tmp_path / "whole"), tmp_path / "killed"
    program = start_two_ranks(killed, *command)
    while flushed_epochs(killed) < 2:  # one epoch of each rank
        assert program.poll() is None
        time.sleep(0.02)
    time.sleep(0.3)
    ranks = ranks_of(program)
    assert len(ranks) == 2
    (psutil.Process(program.pid) if victim == "starter" else ranks[int(victim[-1])]).kill()
    assert psutil.wait_procs(ranks, timeout=10)[1] == []
    error = program.communicate()[1]
    assert program.returncode == (-signal.SIGKILL if victim == "starter" else 2)
    assert victim == "starter" or re.fullmatch(
        rf"error: {victim} was ended by SIGKILL; complete epochs are kept: resume with .* train --resume runs/\S+\n",
        error), error
    assert start_two_ranks(killed, "--resume", str(partial(killed))).communicate()[1] == ""
    run = only_record(killed)
    assert_same(run, whole, f"{CASE}-ddpx2-rank0")
    assert [entry.passes.training.num_resumed for entry in run.entries] == [1, 1]


class TestAFinishedRun:
    def test_it_prints_a_line_an_epoch_and_where_to_go_next(
        self, unbroken: Unbroken,
    ) -> None:
        done, run = unbroken
        progress = r"\[1/1\] \S+: epoch \d/2, training: \d+ of 40, .*"  # of what takes more than a second
        assert all(re.fullmatch(progress, line) for line in done.stderr.splitlines())
        lines = done.stdout.splitlines()
        number = r"[\d.e-]+"
        for epoch in (1, 2):
            assert re.fullmatch(rf"epoch {epoch}/2  loss {number}  validation: loss {number}, "
                                rf"token accuracy {number}, bleu {number}  {number} s", lines[epoch - 1])
        assert f"Wrote runs/{run.path.name}" in done.stdout

    def test_the_record_holds_every_epoch(self, unbroken: Unbroken) -> None:
        run = unbroken[1]
        (entry,) = run.entries
        assert (entry.case, entry.status) == (CASE, "ok")
        facts = entry.passes.training
        assert (facts.num_epochs, facts.num_train_samples, facts.num_valid_samples) == (2, 10_000, 1_000)
        metrics = run.metrics.groupby("stage")["metric"].unique().map(list)
        assert metrics["training"] == ["loss", "token_accuracy"]
        assert metrics["validation"] == ["loss", "token_accuracy", "bleu"]
        assert len(run.metrics) == 5 * 2
        training = run.stages[run.stages["stage"] == "training"]
        assert set(training["phase"]) == {"data", "forward", "loss", "backward", "update", "other"}
        assert set(training["num_iterations"]) == {40}
        validation = run.stages[run.stages["stage"] == "validation"]
        assert set(validation["phase"]) == {"data", "forward", "loss", "other"}
        assert (run.stages["host_s"] >= 0).all()
        best = run.metrics[(run.metrics["stage"] == "validation") & (run.metrics["metric"] == "token_accuracy")]
        assert facts.best.value == best["value"].max()
        assert run.manifest["options"]["threads"] == 1

    def test_nothing_is_left_of_the_way_there(self, unbroken: Unbroken) -> None:
        path = unbroken[1].path
        assert [entry for entry in path.parent.iterdir() if entry.name.startswith(".")] == []
        assert {entry.name for entry in path.iterdir() if not entry.name.startswith("events.")} == {
            "run.json", "stages.parquet", "metrics.parquet", "weights"}


class TestGoingOn:
    def test_after_kill_9_in_the_second_epoch_the_end_is_that_of_an_unbroken_run(
        self, killed: Path, tmp_path: Path, unbroken: Unbroken, here: Here,
    ) -> None:
        directory = copy_of(killed, tmp_path)
        shown = here("report", "--partial", "--to", "early.html", str(partial(directory)), cwd=directory)
        assert shown.returncode == 0, shown.stderr
        assert CASE in (directory / "early.html").read_text()
        (entry,) = load_run(partial(directory), partial=True).entries
        assert (entry.status, entry.passes.training.num_epochs) == ("running", 1)

        done = here("train", "--resume", str(partial(directory)), cwd=directory, status=0)
        assert [line.split()[1] for line in done.stdout.splitlines() if line.startswith("epoch ")] == ["2/2"]
        assert_same(only_record(directory), unbroken[1])
        assert only_record(directory).entries[0].passes.training.num_resumed == 1

    @pytest.mark.slow
    def test_ctrl_c_keeps_whole_epochs_and_says_how_to_go_on(
        self, tmp_path: Path, unbroken: Unbroken, here: Here, server: Server,
    ) -> None:
        done = interrupted(server, tmp_path, signal.SIGINT)
        stderr = done.error
        assert done.status == 130, stderr
        assert stderr.count("\n") == 1
        directory = partial(tmp_path)
        assert stderr.endswith(f"train --resume runs/{directory.name}\n")
        (entry,) = load_run(directory, partial=True).entries
        assert (entry.status, entry.reason) == ("interrupted", "by SIGINT")
        here("train", "--resume", f"runs/{directory.name}", "-q", cwd=tmp_path, status=0)
        assert_same(only_record(tmp_path), unbroken[1])

    def test_ctrl_c_before_an_epoch_is_whole_writes_nothing(self, tmp_path: Path, server: Server) -> None:
        child = server.start("train", *SMALL, cwd=tmp_path)
        child.until(lambda: list(tmp_path.glob("runs/.partial-*/run.json")))
        child.kill(signal.SIGINT)
        done = child.wait()
        assert (done.status, done.output) == (130, "")
        assert done.error == "interrupted before the first epoch was complete: nothing is written\n"
        assert list((tmp_path / "runs").iterdir()) == []

    @pytest.mark.views
    def test_a_run_that_was_killed_while_it_was_published(
        self, tmp_path: Path, unbroken: Unbroken, here: Here,
    ) -> None:
        run = tmp_path / "runs" / unbroken[1].path.name
        hidden = run.with_name(f".partial-{run.name}")
        shutil.copytree(unbroken[1].path, hidden)
        here("train", "--resume", str(hidden), "-q", cwd=tmp_path, status=0)
        assert (run / "report.html").is_file()
        assert len(only_record(tmp_path).metrics) == 10

    def test_a_damaged_checkpoint_is_one_line_and_is_kept(self, killed: Path, tmp_path: Path, here: Here) -> None:
        directory = copy_of(killed, tmp_path)
        (checkpoint,) = (partial(directory) / "checkpoints").iterdir()
        checkpoint.write_bytes(checkpoint.read_bytes()[:1000])
        done = here("train", "--resume", str(partial(directory)), cwd=directory)
        assert done.returncode == 2
        remedy = "remove it to restart the training of its case"
        assert re.fullmatch(rf"error: .*{CASE}\.pt is damaged \(\w+\): {remedy}.*\n", done.stderr)
        assert checkpoint.stat().st_size == 1000

    def test_what_is_no_unfinished_training_is_refused(
        self, record: Path, tmp_path: Path, unbroken: Unbroken, refused: Here,
    ) -> None:
        for path, message in ((unbroken[1].path, "is finished: there is nothing to resume"),
                              (record, "is not a training: --resume needs an unfinished directory of `charact train`"),
                              (tmp_path, "holds no run.json"), (tmp_path / "absent", "holds no run.json")):
            refused("train", "--resume", path, said=message)


class TestFailures:
    @pytest.mark.parametrize(("arguments", "message"), [
        (["mlp", "--nproc", "2", "--compile"], "error: --nproc: --compile makes ranks wait"),
        (["mlp", "--nproc", "2", "--protocol", "northeastern"], "error: --nproc: --protocol is that of a study on one"),
        (["rnn_lm", "--nproc", "2"], "error: --nproc: rnn_lm reads synthetic in its order, which ranks cannot share"),
        (["mlp", "--nproc", "2", "--batch-sizes", "30000"],
         "error: a batch of 30000 for each of 2 ranks is more than the 50,000 samples of synthetic"),
        (["--resume", "runs/.partial-x", "--batch-sizes", "9"],
         "error: --resume takes all options from the resumed training: leave --batch-sizes out\n"),
        ([], "error: give a workload"),
        (["mpl"], "error: unknown workload 'mpl': did you mean mlp"),
        (["mlp", "--epochs", "0"], "error: "),
        (["mlp", "--holdout", "0.2", "--validation", "test"], "error: --holdout and --validation both select"),
        (["mlp", "--holdout", "1"], "error: --holdout: 1.0 is not between 0 and 1"),
        (["mlp", "--until", "accuracy"], "error: --until: 'accuracy' is not a metric and a value"),
        (["mlp", "--learning-rate", "-1"], "error: --learning-rate: -1.0 is not positive"),
        (["mlp", "--input-sizes", "2,3", "--weights", "of_size_2.pt"],
         "of_size_2.pt does not fit: its 1.weight is 512×12, the model's 512×27"),
        (["mlp", "--synthetic", "classes=5", "--data", "mnist"], "error: --synthetic is for synthetic data, not for"),
        (["mlp", "--data-dir", "."], "error: --data-dir is for real data"),
        (["model_a", "--protocol", "vo", "--synthetic", "classes=5"], "error: --synthetic is for synthetic data, not "
                                                                      "for mnist: leave one of them out"),
    ])
    def test_bad_input_gets_one_line_and_nothing_is_written(
        self, tmp_path: Path, arguments: list[str], message: str, refused: Here,
    ) -> None:
        workload = find_workload("mlp").prepare()
        save_weights(workload.model(workload.dataset(2, DataRequest())), tmp_path / "of_size_2.pt")
        refused("train", *arguments, said=message)


@pytest.mark.slow
@pytest.mark.skipif(not MNIST.is_dir(), reason="needs MNIST in ../shared/data")
def test_it_learns_real_digits(tmp_path: Path, server: Server) -> None:
    """8,000 pictures to train on and 2,000 to validate on."""
    done = server.charact("train", "googlenet", "--input-sizes", "28", "--batch-sizes", "64", "--data", "mnist",
                          "--data-dir", str(MNIST), "--split", "test", "--holdout", "0.2", "--epochs", "10", "--until",
                          "accuracy=0.97", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    facts = only_record(tmp_path).entries[0].passes.training
    assert (facts.num_train_samples, facts.num_valid_samples) == (8_000, 2_000)
    assert facts.best.value >= 0.97, done.stdout
    assert facts.until.epoch == facts.num_epochs


@pytest.mark.slow
@pytest.mark.skipif(not WIKITEXT.is_dir(), reason="needs WikiText-2 in ../shared/data")
def test_a_language_model_learns_real_text(tmp_path: Path, server: Server) -> None:
    """From the perplexity of its vocabulary's size, which random words have, to below 1,000 in one epoch."""
    done = server.charact("train", "rnn_lm", "--variant", "lstm-tied", "--data", "wikitext2", "--data-dir",
                          str(WIKITEXT), "--split", "valid", "--holdout", "0.1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    best = only_record(tmp_path).entries[0].passes.training.best
    assert (best.metric, best.epoch) == ("perplexity", 1)
    assert best.value < 1_000, done.stdout
