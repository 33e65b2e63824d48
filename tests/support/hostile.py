"""Records in whose every free text stands what a terminal would obey, and a check that none of it takes effect."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from charact.record.schema import TABLES
from support.damage import unseal

EVIL = "\x1b]0;evil\x07\x1b[2J\x9b31m\x08\r\u202e\u2028[bold red][link=http://evil]\nerror: evil"
"""A title for the window, a cleared screen, colours, an overwritten line, markup, and a line of its own."""

CLOSED = frozenset({
    # columns and keys whose values are of a few that charact knows
    "phase", "kind", "method", "category", "origin", "status", "stage", "direction", "mode", "precision", "device",
    "strategy", "searched", "verified", "next_verified", "hot", "layout", "operator_type", "input_kind", "started",
    "ended", "set", "operation", "metric", "unit", "ceiling", "counter", "kernel_kind",
    # JSON within a cell
    "input_shapes", "grid", "block", "layer_types", "literals", "held",
})  # fmt: skip
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def hostile(record: Path, *, text: str = EVIL) -> Path:
    """A copy of a record, its free texts ending in what is hostile."""
    copy = record.with_name(f"{record.name}-hostile")
    shutil.copytree(record, copy)
    manifest = json.loads((copy / "run.json").read_text())
    (copy / "run.json").write_text(json.dumps(_spoilt(manifest, text)))
    for name, columns in TABLES.items():
        path = copy / f"{name}.parquet"
        if not path.exists():
            continue
        table = pq.ParquetFile(path).read()
        for column in columns:
            if column.type == "string" and column.name not in CLOSED:
                values = [None if value is None else value + text for value in table[column.name].to_pylist()]
                table = table.set_column(table.column_names.index(column.name), column.name,
                                         pa.array(values, pa.string()))
        pq.write_table(table, path)
    unseal(copy)
    return copy


def _spoilt(value: Any, text: str, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _spoilt(inner, text, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [_spoilt(inner, text, key) for inner in value]
    return value + text if isinstance(value, str) and key not in CLOSED | {"tables"} else value


def assert_harmless(text: str, *, lines: bool = True) -> None:
    """Check that colours are all that a terminal would obey, and that no line is the data's.

    Args:
        text: what was printed or written.
        lines: whether a newline in the data would show as a line.
    """
    plain = _COLOURS.sub("", text).replace("\r\n", "\n")
    found = _OBEYED.search(plain)
    assert found is None, repr(plain[max(0, found.start() - 80) : found.end() + 40])
    assert "\x1b]8" not in text
    if lines:
        assert [line for line in plain.splitlines() if line.strip().startswith("error: evil")] == []
