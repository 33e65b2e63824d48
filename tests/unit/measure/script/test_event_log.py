import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.watched import cases, training, watched

from charact.core.errors import UserError
from charact.measure.script.session import EnoughMeasured, Plan, Session
from charact.measure.script.spans.event_log import NOTES, SLICES, EventLogWriter, remove_event_log
from charact.measure.script.spans.event_log_reader import EventLogReader, read_event_log
from charact.measure.script.spans.event_log_to_record import script_cases
from charact.measure.script.spans.recorder import Kind, Slice

MANY = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
TIMES = st.integers(0, 2**62)
SPANS = st.lists(st.builds(
    Slice, st.sampled_from(Kind), st.just(0), st.just(0), st.integers(0, 2**62), st.booleans(), st.booleans(),
    st.booleans(), st.none() | TIMES, st.none() | TIMES))


@st.composite
def slice_lists(draw: st.DrawFn) -> list[Slice]:
    """Slices one after the other, as a program writes them."""
    spans = draw(SPANS)
    times = sorted(draw(st.lists(TIMES, min_size=2 * len(spans), max_size=2 * len(spans))))
    return [replace(span, start_ns=start, end_ns=end)
            for span, start, end in zip(spans, times[::2], times[1::2], strict=True)]


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner), max_leaves=4)
NAMES = st.text(st.characters(exclude_categories=["Ll", "Lu", "Lt", "Cs"]))
"""Names of facts that are no word: a value named like a password is not written."""
NOTE_LISTS = st.lists(st.builds(lambda facts: {**facts, "note": "of a kind that is not known"},
                                st.dictionaries(NAMES, JSON, max_size=3)))


def written(directory: Path, slices: list[Slice], notes: list[dict[str, Any]]) -> None:
    remove_event_log(directory)
    writer = EventLogWriter(directory)
    writer.slices(slices, int)  # the events are times already
    writer.notes(notes)


@MANY
@given(slices=slice_lists(), notes=NOTE_LISTS, data=st.data())
def test_a_log_that_is_cut_off_anywhere_gives_what_is_whole_and_then_the_rest(
        tmp_path: Path, slices: list[Slice], notes: list[dict[str, Any]], data: st.DataObject) -> None:
    written(tmp_path, slices, notes)
    whole = {name: (tmp_path / name).read_bytes() for name in (SLICES, NOTES)}
    for name, content in whole.items():
        cut = data.draw(st.integers(0, len(content)), label=name)
        (tmp_path / name).write_bytes(content[:cut])
    reader = EventLogReader(tmp_path)
    first, first_notes = list(reader.slices()), reader.notes()
    assert first == slices[:len(first)]
    assert first_notes == notes[:len(first_notes)]
    assert len(slices) - len(first) <= 1 + len(whole[SLICES]) - (tmp_path / SLICES).stat().st_size
    for name, content in whole.items():
        (tmp_path / name).write_bytes(content)
    assert first + list(reader.slices()) == slices
    assert first_notes + reader.notes() == notes


def test_nothing_yet_is_nothing_and_no_descriptor_stays_open(tmp_path: Path) -> None:
    reader, before = EventLogReader(tmp_path), os.listdir("/proc/self/fd")
    assert (list(reader.slices()), reader.notes()) == ([], [])
    written(tmp_path, [Slice(Kind.STEP, 0, 1, 2)], [{"note": "full"}])
    assert os.listdir("/proc/self/fd") == before


def test_a_place_that_is_gone_is_told(tmp_path: Path) -> None:
    writer = EventLogWriter(tmp_path)
    remove_event_log(tmp_path)
    with pytest.raises(UserError, match=r"cannot write .* \(no such file or directory\): choose another place"):
        writer.notes([{}])


def test_a_write_that_takes_only_a_part_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, content: write(file, content[:3]))
    slices = [Slice(Kind.FORWARD, number, number + 1, 7) for number in range(5)]
    written(tmp_path, slices, [{"note": "full"}])
    assert list(EventLogReader(tmp_path).slices()) == slices
    assert EventLogReader(tmp_path).notes() == [{"note": "full"}]


def step(model: torch.nn.Module) -> None:
    model(torch.ones(1, 2)).sum().backward()


@pytest.mark.parametrize(("error", "problem"), [
    (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "no space left while writing {}: free some, or choose another "
                                                       "place"),
    (ZeroDivisionError("ours"), "ZeroDivisionError: ours")])
