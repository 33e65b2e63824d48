"""Trace files: whole ones in any layout, and broken ones, each refused in one line."""

import io
import json
import subprocess
import sys
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.traces import TraceMaker, training

from charact.core.errors import UserError
from charact.traces import event_filter, json_stream
from charact.traces.json_stream import JsonStream, mended
from charact.traces.reader import read_trace, stem, trace_files

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=8) | st.sampled_from(['"},{"', "}]", "\\", "[{"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3), max_leaves=8)
EVENTS = st.lists(st.dictionaries(st.text(max_size=4), VALUES, max_size=4), max_size=12)


def read(text: bytes, kept: frozenset[str] = frozenset()) -> tuple[list[Any], dict[str, Any]]:
    stream = JsonStream(io.BytesIO(text), Path("a trace"), kept)
    found = [one for piece in stream.events(msgspec.json.Decoder(list[dict]).decode) for one in piece]
    return found, stream.metadata


@pytest.fixture(scope="module", autouse=True)
def small_pieces() -> Any:
    """So small that every cut falls somewhere else."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_stream, "PIECE_BYTES", 23)
        yield


class TestStream:
    @given(EVENTS, st.sampled_from([None, 1]), st.booleans())
    @settings(deadline=None)
    def test_any_events_are_read_as_they_are(self, made: list[Any], indent: int | None, as_ascii: bool) -> None:
        document = {"before": [{"a": 1}, {"}": "]"}], "traceEvents": made, "after": {"deep": [{}, {}]}}
        text = json.dumps(document, indent=indent, ensure_ascii=as_ascii).encode()
        assert read(text, frozenset({"before", "after"})) == (
            made, {"before": document["before"], "after": document["after"]})

    @given(EVENTS)
    @settings(deadline=None)
    def test_events_alone_are_a_trace(self, made: list[Any]) -> None:
        assert read(json.dumps(made).encode())[0] == made

    @given(EVENTS, st.data())
    @settings(deadline=None)
    def test_what_is_cut_off_is_refused_wherever(self, made: list[Any], data: st.DataObject) -> None:
        text = json.dumps({"traceEvents": made, "after": 1}).encode()
        cut = data.draw(st.integers(0, len(text) - 1))
        with pytest.raises(UserError):
            read(text[:cut])

    @given(st.binary(max_size=60))
    @settings(deadline=None)
    def test_bytes_are_no_trace(self, text: bytes) -> None:
        with pytest.raises(UserError):
            read(text)

    @given(st.lists(st.dictionaries(st.text(max_size=4), VALUES, max_size=3), min_size=1, max_size=5), st.data())
    @settings(deadline=None)
    def test_a_damaged_byte_is_refused_or_changes_a_value_alone(self, made: list[Any], data: st.DataObject) -> None:
        text = bytearray(json.dumps({"traceEvents": made}).encode())
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
        try:
            found, _ = read(bytes(text))
        except UserError:
            return
        # Whatever is accepted is what a complete parser makes of it.
        whole = json.loads(mended(bytes(text)), strict=False)
        assert found == (whole["traceEvents"] if isinstance(whole, dict) else whole)

    def test_numbers_and_bytes_that_json_does_not_know(self) -> None:
        text = b'{"traceEvents": [{"a": inf, "b": -inf, "c": nan, "d": NaN, "e": "inf, nan", "f": Infinity}, {"a": 1}]}'
        assert read(text)[0] == [{"a": None, "b": None, "c": None, "d": None, "e": "inf, nan", "f": None}, {"a": 1}]
        assert read(b'[{"a": "x\xffy"}, {"b": 1}]')[0] == [{"a": "x\ufffdy"}, {"b": 1}]

    @pytest.mark.parametrize(("text", "words"), [
        (b"", "is empty"),
        (b" \n ", "is empty"),
        (b"hello", "is not JSON"),
        (b"<html>", "is an HTML page, not a trace"),
        (b"{}", "has no traceEvents"),
        (b'{"traceEvents": null}', "has no traceEvents"),
        (b'{"traceEvents": {}}', "has no traceEvents"),
        (b'{"traceEvents": [1, 2]}', "is not a trace"),
        (b'{"traceEvents": ["a"]}', "is not a trace"),
        (b'{"traceEvents": [{"a": 1} {"b": 2}]}', "is not a trace"),
        (b'{"traceEvents": [{"a": 1},]}', "is not a trace"),
        (b'{"traceEvents": [{"a": 1} , ]}', "is not a trace"),
        (b'{"traceEvents": [,{"a": 1}]}', "is not a trace"),
        (b'{"traceEvents": [{"a": "' + b"x" * 50 + b'"} {"b": "' + b"y" * 50 + b'"}]}', "is not a trace"),
        (b'{"traceEvents": [{"a": "' + b"x" * 50 + b'"},,{"b": "' + b"y" * 50 + b'"}]}', "is not a trace"),
        (b'{"traceEvents": []} {"more": 1}', "has data after its end"),
        (b'{"traceEvents": [{"a": tru}]}', "is not a trace"),
        (b'{"traceEvents"', "is truncated"),
        (b'{"traceEvents": [{"a": 1}', "is truncated"),
        (b'{"traceEvents": [{"a": 1}]', "is truncated"),
        (b"[", "is truncated"),
    ])
    def test_what_is_no_trace_is_told_in_one_line(self, text: bytes, words: str) -> None:
        with pytest.raises(UserError, match=words) as refused:
            read(text)
        assert "\n" not in str(refused.value)

    @pytest.mark.parametrize("odd", ["1", "inf", '[{"b": 1}], "c": inf'])
    def test_blocks_have_one_or_two_pieces(self, monkeypatch: pytest.MonkeyPatch, odd: str) -> None:
        """Guessed cuts of sound events, and scanned ones of events with numbers that JSON has not."""
        monkeypatch.setattr(json_stream, "PIECE_BYTES", 500)
        sizes, reads = list[int](), list[int]()

        class Source(io.BytesIO):
            def read(self, size: int | None = -1, /) -> bytes:
                reads.append(size or 0)
                return super().read(size)

        def decode(text: bytes) -> list[Any]:
            found: list[Any] = msgspec.json.decode(text)
            sizes.append(len(text))
            return found

        events = [f'{{"a": {odd}, "n": {number}}}' for number in range(100, 900)]
        length, piece = len(events[0]), json_stream.PIECE_BYTES
        stream = JsonStream(Source(f"[{', '.join(events)}]".encode()), Path("a trace"), frozenset())
        assert [one["n"] for block in stream.events(decode) for one in block] == [*range(100, 900)]
        assert piece - length <= min(sizes[:-1]) <= max(sizes) <= 2 * piece + 2 * length
        assert piece <= min(reads) <= max(reads) <= 4 * piece + 2 * length

    @pytest.mark.parametrize(("num_held", "refused"), [(1000, False), (1001, True)])
    def test_the_limit_of_an_event(self, monkeypatch: pytest.MonkeyPatch, num_held: int, refused: bool) -> None:
        monkeypatch.setattr(json_stream, "LARGEST_VALUE_BYTES", 1000)
        text = b'[{"a": "' + b"x" * 2000 + b'"}]'
        parts = [text[:1 + num_held], text[1 + num_held:], b""]
        source: Any = SimpleNamespace(read=lambda _: parts.pop(0))
        stream = JsonStream(source, Path("a trace"), frozenset())
        if refused:
            with pytest.raises(UserError, match="a single value of more than"):
                list(stream.events(msgspec.json.decode))
        else:
            assert list(stream.events(msgspec.json.decode)) == [[{"a": "x" * 2000}]]

    def test_limits_of_values_outside_of_the_events(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(json_stream, "MOST_VALUES", 3)
        monkeypatch.setattr(json_stream, "LARGEST_VALUE_BYTES", 30)
        for outside, refused in (('"a": 1, "b": 2, "c": 3', False), ('"a": 1, "b": 2, "c": 3, "d": 4', True),
                                 (f'"a": "{"x" * 18}", "b": [34567890]', False),
                                 (f'"a": "{"x" * 18}", "b": [345678901]', True)):
            text = f'{{{outside}, "traceEvents": []}}'.encode()
            if refused:
                with pytest.raises(UserError, match="has more than 3 values or 0 MB of metadata"):
                    read(text)
            else:
                assert read(text, frozenset("ab"))[1].keys() == {"a", "b"}
        with pytest.raises(UserError, match=r"is not JSON at 'a': .* \(near byte 6\): write the trace again$"):
            read(b'{"a": tru, "traceEvents": []}', frozenset("a"))

    def test_a_value_without_end_is_refused_before_it_fills_memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(json_stream, "LARGEST_VALUE_BYTES", 1000)
        with pytest.raises(UserError, match="a single value of more than"):
            read(b'[{"a": "' + b"x" * 5000)
        with pytest.raises(UserError, match="has a value 'a' of more than 0 MB outside of events"):
            read(b'{"a": ' + b"[" * 5000)


class TestFile:
    @pytest.fixture(autouse=True)
    def usual_pieces(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(json_stream, "PIECE_BYTES", 1 << 20)

    @pytest.mark.parametrize("name", ["a.json", "a.pt.trace.json.gz", "packed by another name.gz"])
    def test_packed_or_not_it_is_the_same(self, tmp_path: Path, name: str) -> None:
        trace = read_trace(training(2, distributedInfo={"rank": 3, "world_size": 8},
                                    deviceProperties=[{"id": 0, "name": "H"}]).write(tmp_path / name))
        assert (len(trace.events.operators), len(trace.events.device), len(trace.events.modules)) == (14, 10, 4)
        assert (trace.rank, trace.world_size) == (3, 8)
        assert trace.devices == [{"index": 0, "name": "H", "memory_bytes": None, "num_multiprocessors": None}]

    @pytest.mark.parametrize(("beside", "name", "rank"), [
        ({"distributedInfo": {"rank": 2}}, "rank7.json", 2),
        ({}, "rank7.json", 7),
        ({}, "trace_rank_12_iter3.json", 12),
        ({"distributedInfo": "broken"}, "a.json", None),
        ({"distributedInfo": {"rank": -1}}, "a.json", None),
        ({"distributedInfo": {"rank": True}}, "a.json", None),
    ])
    def test_the_rank_is_told_by_the_trace_else_by_its_name(self, tmp_path: Path, beside: dict[str, Any], name: str,
                                                            rank: int | None) -> None:
        assert read_trace(training(1, **beside).write(tmp_path / name)).rank == rank

    @pytest.mark.parametrize("cut", [1, 2, 10, 100, -20, -1])
    def test_a_packed_trace_that_is_cut_off_is_refused(self, tmp_path: Path, cut: int) -> None:
        path = training().write(tmp_path / "a.json.gz")
        path.write_bytes(path.read_bytes()[:cut])
        with pytest.raises(UserError) as refused:
            read_trace(path)
        assert "\n" not in str(refused.value)

    def test_a_damaged_packed_trace_is_refused(self, tmp_path: Path) -> None:
        path = training().write(tmp_path / "a.json.gz")
        packed = bytearray(path.read_bytes())
        packed[len(packed) // 2] ^= 0xFF
        path.write_bytes(packed)
        with pytest.raises(UserError):
            read_trace(path)
        made = TraceMaker()
        made.operator("aten::" + "x" * 1_000_000, 0, 5)
        operator = read_trace(made.write(tmp_path / "a.json")).events.operators[0]
        assert len(operator.name) == event_filter.MAX_NAME_LENGTH + 1
        made = TraceMaker()
        for name in ("aten::first", "aten::second"):
            made.event("cpu_op", name, 0, 5, **{"External id": 1})
        kept = read_trace(made.write(tmp_path / "a.json")).events
        assert (len(kept.operators), kept.by_id[1].name) == (2, "aten::second")

    @pytest.mark.parametrize(("event", "words"), [
        ({"name": 5}, "'name' of an event is a whole number; in a trace it is text"),
        ({"ts": "1694128201544951.123"}, "'ts' of an event is text, as Ascend’s profiler writes it; in a trace it is "
                                         "a whole number or a number"),
        ({"dur": []}, "'dur' of an event is a list; in a trace it is a number"),
        ({"args": "none"}, "'args' of an event is text; in a trace it is an object"),
        ({"args": {"External id": "x"}}, "'External id' of an event is text; in a trace it is a whole number"),
        ({"pid": {}}, "'pid' of an event is an object; in a trace it is a whole number or text"),
        ({"args": {"correlation": 1.5}}, "'correlation' of an event is a number; in a trace it is a whole number"),
        ({"cat": None}, "'cat' of an event is null; in a trace it is text"),
    ])
    def test_a_value_of_another_type_is_named_in_plain_words(self, tmp_path: Path, event: dict[str, Any],
                                                             words: str) -> None:
        made = TraceMaker()
        made.operator("aten::add", 0, 1)
        made.events[0] |= event
        with pytest.raises(UserError) as refused:
            read_trace(made.write(tmp_path / "a.json"))
        assert str(refused.value) == f"{tmp_path / 'a.json'} is not a trace of torch.profiler: {words}"

    @pytest.mark.parametrize("where", ["args", "beside"])
    def test_deep_nesting_is_refused(self, tmp_path: Path, where: str) -> None:
        deep = b"[" * 100_000 + b"]" * 100_000
        path = tmp_path / "a.json"
        path.write_bytes(b'{"traceEvents": [{"args": {"x": ' + deep + b"}}]}" if where == "args"
                         else b'{"distributedInfo": ' + deep + b', "traceEvents": []}')
        with pytest.raises(UserError, match="nested too deeply"):
            read_trace(path)

    def test_more_events_than_memory_is_given_to_are_refused(self, tmp_path: Path,
                                                             monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(event_filter, "MAX_STORED_EVENTS", 10)
        with pytest.raises(UserError, match="profile fewer iterations"):
            read_trace(training().write(tmp_path / "a.json"))

    @pytest.mark.slow
    @pytest.mark.parametrize("filling", [
        pytest.param(b" ", marks=pytest.mark.slow), b'{"cat": "python_function", "name": "f", "ts": 1.5, "dur": 2}, '])
    def test_a_packed_bomb_takes_little_memory(self, tmp_path: Path, filling: bytes) -> None:
        packer = zlib.compressobj(9, wbits=31)
        megabyte = filling * ((1 << 20) // len(filling))
        packed = packer.compress(b'{"traceEvents": [') + b"".join(packer.compress(megabyte) for _ in range(200))
        path = tmp_path / "bomb.json.gz"
        path.write_bytes(packed + packer.compress(b"{}]}") + packer.flush())
        assert path.stat().st_size < 1 << 20
        code = ("import resource, sys; from pathlib import Path; from charact.traces.reader import read_trace\n"
                "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
                "read_trace(Path(sys.argv[1]))\n"
                "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)")
        done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
        assert int(done.stdout) < 60 * 1024

    def test_reading_needs_neither_torch_nor_pandas(self, tmp_path: Path) -> None:
        path = training().write(tmp_path / "a.json")
        code = ("import sys; from pathlib import Path; from charact.traces.cases import trace_case\n"
                "from charact.traces.reader import read_trace\n"
                "trace_case(read_trace(Path(sys.argv[1])), 'a')\n"
                "print(sorted({'torch', 'pandas', 'numpy', 'pyarrow'} & set(sys.modules)))")
        done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
        assert done.stdout == "[]\n"


class TestNames:
    def test_directories_and_absent_files(self, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        for name in ("b.json", "a.json.gz", "notes.txt"):
            (tmp_path / name).touch()
        assert [path.name for path in trace_files([tmp_path])] == ["a.json.gz", "b.json"]
        with pytest.raises(UserError, match="has no trace"):
            trace_files([tmp_path / "empty"])
        with pytest.raises(UserError, match="is not a file"):
            trace_files([tmp_path / "absent.json"])

    @pytest.mark.parametrize(("name", "expected"), [
        ("a.pt.trace.json.gz", "a"), ("a.json", "a"), ("a.b.json.gz", "a.b"), ("trace", "trace"), (".json", ".json"),
    ])
    def test_the_stem_is_the_name(self, name: str, expected: str) -> None:
        assert stem(Path(name)) == expected


@given(VALUES, st.sampled_from([None, 1]), st.booleans())
@settings(deadline=None)
def test_objects_and_lists_are_walked_as_they_are(value: Any, indent: int | None, is_cut: bool) -> None:
    document = {"skipped": [value, [value]], "read": [value, value], "walked": [{"a": value, "b": 1}, value]}
    text = json.dumps(document, indent=indent).encode()
    stream = JsonStream(io.BytesIO(text[:-1] if is_cut else text), Path("a trace"), format_name="a document")
    found: dict[str, Any] = {}

    def walk() -> None:
        assert stream.first() == b"{"
        for key in stream.keys():  # noqa: SIM118  (no dictionary)
            if key == "read":
                found[key] = stream.value()
            elif key == "walked":
                found[key] = [stream.value() for number, _ in enumerate(stream.elements()) if number == 0]
        stream.check_end()

    if is_cut:
        with pytest.raises(UserError, match="a trace is truncated"):
            walk()
        return
    walk()
    assert found == {"read": document["read"], "walked": document["walked"][:1]}


@pytest.mark.parametrize(("text", "words"), [
    (b"[1 2]", "a comma is missing or extra"), (b"[,1]", "a comma is missing or extra"),
    (b"[1,]", "a comma is missing or extra"), (b"[1,,2]", "a comma is missing or extra"), (b"[1", "is truncated"),
    (b"[1,", "is truncated"), (b"{}", "a list is missing"), (b"[tru]", "is not a document")])
def test_what_is_no_list_is_told_in_one_line(text: bytes, words: str) -> None:
    stream = JsonStream(io.BytesIO(text), Path("a trace"), format_name="a document")
    with pytest.raises(UserError, match=words):
        for _ in stream.elements():
            pass
