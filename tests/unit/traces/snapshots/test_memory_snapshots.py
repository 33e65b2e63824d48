"""Memory snapshots: reading of any layout, the replay against one by hand, and what is not plausible."""

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.snapshots import KIB, MIB, TRAIN, Allocator, curve_by_hand, frames, snapshot, training, write

from charact.core.errors import UserError
from charact.record.manifest_passes import SnapshotPass
from charact.record.schema import Rows
from charact.traces import json_stream
from charact.traces.snapshots.allocator_replay import BEFORE, START, Replay, replay
from charact.traces.snapshots.memory_snapshots import Device, is_snapshot, read_snapshot, site_of
from charact.traces.snapshots.snapshot_cases import snapshot_cases

OPERATIONS = st.lists(st.tuples(st.sampled_from(["alloc", "free", "wait", "segment", "release", "oom"]),
                                st.integers(0, 7), st.integers(1, 3 * KIB)), max_size=40)


def only(path: Path, index: int = 0) -> tuple[Device, Replay]:
    device = read_snapshot(path).devices[index]
    return device, replay(device)


def facts_of(path: Path) -> tuple[SnapshotPass, Rows]:
    ((entry, tables),) = snapshot_cases(read_snapshot(path), "job")
    return entry.passes.snapshot, tables["memory"]


def made_by(operations: list[tuple[str, int, int]]) -> Allocator:
    """Return an allocator after these operations, without those that are not possible when their turn comes."""
    made = Allocator()
    for operation, place, size in operations:
        start = 0x100000 * (1 + place)
        address = start + 4 * KIB * (size % 4)
        if operation == "segment" and start not in made.segments:
            made.segment(start, 16 * KIB)
        elif operation == "alloc" and start in made.segments and address not in {**made.blocks, **made.awaiting}:
            made.alloc(address, size, ("/job/train.py", size % 3, "step"))
        elif operation in ("free", "wait") and address in made.blocks:
            made.free(address, completes=operation == "free")
        elif operation == "release" and start in made.segments and not any(
                start <= held < start + 16 * KIB for held in {**made.blocks, **made.awaiting}):
            made.release(start)
        elif operation == "oom":
            made.out_of_memory(size * MIB, 0)
    return made


@given(OPERATIONS, st.integers(0, 40), st.sampled_from([17, 100, 1 << 20]), st.sampled_from([None, 1]), st.booleans())
@settings(deadline=None)
def test_the_replay_is_that_by_hand_also_of_a_history_that_lost_its_beginning(
        tmp_path_factory: pytest.TempPathFactory, operations: list[tuple[str, int, int]], num_lost: int,
        piece_bytes: int, indent: int | None, sort_keys: bool) -> None:
    made = made_by(operations)
    whole, made.events = made.events, made.events[num_lost:]
    if not made.events:
        return
    content = snapshot(made)
    path = tmp_path_factory.mktemp("made") / "snapshot.json"
    path.write_text(json.dumps(content, indent=indent, sort_keys=sort_keys))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_stream, "PIECE_BYTES", piece_bytes)
        _, found = only(path)
    events = [event for event in made.events if event["action"] != "snapshot"]
    truth = curve_by_hand(events, content["segments"])
    assert [(moment.allocated_bytes, moment.reserved_bytes) for moment in found.curve] == truth
    assert truth == curve_by_hand(whole, content["segments"])[num_lost:]
    assert found.peak.allocated_bytes == max(held for held, _ in truth)
    assert truth.index((found.peak.allocated_bytes, found.peak.reserved_bytes or 0)) == found.peak.position - START
    assert found.reserved_peak is not None
    assert found.reserved_peak.reserved_bytes == max(reserved for _, reserved in truth)
    for position, held in found.holders.items():
        assert sum(each.num_bytes for each in held) == truth[position - START][0]
    lost_allocs = {event["addr"] for event in whole[:num_lost] if event["action"] == "alloc"}
    assert found.before.num_bytes == truth[0][0]
    assert bool(found.before.num_blocks) == bool(truth[0][0])
    assert found.num_frees_of_unknown <= len(lost_allocs)
    assert found.num_frees_not_seen == 0


