"""Files of other tools are refused in one line that names them and what to do."""

import gzip
import json
from pathlib import Path

import pytest
from support.traces import training

from charact.core.errors import UserError
from charact.traces.foreign_files import foreign_kind
from charact.traces.reader import read_trace


@pytest.mark.parametrize(("content", "words"), [
    (b"[[-1, 1, [0, 0, 0], 1024], [10, 2, [1, 0, 0], 2048]]", "is a memory timeline of torch.profiler, not a trace: "
                                                              "export the trace itself"),
    (b"[[1, 2], [[0, 5], [0, 6]]]", "is a memory timeline"),
    (b'{"rocprofiler-sdk-tool": [{"metadata": {"pid": 1}}]}', "is a result of rocprofv3, not a trace"),
    (b"SQLite format 3\x00\x10\x00", "is an SQLite database, as Nsight Systems and rocprofv3 write"),
    (b"\x0a\x0c\x40\x01\x50\x01\x58\x01\x62\x02\x08\x01", "is a binary file such as a Perfetto trace (protobuf)"),
    (b"PK\x03\x04\x14\x00", "is a ZIP archive, not a trace: unpack it"),
    (b"\x28\xb5\x2f\xfd\x04", "is compressed by xz, bzip2 or zstd"),
    (b"<!DOCTYPE html><html>", "is an HTML page"),
    (b'{"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": []}', "is an execution trace of PyTorch"),
])
@pytest.mark.parametrize("packed", [False, True])
def test_a_file_of_another_tool_is_named(tmp_path: Path, content: bytes, words: str, packed: bool) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(UserError) as refused:
        read_trace(path)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
    assert "write the trace again" not in str(refused.value)


@pytest.mark.parametrize("text", [
    training(1).text(), json.dumps(training(1).events), "\n\n [ {}", '{"traceEvents": [', '\n{\n  "schemaVersion": 1,',
    '{"segments": 1, "traceEvents": []}', "",
])
def test_a_trace_is_not_taken_for_another_file(text: str) -> None:
    assert foreign_kind(text.encode()) is None


def test_a_large_value_outside_of_events_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"nodes": ["' + "x" * (17 << 20) + '"]}')
    with pytest.raises(UserError, match="has a value 'nodes' of more than 16 MB outside of events: name a trace"):
        read_trace(tmp_path / "a.json")
