"""The answer of a run: what to do where no bottleneck is known, and the command that measures it."""

import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from support.judged import busy, judged, operator
from support.records import watched_entry

from charact.record.reader import Run
from charact.views import answer as answer_file
from charact.views.answer import _of_program, answer
from charact.views.kinds import profile


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


def finding(case: str, low_s: float, high_s: float) -> dict[str, Any]:
    """A row of `findings` of a program of 100 s."""
    return {"finding": "threads", "case": case, "cause": "too many", "remedy": "fewer", "phase": None, "file": None,
            "line": None, "function": None, "layer": None, "operator": None, "setting": "threads", "evidence": ["x"],
            "recoverable_s": [low_s, high_s], "recoverable_frac": [low_s / 100, high_s / 100],
            "recoverable_bytes": None, "basis": "modelled", "confidence": "low"}


@pytest.mark.parametrize(("rank", "saving"), [
    (None, "7.00 s to 13.0 s, 7.0 % to 13.0 % of the program"), (1, "2.00 s to 4.00 s, 2.0 % to 4.0 % of the program")])
def test_a_remedy_of_several_cases_saves_their_sum(monkeypatch: pytest.MonkeyPatch, rank: int | None, saving: str
                                                   ) -> None:
    """Not that of cases that run at the same time, on other ranks."""
    entries = [watched_entry(case="a"), watched_entry(case="b", rank=rank)]
    run = Run(Path("none"), {"cases": entries})
    monkeypatch.setattr(answer_file, "findings", lambda _: pd.DataFrame([finding("a", 2, 4), finding("b", 5, 9)]))
    monkeypatch.setattr(answer_file, "case_summary", lambda _: entries)
    action, = _of_program(run)
    assert action.saving == f"{saving} (modelled)"
    assert action.cases == ["a", "b"]


@pytest.mark.parametrize(("verdicts", "text"), [
    (["host-bound", "host-bound"], "; decoding is host-bound"), ([None, None], ""),
    (["host-bound", None, "memory-bandwidth-bound", "host-bound"], "; decoding is host-bound in 2 of 4 cases"),
])  # fmt: skip
def test_a_verdict_of_some_decodings_has_their_number(verdicts: list[str | None], text: str,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    cases = pd.DataFrame({"case": [f"decode{number}" for number in range(len(verdicts))], "mode": "decode"})
    monkeypatch.setattr(profile, "generations", lambda run: pd.DataFrame({
        "first_s": [0.2], "token_s": [0.01], "all_tokens_per_s": [95.0]}))
    monkeypatch.setattr(profile, "bottlenecks", lambda run: cases[["case"]].assign(verdict=verdicts))
    monkeypatch.setattr(profile, "has_findings", lambda run: False)
    run: Any = SimpleNamespace(cases=cases)
    assert profile._of_generations(run, any_others=False) == (
        f"The first token takes 200 ms, each further one 10.0 ms: 95 tokens/s in all{text}")