def test_an_error_ends_the_watching_and_nothing_else(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, problem: str) -> None:
    said: list[str] = []
    call = torch.nn.Module.__call__
    monkeypatch.setattr("charact.measure.script.session.FLUSH_S", 0)
    session = Session(tmp_path, Plan(), said.append)
    session.start()
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def fail(*_: Any) -> int:
        raise error

    monkeypatch.setattr(*((os, "write") if isinstance(error, OSError) else (session, "_facts")), fail)
    before = model.weight.detach().clone()
    for _ in range(3):
        step(model)
        optimizer.step()
    session.close("to its end")
    assert not session.needs_closing
    assert not torch.equal(before, model.weight)
    assert said == [session.problem] == [problem.format(tmp_path)]
    assert torch.nn.Module.__call__ is call
    assert (tmp_path / SLICES).read_bytes() == b""


def test_notes_stand_before_the_slices_that_need_them(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.LazyLinear(3))
    log = watched(tmp_path, lambda: model(torch.ones(1, 2)))
    (forward,) = EventLogReader(tmp_path).slices()
    assert {note["owner"] for note in log.notes["owner"]} == {forward.owner}
    assert [note["num_parameters"] for note in log.notes["owner"]] == [0, 9]  # its forward makes a lazy module's


@pytest.fixture
def small_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event log is full after some 20 iterations."""
    monkeypatch.setattr("charact.measure.script.session.FLUSH_S", 0)
    monkeypatch.setattr("charact.measure.script.session.MAX_SLICES", 60)


def test_windows_follow_a_full_log(tmp_path: Path, small_log: None) -> None:
    log = watched(tmp_path, training(200))
    assert len(list(EventLogReader(tmp_path).slices())) == 61
    assert not log.notes["full"]
    ((entry, tables),) = cases(log)
    timing = entry.passes.timing
    assert timing.num_iterations == len(log.iterations) == 20
    assert 178 <= timing.num_window_iterations <= 180  # one or two were cut
    rows = [row for row in tables["windows"] if row["phase"] is None]
    assert sum(row["num_iterations"] for row in rows) == timing.num_iterations + timing.num_window_iterations
    assert rows[-1]["rss_bytes"] > 2**20
    of_phases_s = sum(row["sum_s"] for row in tables["windows"] if row["phase"] is not None)
    assert of_phases_s == pytest.approx(sum(row["sum_s"] for row in rows))
    assert timing.program.between_s < timing.program.duration_s / 2
    assert timing.window_s < timing.program.duration_s


def test_inference_that_begins_after_the_log_is_full_is_reported(tmp_path: Path, small_log: None) -> None:
    def program() -> Any:
        model, *rest = training(50)()
        with torch.no_grad():
            for _ in range(40):
                model(torch.ones(1, 4))
        return model, rest

    ((entry, _),) = cases(watched(tmp_path, program))
    (spot,) = (each for each in entry.passes.timing.blind_spots if "in no case" in each)
    assert spot.startswith("40 iterations of inference are in no case")


def test_a_log_of_some_iterations_ends_when_it_is_full(tmp_path: Path, small_log: None) -> None:
    session = Session(tmp_path, Plan(skip=100, iterations=10))
    session.start()
    alive = training(200)()
    session.close("to its end")
    log = read_event_log(tmp_path)
    assert len(list(EventLogReader(tmp_path).slices())) == 61
    assert (len(log.notes["full"]), log.windows) == (1, [])
    del alive


def test_backwards_alone_are_written_as_they_come_and_counted(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(tmp_path, Plan(skip=1, iterations=3, stop=True))
    session.start()
    monkeypatch.setattr(session._patches.context.events, "any_optimizer", False)  # other tests have made some
    weight = torch.ones(3, requires_grad=True)
    with pytest.raises(EnoughMeasured):
        [weight.sum().backward() for _ in range(50)]
    session.close("to its end")
    assert [each.kind for each in EventLogReader(tmp_path).slices()] == 5 * [Kind.BACKWARD]


# Damage

PHASES = [Kind.FORWARD, Kind.LOSS, Kind.BACKWARD, Kind.STEP]
MODEL = {"note": "owner", "owner": 1, "class": "Net", "variable": "net", "kind": "model", "num_parameters": 4}


def log_of(directory: Path, num_iterations: int) -> tuple[list[Slice], list[dict[str, Any]]]:
    """A program's event log: its slices and notes are written and returned."""
    slices = [Slice(kind, 100 * place, 100 * place + 90, 1, ends=True)
              for place, kind in enumerate(PHASES * num_iterations)]
    notes = [MODEL, {"note": "names", "names": {"1": "net"}}, {"note": "end", "ending": "to its end", "time_s": 1.0}]
    written(directory, slices, notes)
    return slices, notes


