"""Commands of charact that a study runs before and after its cases."""

from pathlib import Path

import pytest

from charact.studies.commands import _run
from charact.studies.study import Study
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
