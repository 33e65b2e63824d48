"""The user's cache of corrections: read as they were stored, and for what a correction depends on only."""

from pathlib import Path

import msgspec
import pytest
from support.brick_runs import CASE, infer_run

from charact.bricks.analysis.construction import Correction
from charact.bricks.commands._construct import CachedCorrection, correction_file, machine_correction
from charact.machine.ceilings_cache import cache_ceilings
from charact.record.reader import Run

LEARNED = Correction(0.95, 6e-6, 0.0, 0.0, {"piece_s": "not determined"}, ["a", "b"], 0.05, 0.02, 0.04)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return infer_run(tmp_path, {"a": 0.01})


def cached(run: Run) -> Path:
    path = correction_file(run, CASE)
    cache_ceilings(path, CachedCorrection(correction=LEARNED))
    return path


def test_a_correction_is_read_as_it_was_stored(run: Run) -> None:
    assert machine_correction(run, CASE) == "no correction was learned on this machine: run charact bricks calibrate"
    cached(run)
    assert machine_correction(run, CASE) == LEARNED


def test_all_that_a_correction_depends_on_is_in_its_path(run: Run, tmp_path: Path) -> None:
    files = {correction_file(run, CASE)}
    entry = run.entry(CASE)
    places = [(run.manifest["machine"], "fingerprint"), (run.manifest["software"], "torch"), (run.options, "threads"),
              (entry, "device"), (entry, "mode"), (entry, "precision"), (entry.passes.bricks, "g"),
              (entry.passes.bricks, "cut_method"), (entry.passes.bricks, "method")]
    for place, name in places:
        before = place[name] if isinstance(place, dict) else getattr(place, name)
        for value in ("../other", before):
            if isinstance(place, dict):
                place[name] = value
            else:
                setattr(place, name, value)
            files.add(correction_file(run, CASE))
    assert len(files) == 1 + len(places)
    assert {path.parent for path in files} == {tmp_path / "cache" / "charact" / "corrections"}


@pytest.mark.parametrize(("text", "other", "reason"), [
    *((text, other, "is damaged, or of another version of charact") for text, other in [
        ('"format": 1', '"format": 2'), ("0.95", "-0.95"), ("0.95", "0"), ("0.95", "NaN"), ('"a",', ""), ("0.05", "-1"),
        ("{", "["), ("{", '{"more": 1,'), ("}", "")]),
    ('"charact": "', '"charact": "9.', "it was learned by charact 9."),
])
def test_other_files_are_not_used(run: Run, text: str, other: str, reason: str) -> None:
    path = cached(run)
    path.write_text(path.read_text().replace(text, other, 1))
    found = machine_correction(run, CASE)
    assert isinstance(found, str)
    assert reason in found


def test_without_a_home_nothing_is_cached(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    assert machine_correction(run, CASE) == "there is no home directory for the cache: set XDG_CACHE_HOME"


def test_what_is_stored_is_json_with_its_version(run: Run) -> None:
    stored = msgspec.json.decode(cached(run).read_bytes())
    assert stored["correction"] == msgspec.to_builtins(LEARNED)
    assert stored["format"] == 1