def after_power_loss(path: Path, whole: int) -> None:
    """As some file systems leave a file: it has its size, but zeros from somewhere on."""
    content = path.read_bytes()
    path.write_bytes(content[:whole] + bytes(len(content) - whole))


def test_zeros_at_the_end_leave_what_is_before_them_and_are_reported(tmp_path: Path) -> None:
    slices, _ = log_of(tmp_path, 10)
    size = (tmp_path / SLICES).stat().st_size
    record = size // len(slices)
    after_power_loss(tmp_path / SLICES, 22 * record + 5)
    reader = EventLogReader(tmp_path)
    assert list(reader.slices()) == slices[:22]
    assert reader.damage == {SLICES: (SLICES, 22 * record, size - 22 * record)}
    assert list(reader.slices()) == []
    log = read_event_log(tmp_path)
    assert [(one.at_byte, one.lost_bytes) for one in log.damage.values()] == [(22 * record, size - 22 * record)]
    ((entry, _),) = script_cases(log, "net", "net.py", 0, None)
    assert entry.passes.timing.num_iterations == 5
    assert entry.passes.timing.blind_spots[0].startswith(
        "the event log was damaged: slices.bin is damaged from byte 946 on: its last 774 bytes (45%) are lost")


@pytest.mark.parametrize("kept", [0, 30, 10**6])
def test_zeros_in_the_notes_leave_the_lines_before_them(tmp_path: Path, kept: int) -> None:
    _, notes = log_of(tmp_path, 4)
    lines = (tmp_path / NOTES).read_bytes().splitlines(keepends=True)
    first = min(len(lines[0]) + kept, sum(map(len, lines)) - 1)
    after_power_loss(tmp_path / NOTES, first)
    reader = EventLogReader(tmp_path)
    found = reader.notes()
    assert found == notes[:len(found)]
    assert len(found) == (1 if kept < 100 else 2)
    damage = reader.damage[NOTES]
    assert damage.at_byte == sum(map(len, lines[:len(found)]))
    assert damage.at_byte + damage.lost_bytes == (tmp_path / NOTES).stat().st_size
    assert NOTES in read_event_log(tmp_path).damage


def test_a_time_that_runs_back_takes_the_slice_before_it_along(tmp_path: Path) -> None:
    slices, _ = log_of(tmp_path, 10)
    written(tmp_path, [*slices[:7], replace(slices[7], end_ns=2**60), *slices[8:]], [])
    log = read_event_log(tmp_path)
    assert [one.at_byte for one in log.damage.values()] == [(tmp_path / SLICES).stat().st_size * 7 // len(slices)]
    assert max(one.end_ns for one in log.iterations) <= slices[6].end_ns


@pytest.mark.parametrize("line", [
    b"", b"5", b"{}", b"[" * 100_000, b"\xff", b'{"note": 5}', b'{"note": "end"}', b'{"note": "owner", "owner": 1}',
    b'{"note": "names", "names": {"net": "net"}}', b'{"note": "frames", "places": [], "samples": [[1]]}',
    b'{"note": "pass", "pass": "memory", "status": "ok", "reason": null, "windows": [], "tables": {"no": [{}]}}',
])
def test_a_line_that_is_no_note_ends_the_notes(tmp_path: Path, line: bytes) -> None:
    log_of(tmp_path, 4)
    content = (tmp_path / NOTES).read_bytes().splitlines(keepends=True)
    (tmp_path / NOTES).write_bytes(content[0] + line + b"\n" + content[2])
    reader = EventLogReader(tmp_path)
    assert reader.notes() == [MODEL]
    assert reader.damage[NOTES].at_byte == len(content[0])


def test_names_that_are_no_utf8_are_written_and_read(tmp_path: Path) -> None:
    written(tmp_path, [], [{"note": "end", "ending": "OSError: 'a\udc80'", "time_s": 1.0}])
    assert EventLogReader(tmp_path).notes()[0]["ending"] == "OSError: 'a?'"


def test_a_file_larger_than_a_program_writes_is_refused(tmp_path: Path) -> None:
    log_of(tmp_path, 4)
    os.truncate(tmp_path / SLICES, 2**31)
    with pytest.raises(UserError, match=r"slices.bin unpacks to 2.0 GiB, the limit is 1.0 GiB"):
        read_event_log(tmp_path)
