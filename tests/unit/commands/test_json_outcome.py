"""Results as JSON, and the errors of commands that take an unfinished run."""

import json
from pathlib import Path

import pytest
from support import records

from charact import cli
from charact.commands._shared.publish import report_outcome
from charact.record.reader import load_run


def test_the_outcome_is_the_json_of_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = records.write_inference(tmp_path)
    assert report_outcome(load_run(run), quiet=False, as_json=True)
    outcome = capsys.readouterr()
    assert cli.run(["show", str(run), "--json"]) == 0
    assert capsys.readouterr() == outcome
    assert json.loads(outcome.out)["run"]["path"] == str(run)


def test_a_comparison_is_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(records.write_training(tmp_path, diverged=False))
    assert cli.run(["compare", f"a={run}", f"b={run}", "--json", "--fail-if", "time > 2", "--allow-single"]) == 0
    out, said = capsys.readouterr()
    assert said == ""
    found = json.loads(out, parse_constant=pytest.fail)
    assert found["groups"] == ["a", "b"]
    assert found["turns"] is None
    row, *_ = found["rows"]
    assert (row["level"], row["side"], row["ratio"]) == ("case", "b", 1.0)


@pytest.mark.parametrize("command", ["watch", "recover"])
def test_without_a_match_the_unfinished_runs_are_listed(
        tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    missing = tmp_path / "runs" / ".partial-*"
    for directory, words in ((None, f"there is no directory {missing.parent}"),
                             (missing.parent, f"{missing.parent} has no unfinished run"),
                             (missing.with_name(".partial-x"), f"unfinished are {missing.parent}/.partial-x")):
        if directory is not None:
            directory.mkdir()
        assert cli.run([command, str(missing)]) == 2
        assert capsys.readouterr().err == f"error: {missing} does not exist: {words}\n"
