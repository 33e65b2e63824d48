"""The index of many runs and the history that it gives: what is read once, what is read again, and the rows."""

import json
from pathlib import Path

import numpy as np
import pytest
from support import records
from support.histories import CASE, run_at, synthetic_index

from charact.analysis.compare.metrics import all_metrics
from charact.analysis.history import index as indexing
from charact.analysis.history.index import Index, read_index
from charact.analysis.history.series import case_counts, chosen_case, history, metric_counts
from charact.commands import history as command
from charact.core.errors import UserError
from charact.record.in_progress import write_manifest
from charact.record.reader import load_run


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "charact" / "history"


@pytest.fixture
def runs(tmp_path: Path, cache: Path) -> list[Path]:
    out = tmp_path / "runs"
    return [run_at(out, "2026-11-21T11:00:00+0000", git={"commit": "b" * 40, "dirty": True}, torch="2.14.0"),
            run_at(out, "2026-11-21T10:00:00+0000", git={"commit": "a" * 40, "dirty": False})]


def counted(paths: list[Path]) -> tuple[Index, int]:
    """The index, and how many runs were read for it."""
    read: list[None] = []
    return read_index(paths, lambda: read.append(None)), len(read)


def test_rows_are_in_the_order_of_time_with_what_differs(runs: list[Path]) -> None:
    rows = history(read_index(runs), CASE, "time")
    assert rows["started"].tolist() == ["2026-11-21 10:00", "2026-11-21 11:00"]
    assert rows["commit"].tolist() == ["a" * 10, "b" * 10]
    assert rows["dirty"].tolist() == [False, True]
    assert rows["differs"].iloc[1] == f"commit {'a' * 10} → {'b' * 10}, torch 2.13.0+cpu → 2.14.0"
    assert rows["change_frac"].isna().all()
    rows = history(read_index(runs), CASE, "time")
    walls = load_run(runs[0]).iterations.groupby("iteration")["host_s"].sum()
    assert rows["value"].tolist() == pytest.approx([walls.median()] * 2)
    assert (rows["low"] <= rows["value"]).all()
    assert (rows["value"] <= rows["high"]).all()
    assert (rows["low"] < rows["high"]).all()
    rows = history(read_index(runs), CASE, "accuracy")
    assert rows["reason"].tolist() == ["not measured"] * 2


def test_runs_are_read_once(runs: list[Path]) -> None:
    first, num_read = counted(runs)
    assert num_read == 2
    for path in runs:
        for file in path.glob("*.parquet"):
            file.unlink()
    second, num_read = counted(runs)
    assert num_read == 0
    assert second.runs == first.runs


def test_runs_are_read_once_or_when_they_change(runs: list[Path], tmp_path: Path) -> None:
    read_index(runs)
    manifest = json.loads((runs[0] / "run.json").read_text(encoding="utf-8"))
    write_manifest(runs[0], manifest | {"started": "2026-11-20T09:00:00+0000"})
    more = [*runs, run_at(tmp_path / "runs", "2026-11-22T10:00:00+0000")]
    index, num_read = counted(more)
    assert num_read == 2
    assert history(index, CASE, "time")["started"].iloc[0] == "2026-11-20 09:00"
    read_index(runs)
    index, num_read = counted(runs[:1])
    assert (len(index.runs), num_read) == (1, 0)
    manifest = json.loads((runs[0] / "run.json").read_text(encoding="utf-8"))
    write_manifest(runs[0], manifest | {"started": "2026-11-20T09:00:00+0000"})
    assert counted(runs[:1])[1] == 1
    assert counted(runs)[1] == 0


@pytest.mark.slow_variants
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"made_by": "older"}', b"\xff", b'{"made_by": 1}'])
def test_a_damaged_cache_is_made_again(runs: list[Path], cache: Path, content: bytes) -> None:
    before = read_index(runs).runs
    (file,) = cache.iterdir()
    whole = file.read_bytes()
    file.write_bytes(content)
    index, num_read = counted(runs)
    assert num_read == 2
    assert index.runs == before
    assert file.read_bytes() == whole


def test_a_cache_that_cannot_be_written_is_done_without(runs: list[Path], cache: Path,
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_text("a file", encoding="utf-8")
    assert len(history(read_index(runs), CASE, "time")) == 2
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    assert len(history(read_index(runs), CASE, "time")) == 2


def test_a_run_that_cannot_be_read_or_failed_has_a_reason(runs: list[Path], tmp_path: Path, cache: Path) -> None:
    (runs[0] / "run.json").write_text("{", encoding="utf-8")
    index = read_index(runs)
    assert "run.json" in str(index.runs[str(runs[0])].problem)
    assert len(history(index, CASE, "time")) == 1
    path = records.write_record(tmp_path, sizes=(), oom=True)
    index = read_index([path])
    (case,) = case_counts(index)
    rows = history(index, case, "time")
    assert rows["value"].isna().all()
    assert rows["reason"].tolist() == ["oom: out of memory: asked for 64.0 GB"]
    assert metric_counts(index, case) == {}


def test_a_case_is_chosen_by_name(runs: list[Path], tmp_path: Path) -> None:
    index = read_index(runs)
    assert chosen_case(index, None) == chosen_case(index, CASE) == CASE
    with pytest.raises(UserError, match=f"no run has the case '{CASE}x': did you mean {CASE}"):
        chosen_case(index, f"{CASE}x")
    more = read_index([*runs, records.write_record(tmp_path / "more")])
    with pytest.raises(UserError, match=f"several cases: name one with --case: {CASE}"):
        chosen_case(more, None)
    with pytest.raises(UserError, match="no run that can be read has a case"):
        chosen_case(read_index([]), None)


def test_the_level_changes_at_a_step_and_is_found_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = synthetic_index(np.repeat([0.100, 0.110], 10))
    rows = history(index, CASE, "time")
    assert rows["change_frac"].dropna().to_dict() == {10: pytest.approx(0.1, abs=0.005)}
    assert rows["level"].tolist() == pytest.approx([0.1] * 10 + [0.11] * 10, rel=0.005)
    monkeypatch.setattr("charact.analysis.history.change_points.change_points", None)
    assert history(index, CASE, "time").equals(rows)


def test_the_command_knows_every_metric() -> None:
    assert set(command._METRICS) == set(all_metrics())


def test_a_thousand_runs_are_read_from_the_index_within_a_second(tmp_path: Path) -> None:
    import time

    index = synthetic_index(np.full(1000, 0.1))
    index.place = tmp_path / "index.json"
    index.keep()
    begun_s = time.process_time()
    cached = indexing._cached(index.place)
    rows = history(Index(cached.runs, {}, {}, None), CASE, "time")
    assert time.process_time() - begun_s < 2  # on a busy machine; alone it takes 0.1 s, and SciPy's import 0.5 s
    assert len(rows) == 1000