def test_peak_holders_and_state_of_a_training(tmp_path: Path) -> None:
    made = training()
    facts, rows = facts_of(write(tmp_path / "snapshot.json.gz", snapshot(made)))
    assert (facts.peak_event, facts.num_events, facts.peak_s, facts.duration_s) == (4, 11, 3e-6, 1e-5)
    assert (facts.before_bytes, facts.num_before, facts.before_at_peak_bytes) == (MIB, 1, MIB)
    assert [(each.place, each.function, each.bytes, each.num_blocks) for each in facts.holders] == [
        ("/job/train.py:41", "backward", 3 * MIB, 1), ("/job/train.py:30", "step", 2 * MIB + 1000, 2),
        ("/job/model.py:5", "<module>", MIB, 1)]
    (failed,) = facts.out_of_memory
    assert (failed.requested_bytes, failed.free_bytes, failed.allocated_bytes, failed.reserved_bytes) == (
        64 * MIB, 12 * MIB, 6 * MIB + 1000, 8 * MIB)
    assert (failed.place, failed.event, len(failed.holders)) == ("/job/train.py:30", 5, 3)
    (pool,) = facts.pools
    assert (pool.reserved_bytes, pool.allocated_bytes, pool.requested_bytes, pool.num_blocks) == (
        8 * MIB, 3 * MIB, 3 * MIB, 2)
    assert (pool.awaiting_free_bytes, pool.inactive_bytes, pool.largest_inactive_bytes) == (MIB, 4 * MIB, 3 * MIB)
    timeline = [row for row in rows if row["kind"] == "timeline"]
    # The moment before the first event has the time of the first one, which holds more.
    assert [row["bytes"] for row in timeline] == [
        held for held, _ in curve_by_hand(made.events, made.state())[1:]]
    assert [row["time_s"] for row in timeline] == [number / 1e6 for number in range(11)]


def test_a_block_of_1000_bytes_is_rounded_to_1024(tmp_path: Path) -> None:
    made = training()
    made.alloc(0x1300000, 1000)
    (pool,) = facts_of(write(tmp_path / "a.json", snapshot(made)))[0].pools
    assert pool.requested_bytes is not None
    assert pool.allocated_bytes - pool.requested_bytes == 24


@pytest.mark.parametrize("outside", [{"device_traces": []}, {"device_traces": [[]]}, None])
def test_without_a_history_there_is_the_state_alone(tmp_path: Path, outside: dict[str, Any] | None) -> None:
    content = training().state() if outside is None else snapshot(training()) | outside
    ((entry, tables),) = snapshot_cases(read_snapshot(write(tmp_path / "a.json", content)), "job")
    facts = entry.passes.snapshot
    assert tables["memory"] == []
    assert entry.passes.memory.status == "skipped"
    assert facts.history_reason == ("the snapshot has no history: call torch.cuda.memory._record_memory_history() "
                                    "before the program allocates memory")
    assert [(each.place, each.bytes) for each in facts.holders] == [
        ("/job/train.py:30", 2 * MIB), ("/job/model.py:5", MIB)]


def test_a_history_without_requests_frees_at_completions(tmp_path: Path) -> None:
    made = training()
    made.events = [event for event in made.events if event["action"] != "free_requested"]
    facts, _ = facts_of(write(tmp_path / "a.json", snapshot(made)))
    assert (facts.num_frees_not_seen, facts.num_frees_of_unknown, facts.peak_event) == (1, 0, 4)
    made.events = made.events[4:]
    facts, _ = facts_of(write(tmp_path / "a.json", snapshot(made)))
    # The completions of two blocks remain, and the last one has none.
    assert (facts.num_frees_of_unknown, facts.before_bytes) == (2, 6 * MIB + 1000)


def test_frees_of_unknown_blocks_are_counted(tmp_path: Path) -> None:
    made = training()
    made.events = made.events[5:]
    facts, _ = facts_of(write(tmp_path / "a.json", snapshot(made)))
    assert (facts.num_frees_of_unknown, facts.num_before, facts.before_bytes) == (2, 4, 6 * MIB + 1000)
    assert (facts.peak_event, facts.peak_s, facts.num_before_at_peak) == (0, 0, 4)
    assert [each.reason for each in facts.holders] == ["allocated before the history", None, None]
    assert facts.holders[0].bytes == 3 * MIB + 1000


