"""Which events of a trace are stored, under what, and where values become impossible."""

import json
from typing import Any

import msgspec
import pytest

from charact.core.errors import UserError
from charact.traces import event_filter
from charact.traces.event_filter import EventFilter
from charact.traces.events import Event, Exchange, TraceEvents

FIELDS = ("operators", "marks", "modules", "forwards", "backwards", "device", "launches", "allocated")
SPAN = {"cat": "cpu_op", "name": "aten::mm", "ts": 1.0, "dur": 2.0}


def stored(*events: dict[str, Any]) -> TraceEvents:
    found = EventFilter()
    found.add(msgspec.json.decode(json.dumps(events), type=list[Event]))
    return found.events


def filled(events: TraceEvents) -> list[str]:
    return [name for name in FIELDS if getattr(events, name)]


@pytest.mark.parametrize(("category", "name", "where"), [
    ("cpu_op", "aten::mm", "operators"), ("Operator", "aten::mm", "operators"), ("cpu_op", "ProfilerStep#1", "marks"),
    ("cpu_op", "Optimizer.step#SGD.step", "marks"), ("user_annotation", "mine", None),
    ("user_annotation", "gloo:all_reduce", "operators"), ("user_annotation", "my gloo:x", None),
    ("user_annotation", "enumerate(DataLoader)#x", "marks"), ("user_annotation", "charact.phase:loss", "marks"),
    ("python_function", "nn.Module: Linear_0", "modules"), ("python_function", "Linear_0", None),
    ("python_function", "torch/_tensor.py(5): backward", "backwards"),
    ("python_function", "torch/autograd/__init__.py(5): backward", "backwards"),
    ("python_function", "mine.py(5): backward", None), ("kernel", "k", "device"), ("Memset", "k", "device"),
    ("cuda_runtime", "cudaLaunchKernel", None), ("gpu_memcpy", "k", "device"), ("ac2g", "k", None)])
def test_events_by_category_and_name(category: str, name: str, where: str | None) -> None:
    found = stored(SPAN | {"cat": category, "name": name})
    assert filled(found) == ([where] if where else [])
    if where in ("operators", "marks", "modules", "backwards", "device"):
        (one,) = getattr(found, where)
        assert (one.start_ns, one.end_ns, one.name) == (1000, 3000, name.removeprefix("nn.Module: "))


@pytest.mark.parametrize(("changes", "sound"), [
    ({}, True), ({"dur": 0}, True), ({"dur": -0.001}, False), ({"dur": None}, False), ({"dur": 3.2e13}, False),
    ({"dur": 3.1e13}, True), ({"ts": None}, False), ({"ts": 1e16}, False), ({"ts": -1e16}, False), ({"ts": 9e15}, True),
    ({"ts": -9e15}, True), ({"name": "[memory]", "dur": None}, True), ({"name": "[memory]", "dur": -1}, False)])
def test_times_that_are_impossible_are_dropped_and_counted(changes: dict[str, Any], sound: bool) -> None:
    found = stored(SPAN | changes)
    assert filled(found) == (["operators"] if sound else [])
    assert [(each.what, number) for each, number in found.dropped.items()] == ([] if sound else [("events", 1)])


@pytest.mark.parametrize(("allocated", "device_type", "name", "sound", "num_dropped"), [
    (0, 1, "[memory]", True, 0), (1 << 50, 0, "[memory]", True, 0), ((1 << 50) + 1, 0, "[memory]", False, 1),
    (-1, 1, "[memory]", False, 1), (5, None, "[memory]", False, 0), (None, 1, "[memory]", False, 0),
    (5, 1, "[other]", False, 0)])
def test_amounts_of_memory(allocated: int | None, device_type: int | None, name: str, sound: bool,
                           num_dropped: int) -> None:
    found = stored({"cat": "cpu_instant_event", "name": name, "ts": 1, "dur": 0,
                    "args": {"Total Allocated": allocated, "Device Type": device_type}})
    assert [(each.time_ns, each.num_bytes, each.device_type) for each in found.allocated] == (
        [(1000, allocated, device_type)] if sound else [])
    assert found.dropped.total() == num_dropped


