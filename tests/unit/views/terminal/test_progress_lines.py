"""Progress without a terminal: lines on standard error."""

import pytest

from charact.core.console import Console
from charact.views.terminal import progress as progress_module
from charact.views.terminal.progress import LiveProgress, MemoryProgress, TrainingProgress


class Clock:
    """A clock that a test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        monkeypatch.setattr(progress_module.time, "monotonic", lambda: self.now_s)


def test_cases_are_a_line_every_ten_seconds(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
                                            ) -> None:
    clock = Clock(monkeypatch)
    with LiveProgress(Console(stderr=True), enabled=True) as progress:
        for number in (1, 2):
            progress.case_started(f"mlp-{number}", number, 2)
            progress.pass_started("timing")
            for iteration in range(1, 50 * number):
                clock.now_s += 0.25
                progress.iteration(iteration, 0.25)
    out, lines = capsys.readouterr()
    assert out == ""
    assert lines.splitlines() == ["[1/2] mlp-1: timing pass: 40 iterations, 4/s",
                                  "[2/2] mlp-2: timing pass: 31 iterations, 4/s, about 4 s left",
                                  "[2/2] mlp-2: timing pass: 71 iterations, 4/s"]


def test_estimates_show_the_time_left_that_the_sweep_reports(
        monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock(monkeypatch)
    with MemoryProgress(Console(stderr=True), enabled=True) as progress:
        for number, left in ((1, None), (2, 90.0), (3, 21.0)):
            if left:
                progress.time_left(left)
            progress.case_started(f"mlp-{number}", number, 3)
            clock.now_s += 11
            progress.pass_started("prediction")
            clock.now_s += 11
    assert capsys.readouterr().err.splitlines() == [
        "[1/3] mlp-1: prediction", "[2/3] mlp-2: setting up, about 90 s left",
        "[2/3] mlp-2: prediction, about 79 s left", "[3/3] mlp-3: setting up, about 21 s left",
        "[3/3] mlp-3: prediction, about 10 s left"]


def test_training_shows_the_time_left_from_its_first_epoch(monkeypatch: pytest.MonkeyPatch,
                                                           capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock(monkeypatch)
    with TrainingProgress(Console(stderr=True), enabled=True, lines=False) as progress:
        progress.case_started("mlp", 1, 1)
        for epoch in (1, 2):
            progress.epoch_started(epoch, 2)
            for number in range(1, 13):
                clock.now_s += 1
                progress.stage_iteration("training", number, 12)
            progress.epoch_ended(epoch, 2, {"loss": 1.0}, {"loss": 1.0}, 12.0)
    assert capsys.readouterr().err.splitlines() == [
        "[1/1] mlp: epoch 1/2, training: 10 of 12, 1/s, at least 14 s left",
        "[1/1] mlp: epoch 2/2, training: 8 of 12, 1/s, about 4 s left",
    ]


def test_quiet_commands_print_no_lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock(monkeypatch)
    with LiveProgress(Console(stderr=True), enabled=False) as progress:
        progress.case_started("mlp", 1, 1)
        progress.pass_started("timing")
        clock.now_s += 60
        progress.iteration(3, 0.1)
    assert capsys.readouterr() == ("", "")