def test_a_history_that_ended_before_the_snapshot_is_not_taken_for_whole(tmp_path: Path) -> None:
    made = training()
    made.records = False
    made.free(0x1100000)
    made.blocks.clear()
    made.awaiting.clear()
    made.segments.clear()
    facts, _ = facts_of(write(tmp_path / "a.json", snapshot(made)))
    assert facts.num_frees_not_seen == 1
    assert facts.reserved_reason == ("the history allocates more than the segments hold: take the snapshot before the "
                                     "recording ends, and record all actions")
    assert facts.reserved_at_peak_bytes is None


def test_an_address_that_is_allocated_again_was_freed(tmp_path: Path) -> None:
    made = training()
    made.events = [event for event in made.events if event["addr" if "addr" in event else "size"] != 0x2000000
                   or event["action"] == "alloc"]
    _, found = only(write(tmp_path / "a.json", snapshot(made)))
    assert found.num_frees_not_seen == 2
    assert found.curve[-1].allocated_bytes == 4 * MIB


def test_a_segment_that_is_there_twice_is_held_twice(tmp_path: Path) -> None:
    content = snapshot(training())
    content["segments"].append(content["segments"][0])
    facts, _ = facts_of(write(tmp_path / "a.json", content))
    assert (facts.num_frees_not_seen, facts.num_before, facts.before_bytes) == (0, 3, 4 * MIB)
    assert facts.reserved_at_peak_bytes == 12 * MIB