@pytest.mark.parametrize(("types", "shapes", "dtype", "texts"), [
    (["float"], [[2]], "float32", "[[2]]"), (["double", "float"], [[], [2]], "float32", "[[2]]"),
    (["long int", "c10::Half"], [[3], [2]], "float16", "[[3],[2]]"), (["int"], [[2]], None, "[[2]]"),
    (["c10::BFloat16"], [[]], None, "[]"), ([3, "double"], [[1], [2]], "float64", "[[1],[2]]"),
    ("float", [[2]], None, "[[2]]"), (["float"], {}, None, "[]"), (["float"], None, None, "[]"),
    (None, [[2]], None, "[[2]]"), (["float"], [[[2], [3]]], "float32", '["2_tensors"]'),
    (["float"], [[-1]], "float32", "[]"), (["float"], [[2**63 - 1]], "float32", f"[[{2**63 - 1}]]"),
    (["float"], [[2**63]], "float32", "[]"), (["float"], [[True]], "float32", "[]"),
    (["int"], [5, "x", [2]], None, "[[2]]")])
def test_shapes_and_types_of_inputs(types: Any, shapes: Any, dtype: str | None, texts: str) -> None:
    named = {"Input type": types, "Input Dims": shapes}
    found = stored(SPAN | {"args": {key: value for key, value in named.items() if value is not None}})
    assert (found.operators[0].dtype, found.operators[0].shapes) == (dtype, texts)
    assert found.dropped.total() == (texts == "[]" and shapes not in ([[]], {}, None))


@pytest.mark.parametrize(("changes", "expected"), [
    ({}, Exchange("all_reduce", "7", 2, 400, 9)), ({"Process Group Description": "default_pg"},
                                                   Exchange("all_reduce", "default", 2, 400, 9)),
    ({"Process Group Description": "tp"}, Exchange("all_reduce", "tp", 2, 400, 9)),
    ({"Process Group Description": "undefined"}, Exchange("all_reduce", "7", 2, 400, 9)),
    ({"Process Group Name": 7}, Exchange("all_reduce", None, 2, 400, 9)),
    ({"In msg nelems": -1}, Exchange("all_reduce", "7", 2, 200, 9)),
    ({"In msg nelems": True, "Out msg nelems": None}, Exchange("all_reduce", "7", 2, None, 9)),
    ({"In msg nelems": 2**49 - 1}, Exchange("all_reduce", "7", 2, 4 * (2**49 - 1), 9)),
    ({"In msg nelems": 2**49}, Exchange("all_reduce", "7", 2, None, 9)),
    ({"In msg nelems": 0, "Out msg nelems": 0}, Exchange("all_reduce", "7", 2, 0, 9)),
    ({"dtype": "Odd"}, Exchange("all_reduce", "7", 2, None, 9)),
    ({"dtype": 4}, Exchange("all_reduce", "7", 2, None, 9)),
    ({"Group size": 0}, Exchange("all_reduce", "7", None, 400, 9)),
    ({"Group size": 1}, Exchange("all_reduce", "7", 1, 400, 9)),
    ({"Group size": 2**24}, Exchange("all_reduce", "7", None, 400, 9)),
    ({"Group size": 2.0}, Exchange("all_reduce", "7", None, 400, 9)),
    ({"Seq": -1}, Exchange("all_reduce", "7", 2, 400, None)), ({"Seq": "9"}, Exchange("all_reduce", "7", 2, 400, None)),
    ({"Seq": 2**49}, Exchange("all_reduce", "7", 2, 400, None)), ({"Collective name": "wait"}, None),
    ({"Collective name": 5}, None), ({"Collective name": "_allgather_base"}, Exchange("all_gather", "7", 2, 400, 9)),
])  # fmt: skip
def test_what_a_collective_exchanges(changes: dict[str, Any], expected: Exchange | None) -> None:
    args = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 100, "Out msg nelems": 50,
            "Group size": 2, "Process Group Name": "7", "Seq": 9} | changes
    found = stored(SPAN | {"args": args | {"External id": 3}}, SPAN | {"cat": "kernel", "args": args})
    assert found.exchanges == ({} if expected is None else {3: expected})
    assert found.device[0].exchange == expected
    assert stored(SPAN | {"args": args}).exchanges == {}


