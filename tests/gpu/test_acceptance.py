"""The checks of `acceptance.py` and the tests of this folder where there is no GPU: nothing in them is out of date."""

import ast
import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from gpu import acceptance
from gpu.checks import CHECKS
from gpu.checks.session import NO_DEVICE, NotHereError, Session
from support.documents import unknown_option

from charact.cli import build_command

HERE = Path(__file__).parent
MODULES = sorted(".".join(path.relative_to(HERE.parent).with_suffix("").parts) for path in HERE.rglob("*.py"))
COMMANDS = {"profiled": ("profile", 1), "record": (None, 1), "recorded": (None, 1), "charact": (None, 0)}
"""Methods of a session that run charact: the command, if the method gives it, and the number of arguments before it."""


@pytest.mark.parametrize("name", MODULES)
def test_every_module_is_imported(name: str) -> None:
    importlib.import_module(name)


def commands() -> Iterator[list[str]]:
    """Words of every command of charact in the checks; what is known only when they run is `?`."""
    for path in (HERE / "checks").glob("*.py"):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
                continue
            words = [str(one.value) if isinstance(one, ast.Constant) else "?" for one in call.args]
            if call.func.attr == "run" and words[:2] == ["-m", "charact"]:
                yield words[2:]
            elif call.func.attr in COMMANDS:
                command, num_before = COMMANDS[call.func.attr]
                yield [*([command] if command else []), *words[num_before:]]


def test_commands_and_options_of_checks_exist() -> None:
    root = build_command()
    known = [words for words in commands() if words[0] != "?"]
    assert len(known) > 12
    assert [words for words in known if unknown_option(root, words) is not None] == []


@pytest.mark.slow
def test_every_check_runs_or_needs_a_device(tmp_path: Path) -> None:
    """As `--device cpu` does, in which times are not held."""
    done = subprocess.run([sys.executable, str(HERE / "acceptance.py"), "--device", "cpu", "--out", str(tmp_path)],
                          capture_output=True, text=True, timeout=500, check=False,
                          env=os.environ | {"OMP_NUM_THREADS": "1"})
    log = tmp_path / "programs.log"
    assert done.returncode == 0, done.stdout + done.stderr + (log.read_text(encoding="utf-8") if log.exists() else "")
    lines = [line.split("\t") for line in (tmp_path / "lines.tsv").read_text(encoding="utf-8").splitlines()]
    assert [name.removeprefix("seconds of ") for _, name, *_ in lines if name.startswith("seconds of ")] == list(CHECKS)
    not_here = {name: reason for status, name, reason, _ in lines if status == "N/A"}
    assert set(not_here.values()) == {NO_DEVICE}
    assert set(CHECKS) - set(not_here) == {"environment", "doctor", "passes", "iteration", "overhead", "memory",
                                           "import", "watched", "precision-api"}
    assert sum(status == "PASS" for status, *_ in lines) >= 5


def test_what_breaks_or_fails_counts_and_what_is_not_here_does_not(tmp_path: Path) -> None:
    def breaks(session: Session) -> None:
        raise ValueError("no such\tthing")

    def fails(session: Session) -> None:
        session.within("ratio", 1.2, 0.9, 1.1)
        session.within("missing", float("nan"), 0.9, 1.1)
        session.within("other ratio", 1.0, 0.9, 1.1)

    def is_not_here(session: Session) -> None:
        raise NotHereError("needs another machine")

    session = Session(tmp_path, torch.device("cpu"))
    assert acceptance.run_checks(session, {"a": breaks, "b": fails, "c": is_not_here}, 60.0) == 3
    assert [line.split("\t")[:2] for line in session.lines if not line.startswith("INFO")] == [
        ["ERROR", "a"], ["FAIL", "ratio"], ["FAIL", "missing"], ["PASS", "other ratio"], ["N/A", "c"]]
    assert "ValueError: no such thing" in session.lines[0]
    assert "Traceback" in (tmp_path / "programs.log").read_text(encoding="utf-8")


def test_no_check_begins_when_the_budget_is_spent(tmp_path: Path) -> None:
    session = Session(tmp_path, torch.device("cpu"))
    assert acceptance.run_checks(session, {"doctor": CHECKS["doctor"]}, -1.0) == 0
    assert [line.split("\t")[0] for line in session.lines] == ["N/A"]
