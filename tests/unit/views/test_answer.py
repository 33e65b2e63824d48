"""The answer of a run: what to do where no bottleneck is known, and the command that measures it."""

import shlex
from pathlib import Path

import pytest
from support.judged import busy, judged, operator

from charact.record.reader import Run
from charact.views.answer import answer


def host_bound(out: Path, *command_line: str) -> Run:
    """A case of batch size 8 in which operators take a tenth of the time, by the command that measured it."""
    return judged(out, {"forward": 0.1}, [operator("forward", "GEMM", 0.01, flop=1e6)],
                  manifest={"command_line": list(command_line)})


def test_a_case_without_a_verdict_says_why(tmp_path: Path) -> None:
    run = judged(tmp_path, {"forward": 0.1}, [operator("forward", "GEMM", 0.1, flop=1e6)], **busy(1.4, 10.0))
    action, = answer(run).actions
    assert action.cause == "Unreliable: other programs held 1.4 of 2 cores"
    assert action.remedy.startswith("Measure again when no other program runs")


@pytest.mark.parametrize("given", [["--batch-sizes", "8"], ["--batch-sizes=8"], []])
def test_an_option_that_was_given_is_replaced_in_the_command(tmp_path: Path, given: list[str]) -> None:
    action, = answer(host_bound(tmp_path, "charact", "profile", "net", *given, "--quiet")).actions
    assert shlex.split(action.command) == ["charact", "profile", "net", "--quiet", "--batch-sizes", "16"]