@pytest.mark.parametrize(("args", "geometry", "num_dropped"), [
    ({"est. achieved occupancy %": 0}, None, 0), ({"est. achieved occupancy %": 0, "warps per SM": 0.5}, 0.0, 0),
    ({"est. achieved occupancy %": 0, "warps per SM": 0.51}, None, 0), ({"est. achieved occupancy %": 100}, 1.0, 0),
    ({"est. achieved occupancy %": 100.1}, None, 1), ({"est. achieved occupancy %": -1}, None, 1), ({}, None, 0)])
def test_occupancies(args: dict[str, Any], geometry: float | None, num_dropped: int) -> None:
    found = stored({"cat": "kernel", "name": "k", "ts": 1, "dur": 1, "pid": 5, "tid": "x", "args": args})
    assert (found.device[0].geometry[4], found.dropped.total()) == (geometry, num_dropped)
    assert (found.device[0].device, found.device[0].stream, found.device[0].kind) == ("5", "x", "kernel")


@pytest.mark.parametrize(("args", "launch", "sequence"), [
    ({"correlation": 4, "External id": 5, "external id": 6}, 5, None), ({"correlation": 4, "external id": 6}, 6, None),
    ({"correlation": 0}, None, None), ({"Sequence number": 0}, None, 0), ({"Sequence number": -1}, None, None)])
def test_links_between_events(args: dict[str, Any], launch: int | None, sequence: int | None) -> None:
    found = stored(SPAN | {"args": args}, SPAN | {"cat": "cuda_driver", "args": args})
    assert [(number, each.start_ns, each.external_id) for number, each in found.launches.items()] == (
        [(args["correlation"], 1000, launch)] if "correlation" in args else [])
    assert list(found.by_id) == ([] if launch is None else [launch])
    assert found.operators[0].sequence == sequence


def test_limits_of_stored_and_of_empty_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_filter, "MAX_STORED_EVENTS", 6)
    monkeypatch.setattr(event_filter, "MAX_EMPTY_EVENTS", 2)
    kinds: list[dict[str, Any]] = [
        {}, {"cat": "kernel"}, {"cat": "cuda_runtime", "args": {"correlation": 1}}, {"name": "ProfilerStep#1"},
        {"cat": "cpu_instant_event", "name": "[memory]", "args": {"Total Allocated": 1, "Device Type": 1}},
        {"cat": "python_function", "name": "nn.Module: N"}]
    assert len(filled(stored(*(SPAN | kind for kind in kinds)))) == 6
    for kind in kinds:
        with pytest.raises(UserError, match="the trace has more than 6 events"):
            stored(*(SPAN | each for each in kinds), SPAN | kind)
    for empty in ({"ts": None}, {"cat": "x", "ts": None}, {"cat": "x", "name": ""}):
        stored(*[SPAN | empty] * 2)
        stored(*[SPAN | empty] * 3, *[SPAN] * 3)  # half of all
        with pytest.raises(UserError, match=r"^3 of the trace’s first 5 events have no name or no time"):
            stored(*[SPAN | empty] * 3, *[SPAN] * 2)
    with pytest.raises(UserError, match="have no name or no time"):
        stored(*[SPAN | {"name": "", "cat": "python_function"}] * 3)
    stored(*[SPAN | {"cat": "x"}] * 9)
    monkeypatch.setattr(event_filter, "_MAX_TEXT_BYTES", 1000)
    stored(SPAN | {"name": "n" * 30})
    with pytest.raises(UserError, match="of names to keep"):
        stored(SPAN | {"name": "n" * 130})
