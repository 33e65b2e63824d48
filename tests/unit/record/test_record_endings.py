"""What becomes of a record that ends early: what has finished is kept, on the disk, and nothing else is left."""

import contextlib
import errno
import os
import re
from pathlib import Path
from typing import Any

import pytest

from charact.commands._shared.publish import keeping_finished
from charact.core.errors import UserError
from charact.core.files import write_text
from charact.record import in_progress
from charact.record.in_progress import PARTIAL_PREFIX
from charact.record.manifest import typed_entry
from charact.record.reader import load_run
from charact.record.writer import RunWriter


def entry(case: str) -> dict[str, Any]:
    return {"case": case, "status": "ok", "reason": None, "passes": {}}


def layers(epoch: int) -> list[dict[str, Any]]:
    """As many rows as there were epochs, which name the epoch."""
    return [{"layer": f"{epoch}.{number}"} for number in range(epoch)]


def names_in(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_published_run_holds_nothing_that_a_kill_left(tmp_path: Path, is_closed: bool) -> None:
    writer = RunWriter(tmp_path, "killed", {})
    traced = {"passes": {"operators": {"status": "ok"}, "training": {"status": "ok", "weights": "weights/a.pt"}}}
    torn = {"passes": {"operators": {"status": "failed"}}}
    for case, passes in (("a", traced), ("b", torn)):
        writer.add_case(typed_entry(entry(case) | passes), {"layers": [{"layer": "x"}]})
    if is_closed:
        writer.close("complete")
    for name in ("a", "b", "never-flushed"):
        writer.trace_path(name).touch()
    for folder, name in (("weights", "a.pt"), ("weights", "c.pt"), ("weights", f".{16 * '0'}"), ("trace", ".0"),
                         (".", f".{16 * 'a'}"), (".", ".events-partial"), (".", "panel"), (".", "slices.bin"),
                         (".", "notes.jsonl"), (".", "random.pt"), ("checkpoints", "a.pt"), ("parts", "x.parquet")):
        (writer.folder(folder) / name).touch()
    os.close(writer._lock)
    again = RunWriter.reopen(writer.directory)
    again.close("complete")
    assert names_in(again.publish()) == {"run.json", "layers.parquet", "trace/a.pt.trace.json.gz", "weights/a.pt"}
    assert len(load_run(again.final).layers) == 2


def test_a_part_that_is_damaged_is_named_and_the_others_are_kept(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, "damaged", {})
    for case in "ab":
        writer.add_case(typed_entry(entry(case)), {"layers": [{"layer": "x"}]})
    path = writer.directory / "parts" / "layers-0001.parquet"
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(UserError, match=r"layers-0001\.parquet is corrupt .*: remove it to read the other rows"):
        writer.close("complete")
    path.unlink()
    writer.close("complete")
    assert list(load_run(writer.publish()).layers["case"]) == ["a"]


def test_files_are_on_the_disk_before_they_have_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[tuple[str, str]] = []
    fsync, replace = os.fsync, os.replace

    def name_of(file: int) -> str:
        name = Path(os.readlink(f"/proc/self/fd/{file}")).name
        return "new" if name.startswith(".") and len(name) == 17 else name

    monkeypatch.setattr(os, "fsync", lambda file: (steps.append(("sync", name_of(file))), fsync(file)))
    monkeypatch.setattr(os, "replace", lambda old, new: (steps.append(("name", Path(new).name)), replace(old, new)))
    writer = RunWriter(tmp_path, "run", {})
    steps.clear()
    writer.add_case(typed_entry(entry("a")), {"layers": [{"layer": "x"}]})
    hidden = writer.directory.name
    assert steps == [("sync", "new"), ("name", "layers-0000.parquet"), ("sync", "parts"),
                     ("sync", "new"), ("name", "run.json"), ("sync", hidden)]
    writer.close("complete")
    steps.clear()
    writer.publish()
    assert steps == [("sync", hidden), ("sync", tmp_path.name)]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.EIO])
def test_a_file_system_without_fsync_is_written_to_all_the_same(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    if number == errno.EIO:
        with pytest.raises(UserError, match=r"cannot write .*x \(input/output error\)"):
            write_text(tmp_path / "x", "text")
        assert list(tmp_path.iterdir()) == []
    else:
        write_text(tmp_path / "x", "text")
        assert (tmp_path / "x").read_text() == "text"


def test_a_directory_without_a_manifest_is_removed_unless_it_holds_something(tmp_path: Path) -> None:
    bare, held = tmp_path / f"{PARTIAL_PREFIX}bare", tmp_path / f"{PARTIAL_PREFIX}held"
    for directory in (bare, held):
        (directory / "parts").mkdir(parents=True)
        (directory / "lock").touch()
        (directory / f".{16 * '0'}").touch()
    (held / "parts" / "layers-0000.parquet").touch()
    assert in_progress.remove_unbegun(bare)
    assert not in_progress.remove_unbegun(held)
    assert not in_progress.remove_unbegun(tmp_path)
    assert list(tmp_path.iterdir()) == [held]


@pytest.mark.parametrize("error", [UserError("the disk is full"), ZeroDivisionError("ours"), KeyboardInterrupt()])
@pytest.mark.parametrize("status", ["ok", "interrupted"])
def test_a_record_whose_writing_fails_is_kept_where_something_has_finished(
        tmp_path: Path, capsys: pytest.CaptureFixture[str], error: BaseException, status: str) -> None:
    writer = RunWriter(tmp_path, "run", {})
    writer.add_case(typed_entry(entry("a") | {"status": status}), {})
    with pytest.raises(type(error)) as caught, keeping_finished([writer]):
        raise error
    if status == "interrupted":
        assert list(tmp_path.iterdir()) == []
        assert caught.value is error
        return
    said = f"{caught.value}{capsys.readouterr().err}"
    name = re.escape(str(writer.directory))
    assert re.search(rf"finished cases are kept: .+ recover {name} completes the run", said)
    again = RunWriter.reopen(writer.directory)  # no lock is held
    again.close("interrupted")
    assert list(load_run(again.publish()).cases["case"]) == ["a"]


@pytest.mark.parametrize("fails_at", range(1, 5))
def test_a_case_that_is_flushed_again_is_whole_as_it_is_or_as_it_was(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int) -> None:
    writer = RunWriter(tmp_path, "run", {})
    for epoch in (1, 2, 3):
        writer.add_case(typed_entry(entry("a") | {"num_parameters": epoch}), {"layers": layers(epoch), "flop": []})
    replace, left = os.replace, [fails_at]

    def full(old: Path, new: Path) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(old, new)

    monkeypatch.setattr(os, "replace", full)
    stages = [{"stage": "training", "number": 1 + number, "phase": "forward", "host_s": 1.0} for number in range(4)]
    tables = {"layers": layers(4), "stages": stages}
    with contextlib.suppress(UserError):
        writer.add_case(typed_entry(entry("a") | {"num_parameters": 4}), tables)
    monkeypatch.undo()
    run = load_run(writer.directory, partial=True)
    epoch = run.entries[0].num_parameters
    assert epoch == (4 if fails_at > 3 else 3)
    assert list(run.layers["layer"]) == [row["layer"] for row in layers(epoch)]
    assert len(run.stages) == (4 if epoch == 4 else 0)
    writer.leave()
    again = RunWriter.reopen(writer.directory)
    again.add_case(typed_entry(entry("a") | {"num_parameters": 5}), {"layers": [{"layer": "5"}]})
    again.close("complete")
    final = load_run(again.publish())
    assert (list(final.layers["layer"]), len(final.stages)) == (["5"], len(run.stages))
    assert "flushes" not in final.manifest
