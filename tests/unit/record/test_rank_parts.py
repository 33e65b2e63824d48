"""Parts of ranks: their folders, locks and ends, and the run that they are merged into."""

import errno
import os
from pathlib import Path

import msgspec
import pytest
from support import records

from charact.core.errors import UserError
from charact.core.files import lock
from charact.machine.rank_identity import RankIdentity
from charact.record import rank_parts
from charact.record.manifest import typed_entry
from charact.record.manifest_passes import CoreUse
from charact.record.rank_merge import merge_parts
from charact.record.rank_parts import Part
from charact.record.reader import load_run
from charact.record.writer import RunWriter


def test_parts_are_the_latest_that_each_rank_has_begun(tmp_path: Path) -> None:
    job = tmp_path / ".partial-ranks-j"
    for name in ("rank-00010/20260102-a", "rank-00002/20260101-a", "rank-00002/.partial-20260102-a",
                 "rank-00002/20260103-empty/", "rank-00003/20260101-empty/", "rank-1/20260101-a", "other/20260101-a"):
        (job / name).mkdir(parents=True)
        if not name.endswith("/"):
            (job / name / "run.json").touch()
    begun, ended = Part(2, job / "rank-00002/.partial-20260102-a"), Part(10, job / "rank-00010/20260102-a")
    assert rank_parts.parts_of(job) == [begun, ended]
    assert rank_parts.part_folder(tmp_path, "j", 2) == begun.directory.parent
    assert (begun.has_ended, ended.has_ended) == (False, True)
    for part, written in ((begun, True), (ended, False)):
        held = lock(part.directory / "lock")
        assert held is not None
        assert part.is_being_written is written
        os.close(held)
        assert part.is_being_written is False
    with pytest.raises(UserError, match="cannot write"):
        rank_parts.parts_of(tmp_path / "absent")


@pytest.mark.parametrize(("name", "of_part", "of_job"), [
    (".partial-ranks-j/rank-00002/run", True, False), (".partial-ranks-j/rank-2/run", False, False),
    ("runs/rank-00002/run", False, False), (".partial-ranks-j", False, True), ("runs", False, False)])
def test_directories_of_jobs_and_of_parts(name: str, of_part: bool, of_job: bool, tmp_path: Path) -> None:
    directory = tmp_path / name
    assert rank_parts.job_of(directory) == (tmp_path / ".partial-ranks-j" if of_part else None)
    assert not rank_parts.is_job(directory)
    directory.mkdir(parents=True)
    assert rank_parts.is_job(directory) is of_job


def test_a_part_that_was_removed_is_not_being_written(tmp_path: Path) -> None:
    assert rank_parts.is_written(tmp_path / "absent") is False
    (tmp_path / "lock").mkdir()
    with pytest.raises(UserError, match="cannot write"):
        rank_parts.is_written(tmp_path)


@pytest.mark.parametrize(("content", "reason"), [
    (b"out of memory", "stopped measuring: out of memory"), (None, None), (b"\xff", None),
    (b"", "stopped measuring: it could not write its record")])
def test_why_a_rank_stopped_measuring(content: bytes | None, reason: str | None, tmp_path: Path) -> None:
    if content == b"out of memory":
        rank_parts.note_stopped(tmp_path, content.decode())
    elif content is not None:
        (tmp_path / "stopped").write_bytes(content)
    assert rank_parts.stopped(tmp_path) == reason
    rank_parts.note_stopped(tmp_path / "absent", "unwritable")


def test_a_job_is_locked_while_it_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with rank_parts.job_lock(tmp_path / "absent") as exists:
        assert exists is False
    with rank_parts.job_lock(tmp_path) as exists:
        assert exists is True
        assert lock(tmp_path / "lock") is None
    real_open = os.open

    def removed(path: str, flags: int, mode: int = 0o777) -> int:
        file = real_open(path, flags, mode)
        Path(path).unlink()
        return file

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space")

    monkeypatch.setattr(os, "open", removed)
    with rank_parts.job_lock(tmp_path) as exists:
        assert exists is False
    monkeypatch.setattr(os, "open", full)
    with pytest.raises(UserError, match=r"\(no space\): make it writable$"), rank_parts.job_lock(tmp_path):
        pass