def test_each_device_is_a_case(tmp_path: Path) -> None:
    one, other = training(), training()
    other.device = 3
    other.alloc(0x2000000, MIB // 2)
    cases = snapshot_cases(read_snapshot(write(tmp_path / "a_rank2.json", snapshot(one, other))), "job")
    assert [(entry.case, entry.rank, entry.passes.snapshot.device_index) for entry, _ in cases] == [
        ("job-cuda0", 2, 0), ("job-cuda3", 2, 3)]
    assert [entry.passes.snapshot.num_events for entry, _ in cases] == [11, 12]


def test_streams_and_pools_are_separate(tmp_path: Path) -> None:
    made = training()
    content = snapshot(made)
    content["segments"][1] |= {"stream": 94_000_000, "segment_pool_id": [0, 7]}
    facts, _ = facts_of(write(tmp_path / "a.json", content))
    assert [(pool.stream, pool.pool, pool.largest_inactive_bytes) for pool in facts.pools] == [
        ("default", "default", MIB), (hex(94_000_000), "0, 7", 3 * MIB)]


def test_expandable_segments_are_mapped_and_unmapped(tmp_path: Path) -> None:
    made = Allocator()
    made.segment(0x1000000, 2 * MIB, "segment_map")
    made.segment(0x1200000, 20 * MIB, "segment_map")
    made.release(0x1200000, "segment_unmap")
    _, found = only(write(tmp_path / "a.json", snapshot(made)))
    assert [moment.reserved_bytes for moment in found.curve] == [0, 2 * MIB, 22 * MIB, 2 * MIB]


@pytest.mark.parametrize(("changes", "dropped"), [
    ({"size": -1}, ("events", "with a size that is no number of bytes")),
    ({"size": 2**53 + 2}, ("events", "with a size that is no number of bytes")),
    ({"size": 0.5}, ("events", "with a size that is no number of bytes")),
    ({"size": None}, ("events", "with a size that is no number of bytes")),
    ({"size": True}, ("events", "with a size that is no number of bytes")),
    ({"size": float("nan")}, ("events", "with a size that is no number of bytes")),
    ({"addr": "heap"}, ("events", "with an address that is no number")),
    ({"addr": -5}, ("events", "with an address that is no number")),
    ({"addr": 2**64}, ("events", "with an address that is no number")),
    ({"action": "teleport"}, ("events", "with an action that is not known")),
    ({"action": [1]}, ("events", "with an action that is not known")),
    ({"time_us": float("nan")}, ("times", "that are no microseconds since 1970: that of the event before is used")),
    ({"time_us": -1}, ("times", "that are no microseconds since 1970: that of the event before is used")),
    ({"time_us": "noon"}, ("times", "that are no microseconds since 1970: that of the event before is used")),
    ({"time_us": 5}, ("times", "before that of the event before, which is used")),
])
def test_odd_values_are_counted(tmp_path: Path, changes: dict[str, Any], dropped: tuple[str, str]) -> None:
    made = training()
    made.events[3] |= changes
    device, _ = only(write(tmp_path / "a.json", snapshot(made)))
    assert dict(device.dropped) == {dropped: 1}
    assert len(device.history) == (11 if dropped[0] == "times" else 10)
    assert len(device.history.times_us) == len(device.history)


@pytest.mark.parametrize("changes", [
    {"addr": hex(0x2300000)}, {"addr": str(0x2300000)}, {"size": 1000.0}, {"size": "1000"}, {"time_us": 1.7e15 + 6.5},
    {"frames": []}, {"frames": None}, {"frames": [{}]}, {"frames": [1]}, {"frames": [{"filename": 3, "line": "x"}]}])
def test_numbers_that_are_written_otherwise_are_read(tmp_path: Path, changes: dict[str, Any]) -> None:
    made = training()
    made.events[3] |= changes
    device, found = only(write(tmp_path / "a.json", snapshot(made)))
    assert not device.dropped
    assert found.peak.allocated_bytes == 6 * MIB + 1000
    assert found.num_frees_of_unknown == 0


def test_names_that_are_no_text_are_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", snapshot(training()))
    path.write_bytes(path.read_bytes().replace(b"train.py", b"tr\xe9in.py").replace(b"backward", b"back\\ud800"))
    facts, _ = facts_of(path)
    assert (facts.holders[0].place, facts.holders[0].function) == ("/job/tr\ufffdin.py:41", "back\ufffd")


def test_markers_of_the_program_are_no_events(tmp_path: Path) -> None:
    made = training()
    made.add("user_defined", 0, addr=0)
    made.add("snapshot", 4 * MIB, addr=0)
    device, found = only(write(tmp_path / "a.json", snapshot(made)))
    assert (len(device.history), found.peak.position, dict(device.dropped)) == (11, 3, {})


def test_without_times_the_peak_has_its_event_alone(tmp_path: Path) -> None:
    made = training()
    for event in made.events:
        del event["time_us"]
    facts, rows = facts_of(write(tmp_path / "a.json", snapshot(made)))
    assert (facts.peak_s, facts.duration_s, facts.peak_event, facts.out_of_memory[0].time_s) == (None, None, 4, None)
    assert {row["time_s"] for row in rows} == {None}
    assert len([row for row in rows if row["kind"] == "timeline"]) == 12


@pytest.mark.parametrize(("lines", "expected"), [
    ([], None),
    (TRAIN, ("/job/train.py:30", "step")),
    ([("/env/lib/python3.12/site-packages/torch/optim/adam.py", 7, "step")],
     ("/env/lib/python3.12/site-packages/torch/optim/adam.py:7", "step")),
    ([("??", 0, "c10::Alloc"), ("/pytorch/torch/csrc/x.cpp", 3, "f"), ("/src/pytorch/torch/nn/m.py", 9, "g"),
      ("/job/a.py", 1, "h")], ("/job/a.py:1", "h")),
    ([("??", 0, "c10::Alloc")], ("??:0", "c10::Alloc")),
    ([("<eval_with_key>.3", 4, "forward"), ("<ipython-input-3-ab>", 2, "<module>")],
     ("<ipython-input-3-ab>:2", "<module>")),
    ([("<frozen runpy>", 4, "run"), ("C:\\env\\Lib\\site-packages\\torch\\nn\\m.py", 1, "f"),
      ("C:\\job\\a.py", 2, "g")], ("C:\\job\\a.py:2", "g")),
    ([("/job/torch/train.py", 5, "main")], ("/job/torch/train.py:5", "main")),
    ([("/env/site-packages/triton/runtime/jit.py", 5, "run"), ("/env/site-packages/torchvision/m.py", 6, "forward")],
     ("/env/site-packages/torchvision/m.py:6", "forward")),
    ([("/job/<b>x</b>.py", 1, "f\n\x1bg")], ("/job/<b>x</b>.py:1", "f␊␛g")),
])
def test_a_stack_belongs_to_its_first_line_outside_of_pytorch(
        tmp_path: Path, lines: list[tuple[str, int, str]], expected: tuple[str, str] | None) -> None:
    made = Allocator()
    made.segment(0x1000000, 2 * MIB)
    made.alloc(0x1000000, 5, *(lines or TRAIN))
    made.events[-1]["frames"] = frames(*lines)
    made.records = False
    facts, _ = facts_of(write(tmp_path / "a.json", snapshot(made)))
    (holder,) = facts.holders
    assert (holder.place, holder.function) == (expected or (None, None))
    assert holder.reason == (None if expected else "no frames recorded")
    assert site_of([]) is None


@pytest.mark.parametrize(("content", "reason"), [
    ({"segments": [], "device_traces": [[]]}, "has no memory and no events"),
    ({"segments": [{"total_size": -1}]}, "has no memory and no events"),
    ({"segments": 3}, "a list is missing"), ({"segments": [3]}, "an object is missing"),
    ({"device_traces": [{}]}, "is not a memory snapshot"), ({"device_traces": [[3]]}, "is not a memory snapshot"),
    ({"segments": [{"blocks": [3]}]}, "is not a memory snapshot"),
    ({"segments": [{"device": 5000, "total_size": 1}]}, "no machine has more than"),
    ({"allocator_settings": {}}, "has neither segments nor device_traces"),
])
def test_what_is_no_snapshot_is_one_line(tmp_path: Path, content: Any, reason: str) -> None:
    path = write(tmp_path / "a.json", content)
    assert is_snapshot(path)
    with pytest.raises(UserError, match=reason) as raised:
        read_snapshot(path)
    assert "\n" not in str(raised.value)


@given(st.data())
@settings(deadline=None)
def test_what_is_cut_off_is_an_error(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("cut") / "a.json"
    text = json.dumps(snapshot(training()))
    path.write_text(text[:data.draw(st.integers(0, len(text) - 1))])
    with pytest.raises(UserError):
        read_snapshot(path)


@pytest.mark.parametrize("content", [{"traceEvents": []}, [], [{"ph": "X"}], {"entries": []}, "segments", {"a": 1}])
def test_other_json_is_no_snapshot(tmp_path: Path, content: Any) -> None:
    assert not is_snapshot(write(tmp_path / "snapshot.json", content))


def test_a_pickle_gets_the_lines_that_write_json(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(snapshot(training())))
    with pytest.raises(UserError, match="is a pickle, which can run any code") as raised:
        is_snapshot(path)
    lines = str(raised.value).partition("A memory snapshot, in Python: ")[2]
    subprocess.run([sys.executable, "-c", lines], check=True)
    assert read_snapshot(tmp_path / "snapshot.json").devices[0].history.sizes[0] == 2 * MIB


def test_a_long_history_is_thinned_out_but_for_its_peaks(tmp_path: Path) -> None:
    made = Allocator()
    made.segment(0x1000000, 64 * MIB)
    for number in range(2000):
        made.alloc(0x1000000 + 4 * KIB * number, 700 if number == 1234 else 600)
        if number > 1300:
            made.free(0x1000000 + 4 * KIB * (number - 1301))
    path = write(tmp_path / "a.json", snapshot(made))
    _, found = only(path)
    truth = curve_by_hand(made.events[-700:], made.state())
    assert 190 <= len(found.curve) <= 193
    assert found.curve[-1].allocated_bytes == truth[-1][0]
    assert found.peak in found.curve
    assert found.peak.allocated_bytes == 1302 * 600 + 100
    assert facts_of(path)[0].num_holders == 1
    assert BEFORE not in {held.site for held in found.holders[found.peak.position]}


def test_sizes_whose_sum_would_overflow_are_refused(tmp_path: Path) -> None:
    made = Allocator()
    made.segment(0x1000000, 2 * MIB)
    for number in range(513):
        made.alloc(0x1000000 + number, 2**53)
    with pytest.raises(UserError, match=r"has sizes of more than 2\^62 bytes in all"):
        read_snapshot(write(tmp_path / "a.json", {"device_traces": [made.events]}))
