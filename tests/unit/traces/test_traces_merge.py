"""One trace of several: rows, threads, links and the time axis."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from support.traces import ENGINE, MAIN, TraceMaker, training

from charact.core.errors import UserError
from charact.traces.merge import Row, merge_traces
from charact.traces.reader import read_trace


def merged(path: Path, *traces: TraceMaker, name: str = "all.json") -> list[dict[str, Any]]:
    rows = [Row(f"rank {number}", made.write(path / f"{number}.json.gz")) for number, made in enumerate(traces)]
    merge_traces(rows, path / name)
    content = (path / name).read_bytes()
    found: list[dict[str, Any]] = json.loads(gzip.decompress(content) if name.endswith(".gz") else content)[
        "traceEvents"]
    return found


def spans(events: list[dict[str, Any]], row: int) -> list[dict[str, Any]]:
    return [event for event in events if event["pid"] == row and event["ph"] == "X"]


def names(events: list[dict[str, Any]], kind: str) -> list[tuple[int, str]]:
    return [(event["pid"], event["args"]["name"]) for event in events if event["name"] == kind]


def test_every_trace_is_one_process_with_all_of_its_events(tmp_path: Path) -> None:
    first, second = training(1), training(2)
    events = merged(tmp_path, first, second)
    assert names(events, "process_name") == [(0, "rank 0"), (1, "rank 1")]
    for row, made in enumerate((first, second)):
        assert [event["name"] for event in spans(events, row)] == [event["name"] for event in made.events]
        assert [event["args"] for event in spans(events, row)] == [event["args"] for event in made.events]
    merged(tmp_path, training(1), training(1), name="all.json.gz")
    one, both = (read_trace(tmp_path / name).events for name in ("0.json.gz", "all.json.gz"))
    assert len(both.operators) == 2 * len(one.operators)
    assert len(both.device) == 2 * len(one.device)


def test_threads_and_streams_stay_apart(tmp_path: Path) -> None:
    made = training(1)
    made.events += [
        {"ph": "M", "name": "process_labels", "pid": 1, "tid": 0, "args": {"labels": "CPU"}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": MAIN, "args": {"name": "main"}},
    ]
    events = merged(tmp_path, made)
    threads = {(event["name"], event["tid"]) for event in made.events if event["ph"] == "X"}
    places = {(event["name"], event["tid"]) for event in spans(events, 0)}
    assert len({tid for _, tid in threads}) == len({tid for _, tid in places}) == 4  # two threads, two streams
    assert {(0, "CPU: main"), (0, f"CPU: 1 {ENGINE}")} <= set(names(events, "thread_name"))


def test_the_clock_of_the_day_places_the_rows(tmp_path: Path) -> None:
    early, late = (TraceMaker(baseTimeNanoseconds=1_700_000_000_000_000_000 + later) for later in (0, 3_000_500))
    early.operator("aten::mm", 5000, 10)
    late.operator("aten::mm", 7000.25, 10)
    events = merged(tmp_path, early, late)
    assert [spans(events, row)[0]["ts"] for row in (0, 1)] == [0, 5000.75]  # 3,000.5 + 7,000.25 - 5,000 µs
    assert [spans(merged(tmp_path, late, early), row)[0]["ts"] for row in (0, 1)] == [5000.75, 0]
    late.operator("aten::mm", 1000, 10)  # now it begins 999.5 µs before the other
    assert [[span["ts"] for span in spans(merged(tmp_path, early, late), row)] for row in (0, 1)] == [
        [999.5], [6000.25, 0]]


def test_links_of_two_traces_do_not_meet(tmp_path: Path) -> None:
    made = TraceMaker()
    made.operator("aten::mm", 0, 10)
    made.events += [{"ph": phase, "id": 7, "cat": "ac2g", "name": "ac2g", "pid": 1, "tid": MAIN, "ts": 1}
                    for phase in ("s", "f")]
    links = [event["id"] for event in merged(tmp_path, made, made) if "id" in event]
    assert links == ["0.7", "0.7", "1.7", "1.7"]


@pytest.mark.parametrize("odd", [
    {"pid": [1], "tid": 2, "ts": 1}, {"pid": 1, "tid": {}, "ts": 1}, {"pid": 1, "tid": 2, "ts": "soon"},
    {"pid": 1, "tid": 2}, {"pid": 1, "tid": 2, "ts": 1e300}])
def test_events_without_a_place_or_time_are_left_out(tmp_path: Path, odd: dict[str, Any]) -> None:
    made = TraceMaker()
    made.operator("aten::mm", 0, 10)
    made.events.append({"ph": "X", "name": "odd", "dur": 1, **odd})
    assert [event["name"] for event in spans(merged(tmp_path, made), 0)] == ["aten::mm"]


def test_a_damaged_trace_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text('{"traceEvents": [{"ph": "X"')
    with pytest.raises(UserError, match=r"bad\.json"):
        merge_traces([Row("rank 0", tmp_path / "bad.json")], tmp_path / "all.json")
    assert [path.name for path in tmp_path.iterdir()] == ["bad.json"]