@pytest.mark.parametrize(("endings", "ending", "statuses"), [
    (("to its end", "to its end", "to its end"), "to its end", ("complete", "complete", "complete")),
    (("to its end", None, "sys.exit(2)"), "rank 6: sys.exit(2)", ("complete", "complete", "interrupted")),
    (("to its end", None, "to its end"), "rank 5: killed", ("complete", "interrupted", "complete")),
])
def test_a_merged_run_has_the_cases_of_all_ranks(tmp_path: Path, endings: tuple[str | None, ...], ending: str,
                                                 statuses: tuple[str, ...]) -> None:
    parts, wall = [], {"iteration": 0, "phase": "other", "part": None, "host_s": 2.0, "device_s": None}
    for rank, host in enumerate(("a", "a", "b")):
        writer = RunWriter(tmp_path / f"rank{rank}", "train", {
            **records.manifest("run"), "hostname": host,
            "rank": RankIdentity(rank + 4, rank % 2, 3, "j", "slurm").facts(), "ending": endings[rank],
            "ended_s": None if endings[rank] is None else 1.0, "traceback": None,
            "event_log_damage": [{"file": "notes", "at_byte": 1, "lost_bytes": rank}] if rank else [], "own": rank})
        for case in ("one", "two"):
            entry = typed_entry(records.case_entry("mlp", 8, "train") | {"case": case})
            entry.passes.timing.core_use = CoreUse(10.0, 2, 5.0 + rank, 7.0) if rank < 2 else None
            writer.add_case(entry, {"iterations": [wall | {"host_s": 2.0 + rank}]} if case == "one" else {})
        writer.trace_path("one").write_text(f"trace {rank}")
        writer.close(statuses[rank])
        parts.append(Part(rank + 4, writer.publish()))
    writer = merge_parts(tmp_path, parts)
    run = load_run(writer.publish())
    assert [entry.case for entry in run.entries] == [f"{case}-rank{rank}" for rank in (4, 5, 6)
                                                     for case in ("one", "two")]
    assert [(entry.rank, entry.local_rank, entry.world_size, entry.hostname) for entry in run.entries[::2]] == [
        (4, 0, 3, "a"), (5, 1, 3, "a"), (6, 0, 3, "b")]
    # Of 7 s of others, 6 or 5 s in the same 10 s belong to the rank's sibling on host a; other cases keep theirs.
    uses = [entry.passes.timing.core_use for entry in run.entries]
    assert [use and use.others_s for use in uses] == [1.0, 7.0, 2.0, 7.0, None, None]
    assert run.table("iterations").groupby("case")["host_s"].sum().to_dict() == {
        "one-rank4": 2.0, "one-rank5": 3.0, "one-rank6": 4.0}
    assert [path.read_text() for entry in run.entries if (path := run.trace(entry.case))] == [
        "trace 0", "trace 1", "trace 2"]
    facts = run.manifest
    assert (facts["ending"], facts["world_size"], facts["own"]) == (ending, 3, 0)
    assert [damage["lost_bytes"] for damage in facts["event_log_damage"]] == [1, 2]
    assert facts["status"] == ("complete" if set(statuses) == {"complete"} else "interrupted")
    assert [(rank["rank"], rank["hostname"], rank["num_iterations"], rank["ending"]) for rank in facts["ranks"]] == [
        (number + 4, host, 20, endings[number]) for number, host in enumerate(("a", "a", "b"))]
    (parts[2].directory / "iterations.parquet").write_bytes(b"damaged")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(UserError, match="iterations"):
        merge_parts(tmp_path, parts)
    assert sorted(tmp_path.iterdir()) == before
    assert msgspec.json.decode((parts[0].directory / "run.json").read_bytes())["own"] == 0
