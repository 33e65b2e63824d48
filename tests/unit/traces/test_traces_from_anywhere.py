"""Traces that are valid and odd, or hostile: what is odd is tolerated, what is impossible is dropped and named."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.traces import TraceMaker, training

from charact.core import bounded_reading
from charact.core.errors import UserError
from charact.core.timeline import Interval, Iteration
from charact.core.trace_marks import PHASE_PREFIX
from charact.record.manifest import CaseEntry
from charact.traces import event_filter, json_stream
from charact.traces.cases import trace_case
from charact.traces.events import Mark, Operator, TraceEvents
from charact.traces.json_stream import mended
from charact.traces.outline import outline
from charact.traces.phases import find_phases, within
from charact.traces.reader import MAX_UNPACKED_BYTES, read_trace

_REPLACED = re.compile("[\ud800-\udfff]")
Case = tuple[CaseEntry, dict[str, pd.DataFrame]]


def case_of(made: TraceMaker | str, tmp_path: Path) -> Case:
    path = tmp_path / "made.json"
    path.write_text(made if isinstance(made, str) else made.text(), encoding="utf-8")
    entry, tables = trace_case(read_trace(path), "made")
    return entry, {name: pd.DataFrame(rows) for name, rows in tables.items()}


def dropped(case: Case) -> list[tuple[str, int, str]]:
    return [(one.what, one.num_dropped, one.reason) for facts in case[0].passes.values() for one in facts.dropped]


def changed(made: TraceMaker, **arguments: Any) -> TraceMaker:
    """The trace whose first kernel has other arguments; None removes one."""
    kernel = next(event for event in made.events if event["cat"] == "kernel")
    kernel["args"] = {name: value for name, value in {**kernel["args"], **arguments}.items() if value is not None}
    return made


class TestKernels:
    def test_without_correlation_they_count_as_launched_when_they_start(self, tmp_path: Path) -> None:
        made = training(2)
        for event in made.events:
            if event["cat"] == "kernel":
                event["args"] = {"device": 0, "stream": event["args"]["stream"]}
        case = case_of(made, tmp_path)
        assert case[1]["iterations"]["device_s"].sum() == pytest.approx(2e-3)
        assert len(case[1]["kernels"]) > 0
        assert case[1]["kernels"]["operator"].isna().all()
        assert case[0].passes.timing.attributed_frac > 0
        assert dropped(case) == [("kernels", 3, "launched outside of all iterations")]  # they start after the second
        made = training(2)
        made.events = [event for event in made.events if event["cat"] == "kernel"]
        case = case_of(made, tmp_path)
        assert case[1]["kernels"]["num_calls"].sum() == 10
        assert case[1]["iterations"]["device_s"].sum() == pytest.approx(2400e-6)
        assert dropped(case) == []
        made = training(1)
        expected = case_of(made, tmp_path)[1]["iterations"]
        made.event("kernel", "unlinked", 100_000, 10, 33, device=0, stream=33, correlation=99_999)
        assert case_of(made, tmp_path)[1]["iterations"].equals(expected)
        made = training(2)
        expected = case_of(made, tmp_path)[1]["iterations"]
        for event in made.events:
            event["ts"] -= 1e6
        assert case_of(made, tmp_path)[1]["iterations"].equals(expected)

    def test_outside_of_all_steps_they_are_dropped_and_counted(self, tmp_path: Path) -> None:
        made = training(1)
        for event in made.events:
            event["ts"] += 0 if event["name"].startswith("ProfilerStep") else 1e6
        case = case_of(made, tmp_path)
        assert case[0].passes.kernels.status == "skipped"
        assert "outside of its iterations" in case[0].passes.kernels.reason
        assert ("kernels", 5, "launched outside of all iterations") in dropped(case)
        assert ("operators", 7, "outside of all iterations") in dropped(case)
        made = TraceMaker()
        made.mark("ProfilerStep#1", 0, 1000)
        made.operator("aten::add", 10, 50)
        made.event("kernel", "earlier", 5000, 10, 7, device=0, stream=7, correlation=77)
        made.kernel("later", 6000, 6010, 10)
        case = case_of(made, tmp_path)
        assert case[1]["iterations"]["device_s"].isna().all()
        assert case[0].passes.timing.median_s == pytest.approx(1e-3)
        assert any("those of the host" in spot for spot in case[0].passes.timing.blind_spots)
        assert ("kernels", 1, "launched before the trace began") in dropped(case)

class TestBounds:
    @pytest.mark.parametrize(("argument", "column", "kept", "impossible"), [
        ("est. achieved occupancy %", "occupancy_frac", [(0.5, 0.005), (100, 1.0)], [100.5, -1, 21_474_836, 1e300]),
        ("registers per thread", "registers", [(255, 255), (0, 0)], [-1, 2000, 10**30]),
        ("shared memory", "shared_memory_bytes", [(232_448, 232_448)], [-1, 1 << 30, 10**40]),
        ("grid", "grid", [([2**31 - 1, 65535, 65535], "[2147483647,65535,65535]"), ([4], "[4]")],
         [[-1, 1, 1], [1.5, 1, 1], [1, 1, 1, 1], ["1"], {"x": 1}, "4x1x1", [10**30, 1, 1]]),
        ("block", "block", [([1024, 1, 1], "[1024,1,1]")], [[10_000, 1, 1], [[1]], 7]),
    ])
    def test_what_no_device_can_have_is_dropped_and_counted(
            self, tmp_path: Path, argument: str, column: str, kept: list[Any], impossible: list[Any]) -> None:
        for value, expected in [*kept, *((value, None) for value in impossible)]:
            case = case_of(changed(training(1), **{argument: value}), tmp_path)
            found = case[1]["kernels"].set_index("kernel").loc["gemm", column]
            assert found == expected if expected is not None else pd.isna(found)
            assert [number for _, number, _ in dropped(case)] == ([1] if expected is None else [])

    @pytest.mark.parametrize("shapes", ["[[1e999]]", "[[8, -1]]", "[[8.5]]", '[["8"]]', "[[1" + "0" * 400 + "]]",
                                        "[[" + "1" * 5000 + "]]"])
    def test_sizes_that_no_tensor_has_are_dropped_and_counted(self, tmp_path: Path, shapes: str) -> None:
        text = training(1).text()
        odd = text.replace("[[8, 4], [4], [], [[2, 2], [3]]]", shapes)
        assert odd != text
        case = case_of(odd, tmp_path)
        assert set(case[1]["operators"]["input_shapes"]) == {"[]"}
        assert dropped(case) == [("input shapes", 1, "values that no device can have")]

    @pytest.mark.parametrize("amount", [-1, 1 << 60])
    def test_impossible_memory_is_dropped_and_counted(self, tmp_path: Path, amount: int) -> None:
        made = training(1)
        made.events.append({"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 100, "ts": 50,
                            "args": {"Total Allocated": amount, "Device Type": 1}})
        case = case_of(made, tmp_path)
        assert case[1]["memory"].empty
        assert [what for what, _, _ in dropped(case)] == ["amounts of allocated memory"]

    def test_more_devices_than_any_machine_has_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="describes 2,000 devices"):
            case_of(training(1, deviceProperties=[{"id": number} for number in range(2000)]), tmp_path)

    @pytest.mark.parametrize(("version", "expected"), [
        (12080, {"cuda_runtime_version": 12080}), ("12\ud800.8", {"cuda_runtime_version": "12\ufffd.8"}),
        (10**30, {}), (-1, {}), (1.5, {}), ([], {}),
    ])
    def test_a_version_is_a_short_text_or_a_number(self, tmp_path: Path, version: Any, expected: Any) -> None:
        path = training(1, cuda_runtime_version=version).write(tmp_path / "a.json")
        assert read_trace(path).versions == expected


class TestText:
    def test_lone_surrogates_and_control_characters_are_replaced_and_pairs_are_not(self, tmp_path: Path) -> None:
        made = training(1, deviceProperties=[{"id": 0, "name": "H\ud800\x1b[31m"}])
        made.operator("aten::\ud800\U0001d54f\udfff", 130, 5)
        made.kernel("\udc00k\x07", 135, 5000, 5)
        made.module("\ud83d_0", 125, 20)
        entry, tables = case_of(made, tmp_path)
        assert entry.device_name == "H\ufffd␛[31m"
        assert "aten::\ufffd\U0001d54f\ufffd" in set(tables["operators"]["operator"])
        assert "\ufffdk␇" in set(tables["kernels"]["kernel"])
        assert "\ufffd_0" in set(tables["layers"]["layer"])
        for rows in tables.values():
            rows.to_csv().encode()

    @given(st.recursive(st.none() | st.integers() | st.floats() | st.text(st.characters(codec="utf-8")) | st.text(
        st.sampled_from("\ud800\udfff\\u\"a😀"), max_size=6),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)))
    def test_mending_changes_nothing_but_what_is_odd(self, value: Any) -> None:
        text = json.dumps(value)
        # Two halves next to each other are a pair to every reader of JSON.
        expected = json.loads(text, parse_constant=lambda _: None)
        found = json.loads(mended(text.encode()))
        assert found == json.loads(_REPLACED.sub("\ufffd", json.dumps(expected, ensure_ascii=False)))

    @pytest.mark.parametrize(("odd", "fixed"), [
        (b"1e999", b"null"), (b"-1E+0400", b"null"), (b"1e308", b"1e308"), (b"1e-999", b"1e-999"),
        (b"9" * 400, b"null"), (b"9" * 300, b"9" * 300), (b'"1e999"', b'"1e999"'),
        (b"[1e999,-inf, 1.5]", b"[null,null, 1.5]"),
        (rb'"\ud800"', rb'"\ufffd"'), (rb'"\\ud800"', rb'"\\ud800"'), (rb'"\ud83d\ude00"', rb'"\ud83d\ude00"'),
        (rb'"\ud800\ud83d\ude00"', rb'"\ufffd\ud83d\ude00"'),
    ])
    def test_mended(self, odd: bytes, fixed: bytes) -> None:
        assert mended(odd) == fixed


class TestLimits:
    def test_a_packed_trace_is_read_up_to_the_limit(self, tmp_path: Path) -> None:
        text = training(1).text().encode() + b" " * 3_000_000
        path = tmp_path / "a.json.gz"
        path.write_bytes(gzip.compress(text))
        with bounded_reading.limited_to(len(text)):
            read_trace(path)
        with bounded_reading.limited_to(len(text) - 1), pytest.raises(UserError, match="CHARACT_MAX_BYTES"):
            read_trace(path)
        packed = path.read_bytes()
        path.write_bytes(packed[:-4] + b"\1\0\0\0")  # it declares less than it holds
        with bounded_reading.limited_to(len(text) - 1), pytest.raises(UserError, match="unpacks to more than"):
            read_trace(path)
        assert MAX_UNPACKED_BYTES == 4 << 30
        path = training(1).write(tmp_path / "a.json")
        with bounded_reading.limited_to(10):
            read_trace(path)

    @pytest.mark.parametrize("junk", ["{}", '{"cat": "x"}', '{"name": "x"}', '{"cat": "cpu_op", "name": "x"}'])
    def test_events_that_are_mostly_empty_are_refused_early(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                            junk: str) -> None:
        monkeypatch.setattr(event_filter, "MAX_EMPTY_EVENTS", 1000)
        text = training(1).text()
        few = text.replace('"traceEvents": [', '"traceEvents": [' + f"{junk}, " * 900)
        case_of(few, tmp_path)
        many = text.replace('"traceEvents": [', '"traceEvents": [' + f"{junk}, " * 1100)
        with pytest.raises(UserError, match="have no name or no time"):
            case_of(many, tmp_path)

    def test_more_empty_events_than_sound_ones_and_values_outside(self, tmp_path: Path,
                                                                  monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(event_filter, "MAX_EMPTY_EVENTS", 10)
        made = training(1)
        made.events[:0] = [{}] * 11
        case_of(made, tmp_path)
        monkeypatch.setattr(json_stream, "MOST_VALUES", 20)
        with pytest.raises(UserError, match="of metadata"):
            case_of(training(1, **{f"a{number}": 1 for number in range(30)}), tmp_path)

    def test_names_of_processes_and_threads_are_kept_once_and_count_as_text(
            self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        made = TraceMaker()
        for number in range(100):
            made.event("cpu_op", "aten::add", number, 0.5)["pid"] = "p" * 5000
        kept = read_trace(made.write(tmp_path / "a.json")).events
        assert len({id(operator.thread) for operator in kept.operators}) == 1
        for number, event in enumerate(made.events):
            event["pid"] += str(number)
        monkeypatch.setattr(event_filter, "_MAX_TEXT_BYTES", 1 << 20)
        with pytest.raises(UserError, match="MB of names"):
            read_trace(made.write(tmp_path / "a.json"))

    def test_it_says_how_far_it_is(self, tmp_path: Path) -> None:
        path = training(3).write(tmp_path / "a.json.gz")
        told: list[tuple[int, int]] = []
        read_trace(path, lambda *moment: told.append(moment))
        assert told[-1] == (path.stat().st_size,) * 2


class TestWork:
    """The number of steps grows with the trace and no faster; counted in objects, not in seconds."""

    def test_marked_iterations_do_not_look_at_all_marks_each(self, tmp_path: Path,
                                                             monkeypatch: pytest.MonkeyPatch) -> None:
        looked_at = []
        real = within

        def counted(spans: Any, *moments: int) -> list[Interval]:
            spans = list(spans)
            looked_at.append(len(spans))
            return real(spans, *moments)

        monkeypatch.setattr("charact.traces.phases.within", counted)
        made = TraceMaker()
        for number in range(200):
            made.mark(f"ProfilerStep#{number}", 100 * number, 90)
            made.mark(f"{PHASE_PREFIX}forward", 100 * number + 10, 50)
        made.operator("aten::add", 10, 5)
        case_of(made, tmp_path)
        assert sum(looked_at) < 3 * 200

    @given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), max_size=12),
           st.lists(st.integers(0, 90), min_size=2, max_size=6, unique=True))
    def test_phases_of_an_iteration_are_those_of_all_marks_cut_to_it(self, marks: list[tuple[int, int]],
                                                                     edges: list[int]) -> None:
        kept = TraceEvents(
            marks=[Mark((1, 1), start, start + length, f"{PHASE_PREFIX}{'data' if start % 2 else 'loss'}")
                   for start, length in marks],
            operators=[Operator((1, 1), 0, 1, "aten::add", None, "[]")])
        edges.sort()
        iterations = [Iteration(start, end) for start, end in zip(edges[::2], edges[1::2], strict=False)]
        if marks:
            for iteration in find_phases(kept, outline(kept), iterations):
                for moment in range(iteration.start_ns, iteration.end_ns):
                    owners = sorted((mark.start_ns, -mark.end_ns, mark.name) for mark in kept.marks
                                    if mark.start_ns <= moment < mark.end_ns)
                    inside = [span.phase for span in iteration.intervals if span.start_ns <= moment < span.end_ns]
                    assert inside == [name.removeprefix(PHASE_PREFIX) for _, _, name in owners[:1]]
