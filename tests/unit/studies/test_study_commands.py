"""Commands of charact that a study runs before and after its cases."""

from pathlib import Path

import pytest
from support.brick_records import suite_run, three_models

from charact.core.errors import UserError
from charact.studies.commands import _run
from charact.studies.study import Study, find_studies
from charact.sweeps.directory import SweepDirectory
from charact.views.document import Body


def test_paths_and_quoted_options_are_one_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, ...]] = []

    def charact(*words: str) -> int:
        calls.append(words)
        return 0

    monkeypatch.setattr(_run, "_charact", charact)
    study = Study("one", "One", "a paper", lambda runs: Body(), {"quick": (), "full": ()},
                  before={"quick": ("bricks generate nets:net --input-spec 'int64[9] S' --out {directory}/suite",)})
    directory = SweepDirectory(tmp_path / "my studies" / "one-quick")
    _run._prepare(study, "quick", directory)
    prepared = tmp_path / "my studies" / "one-quick.prepared"
    assert calls == [("bricks", "generate", "nets:net", "--input-spec", "int64[9] S", "--out", f"{prepared}/suite")]
    _run._prepare(study, "quick", directory)  # it succeeded before
    _run._prepare(study, "full", directory)  # it has no command
    assert len(calls) == 1


def test_runs_of_other_machines_are_read(tmp_path: Path) -> None:
    there = tmp_path / "laptop" / "dlbricks-quick"
    runs = [suite_run(there / "runs"), three_models(there / "after")]
    (there / "after" / ".partial-1").mkdir()
    (dlbricks,) = find_studies("dlbricks")
    assert [run.path for run in _run._other_runs(dlbricks, "quick", [tmp_path / "laptop"])] == [
        run.path for run in runs]
    assert _run._other_runs(dlbricks, "quick", []) == []
    with pytest.raises(UserError, match=r"dlbricks-full has no runs: name the directory \(--out\)"):
        _run._other_runs(dlbricks, "full", [tmp_path / "laptop"])


def test_other_machines_are_for_studies_that_compare_machines(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--machine is for dlbricks: leave it out"):
        _run.repeat_studies("aalto", "quick", tmp_path, None, None, machines=[tmp_path], dry_run=True, retry=False,
                            quiet=True)
    assert list(tmp_path.iterdir()) == []
