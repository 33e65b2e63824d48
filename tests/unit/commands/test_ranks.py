"""Parts of ranks: which there are, when they are merged, and into what."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.records import manifest, watched_entry, watched_rows

from charact.commands._shared.ranks import end_rank, merge_job, merged
from charact.core.errors import UserError
from charact.record.in_progress import PARTIAL_PREFIX
from charact.record.manifest import typed_entry
from charact.record.rank_parts import is_job, job_of, part_folder, parts_of
from charact.record.reader import load_run
from charact.record.runs import run_directories
from charact.record.writer import RunWriter

JOB = "0123456789ab"


def begun(out: Path, rank: int, *, world_size: int = 2, **facts: Any) -> RunWriter:
    """The part of a rank whose cases are written, as long as its writer lives."""
    identity = {"rank": rank, "local_rank": rank, "world_size": world_size, "job": JOB, "launcher": "torchrun"}
    options = {"script": "gan.py", "arguments": [], "skip": None, "iterations": None, "passes": []}
    described = manifest("run", "gan.py") | {"options": options, "rank": identity, "ending": "to its end"}
    writer = RunWriter(part_folder(out, JOB, rank), "gan", described | facts)
    if "reason" not in facts:
        writer.add_case(typed_entry(watched_entry()), {"iterations": watched_rows()})
    return writer


def ended(out: Path, rank: int, **facts: Any) -> Path:
    writer = begun(out, rank, **facts)
    writer.close("complete")
    return writer.publish()


def closed(out: Path, rank: int, **facts: Any) -> Path:
    """A part that is written, but not published, by a process that is gone."""
    writer = begun(out, rank, **facts)
    writer.close("complete")
    writer.leave()
    return writer.directory


def published(out: Path) -> list[Path]:
    return [path for path in out.iterdir() if not path.name.startswith(".")]


def test_the_last_rank_merges(tmp_path: Path) -> None:
    first, last = closed(tmp_path, 0), closed(tmp_path, 1)
    job = job_of(first)
    assert job is not None
    assert is_job(job)
    (folder,) = job.glob("rank-00001")
    later = folder.rename(tmp_path / ".later")  # it has not begun
    assert end_rank(first, quiet=True)
    assert published(tmp_path) == []
    assert [(part.rank, part.has_ended) for part in parts_of(job)] == [(0, True)]
    later.rename(folder)
    assert end_rank(last, quiet=True)
    (run,) = map(load_run, published(tmp_path))
    assert not job.exists()
    assert [case["case"] for case in run.manifest["cases"]] == ["gan-train-rank0", "gan-train-rank1"]
    assert [case["rank"] for case in run.manifest["cases"]] == [0, 1]
    assert set(run.iterations["case"]) == {"gan-train-rank0", "gan-train-rank1"}
    assert len(run.iterations) == 2 * len(watched_rows())
    assert (run.path / "report.html").exists()


def test_nothing_is_merged_while_a_rank_runs(tmp_path: Path) -> None:
    running, other = begun(tmp_path, 0), closed(tmp_path, 1)
    end_rank(other, quiet=True)
    assert published(tmp_path) == []
    job = job_of(other)
    assert job is not None
    with pytest.raises(UserError, match=r"rank 0 of .* is still running: wait for it, or end it"):
        merge_job(job, quiet=True)
    running.leave()


def test_the_next_reader_merges_what_ranks_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = job_of(ended(tmp_path, 1, world_size=3))
    ended(tmp_path, 2, world_size=3)
    assert job is not None
    run = load_run(merged(job))
    assert [one["rank"] for one in run.manifest["ranks"]] == [1, 2]
    assert run.manifest["world_size"] == 3
    assert "the record lacks rank 0: run charact in every rank" in capsys.readouterr().err


def test_a_rank_without_iterations_keeps_its_reason(tmp_path: Path) -> None:
    ended(tmp_path, 0)
    job = job_of(ended(tmp_path, 1, reason="gan.py called no model", ending="ValueError: no data",
                       traceback="Traceback"))
    assert job is not None
    run = load_run(merged(job))
    assert run.manifest["ending"] == "rank 1: ValueError: no data"
    assert [(one["num_iterations"], one["reason"]) for one in run.manifest["ranks"]] == [
        (5, None), (0, "gan.py called no model")]


def test_a_job_without_iterations_is_removed_with_the_reason(tmp_path: Path) -> None:
    for rank in range(2):
        job = job_of(ended(tmp_path, rank, reason="gan.py called no model"))
    assert job is not None
    with pytest.raises(UserError, match=r"no rank had an iteration to record: gan\.py called no model"):
        merge_job(job, quiet=True)
    assert not job.exists()


def test_parts_are_no_runs_yet(tmp_path: Path) -> None:
    ended(tmp_path, 0)
    assert list(run_directories(tmp_path)) == []
    assert [path.name.startswith(PARTIAL_PREFIX) for path in tmp_path.iterdir()] == [True]


@pytest.mark.parametrize("ruin", [lambda part: (part / "run.json").write_text("{"),
                                  lambda part: (part / "iterations.parquet").write_bytes(b"PAR1")])
def test_a_damaged_part_is_kept_and_the_others_are_merged(ruin: Callable[[Path], Any], tmp_path: Path,
                                                          capsys: pytest.CaptureFixture[str]) -> None:
    damaged = ended(tmp_path, 1)
    job = job_of(ended(tmp_path, 0))
    ruin(damaged)
    assert job is not None
    run = load_run(merged(job))
    assert [one["rank"] for one in run.manifest["ranks"]] == [0]
    assert "rank 1 is left out, and its part is kept" in capsys.readouterr().err
    assert damaged.exists()
    assert [part.rank for part in parts_of(job)] == [1]
