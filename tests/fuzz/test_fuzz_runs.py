"""Damaged and hostile run directories: whatever a file holds, readers answer in one line; they notice a flipped bit."""

import contextlib
import functools
import io
import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console
from support import counter_records, memory_records, operation_records, records
from support.damage import reseal
from support.fuzzing import damaged_bytes, damaged_json, fuzz
from support.kinds_of_runs import RUNS
from support.traces import training

from charact.analysis.compare import Group
from charact.analysis.compare.gate import judge
from charact.analysis.compare.thresholds import parse
from charact.commands._shared.runs import read_run
from charact.commands.compare import _BY
from charact.core.errors import UserError
from charact.record.in_progress import CHECKSUM, sealed
from charact.record.manifest import typed_entry
from charact.record.reader import Run, load_run
from charact.record.schema import TABLES
from charact.record.writer import RunWriter
from charact.traces.cases import trace_case
from charact.traces.reader import read_trace
from charact.views.export.tables import FORMATS, export
from charact.views.html.report import comparison_sections, sections
from charact.views.summary import summary
from charact.views.tables.comparison_tables import tables
from charact.views.tables.difference_tables import explanations
from charact.views.tables.gate_tables import gate_table
from charact.views.tensorboard.records import Records
from charact.views.tensorboard.scalars import scalars
from charact.views.terminal.renderer import drawn, print_items

# Kinds of records


def _partial(out: Path) -> Path:
    writer = RunWriter(out, "killed", records.manifest("profile", "resnet50"))
    writer.add_case(typed_entry(records.case_entry("resnet50", 32, "train")), records.case_tables("train", 32))
    os.close(writer._lock)  # as the end of its process does
    return writer.directory


def _imported(out: Path) -> Path:
    trace = read_trace(training().write(out / "trace.json"))
    facts = records.manifest("import") | {"options": {"traces": ["trace.json"]}}
    return records.publish(out, "imported", facts, trace_case(trace, "imported"))


KINDS: dict[str, Callable[[Path], Path]] = RUNS | {
    "profile": lambda out: records.write_record(out, sizes=(32,), oom=True),
    "operations": lambda out: operation_records.suite(out, 4).path,
    "memory": lambda out: memory_records.write_memory(out, kinds=("image",)),
    "imported": _imported, "partial": _partial,
}


@functools.cache
def _originals() -> dict[str, Path]:
    place = Path(tempfile.mkdtemp(prefix="charact-fuzz-runs-"))
    found = {}
    for kind, write in KINDS.items():
        (place / kind).mkdir()
        found[kind] = write(place / kind)
    return found


@functools.cache
def _intact(kind: str) -> Run:
    return load_run(_originals()[kind], partial=True)


# Damage

_ODD_TEXTS = ["", " ", "forward", "peak", "ok", "cpu", "cuda:0", "\x1b[31m", "<script>alert(1)</script>", "nan",
              "[]", "[[1,2]]", "{}", "[1e400]", '["conv2d"]', "a" * 3000, "ß\u202e", "\x00", "=1+1", "%s{}", "../x",
              "null"]
_ODD_NUMBERS = [0.0, -0.0, 1.0, -1.0, 1e-320, 1e30, -1e30, 1e300, 1.7e308, float("nan"), float("inf"), -float("inf"),
                2.0**53, 1e-9]
_ODD_INTEGERS = [0, 1, -1, 2, 2**31, 2**53, 2**53 + 1, 2**63 - 1, -(2**63)]


def _odd_value(rng: random.Random, table: str, name: str) -> object:
    """A value of the column's type; of two, one is such that the schema allows it, as a hostile file may."""
    column = next((column for column in TABLES.get(table, ()) if column.name == name), None)
    if column is None:  # the file's content is that of another table
        return rng.choice(_ODD_TEXTS)
    odd = {"string": _ODD_TEXTS, "int64": _ODD_INTEGERS, "float64": _ODD_NUMBERS}[column.type]
    if rng.random() < 0.3:
        return rng.choice(odd)
    if column.allowed is not None:
        return rng.choice(column.allowed)
    if column.json is not None:
        return rng.choice(["[]", "[[]]", '["relu"]', "[1]", '[[1,"x"]]', '{"saved_inputs":[9],"outputs":[]}'])
    if column.type == "string":
        return rng.choice(odd)
    allowed = [value for value in odd if value == value and abs(value) <= 2**53 and value >= (column.least or value)]
    return rng.choice(allowed)


def _odd_rows(rng: random.Random, rows: pa.Table, table: str) -> pa.Table:
    """Rows with a column or a row that is not as it was."""
    kind = rng.choice(["values"] * 4 + ["nulls", "type", "drop", "repeat", "case", "fewer", "add", "empty", "shuffle"])
    number = rng.randrange(rows.num_columns)
    name, column = rows.column_names[number], rows.column(number)
    if kind in ("values", "nulls"):
        value = None if kind == "nulls" else _odd_value(rng, table, name)
        share = rng.choice([0.0, 0.3, 1.0])
        first = rng.randrange(max(len(rows), 1))
        values = [(value if kind == "nulls" or rng.random() < 0.5 else _odd_value(rng, table, name))
                  if number == first or rng.random() < share else old for number, old in enumerate(column.to_pylist())]
        return rows.set_column(rows.column_names.index(name), name, pa.array(values, column.type))
    if kind == "type":
        other = rng.choice([pa.string(), pa.float64(), pa.bool_(), pa.list_(pa.int64()), pa.binary(), pa.null(),
                            pa.timestamp("us"), pa.dictionary(pa.int32(), pa.string()), pa.int8(), pa.float16()])
        try:
            return rows.set_column(number, name, column.cast(other))
        except pa.ArrowException:
            return rows.set_column(number, name, pa.nulls(len(rows), other))
    if kind == "drop":
        return rows.drop_columns([name])
    if kind == "repeat":
        return pa.concat_tables([rows] * rng.choice([2, 3]))
    if kind == "case":
        cases = [rng.choice([case, "", "another", "resnet50-32-b8-train-fp32-cpu"]) for case in
                 rows.column("case").to_pylist()]
        return rows.set_column(0, "case", pa.array(cases, pa.string()))
    if kind == "fewer":
        kept = [number for number in range(len(rows)) if rng.random() < rng.choice([0.1, 0.5, 0.9])]
        return rows.take(pa.array(kept, pa.int64()))
    if kind == "shuffle":
        order = list(range(len(rows)))
        rng.shuffle(order)
        return rows.set_column(number, name, column.take(pa.array(order, pa.int64())))
    if kind == "empty":
        return rows.slice(0, 0)
    return rows.append_column(rng.choice(["later", name]), column)


def _tables(run: Path) -> list[Path]:
    return sorted(path for path in run.rglob("*.parquet") if path.is_file())


def _damage_table(rng: random.Random, run: Path) -> None:
    path = rng.choice(_tables(run))
    rows = pq.ParquetFile(path).read()
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        if "case" in rows.column_names and rows.num_columns > 1:
            rows = _odd_rows(rng, rows, path.name.split("-")[0].removesuffix(".parquet"))
    try:
        pq.write_table(rows, path, use_dictionary=rng.random() < 0.5, write_page_checksum=rng.random() < 0.5)
    except (pa.ArrowException, ValueError):
        path.write_bytes(b"")


def _altered(rng: random.Random, value: Any, share: float) -> Any:
    """A share of the values replaced by others of their type, or removed: what a check of types alone lets pass."""
    if isinstance(value, dict):
        return {key: _altered(rng, each, share) for key, each in value.items() if rng.random() > share / 4}
    if isinstance(value, list):
        return [] if rng.random() < share / 4 else [_altered(rng, each, share) for each in value]
    if rng.random() > share:
        return value
    if isinstance(value, bool) or value is None:
        return rng.choice([True, False, None])
    if isinstance(value, int):
        return rng.choice([0, 1, 2, 10**6, 2**53])
    return rng.choice([0.0, 1e-300, 1.0, 1e30, -1.0] if isinstance(value, float) else [*_ODD_TEXTS, "train", "fp32"])


def _damage_manifest(rng: random.Random, run: Path) -> None:
    manifest = json.loads((run / "run.json").read_text())
    manifest.pop(CHECKSUM)
    if rng.random() < 0.5:
        changed = _altered(rng, manifest, rng.choice([0.01, 0.05, 0.3]))
        (run / "run.json").write_text(json.dumps(sealed({**manifest, **changed})))
        return
    sound = rng.random() < 0.9
    changed = damaged_json(rng, manifest, non_finite=not sound)
    if rng.random() < 0.7 and isinstance(changed, dict):  # facts that readers use, and not the words around them
        for case in manifest["cases"]:
            for name in case["passes"]:
                if rng.random() < 0.3:
                    case["passes"][name] = damaged_json(rng, case["passes"][name], non_finite=not sound)
        changed = manifest
    if sound and isinstance(changed, dict):
        changed = sealed(changed)
    (run / "run.json").write_text(json.dumps(changed, indent=rng.choice([None, 1])))


def _damage_files(rng: random.Random, run: Path) -> None:
    path = rng.choice(sorted(path for path in run.rglob("*") if path.is_file()))
    kind = rng.choice(["remove", "empty", "directory", "fifo", "link", "loop", "dangling", "device", "other", "extra"])
    if kind == "extra":
        (run / rng.choice(["kernels.parquet", "x.parquet", "report.html", "parts"])).write_bytes(rng.randbytes(100))
        return
    content = path.read_bytes()
    path.unlink()
    if kind == "empty":
        path.touch()
    elif kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "link":
        path.with_name("moved").write_bytes(content)
        path.symlink_to("moved")
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "dangling":
        path.symlink_to("nothing")
    elif kind == "device":
        path.symlink_to(rng.choice(["/dev/zero", "/dev/null", "/etc"]))
    elif kind == "other":
        others = sorted(file for file in _originals()[rng.choice(sorted(KINDS))].rglob("*") if file.is_file())
        path.write_bytes(rng.choice(others).read_bytes())


def _damage_bytes(rng: random.Random, run: Path) -> None:
    path = rng.choice(sorted(path for path in run.rglob("*") if path.is_file()))
    path.write_bytes(damaged_bytes(rng, path.read_bytes()))


_DAMAGE = {"manifest": (_damage_manifest, 40), "table": (_damage_table, 40), "bytes": (_damage_bytes, 8),
           "files": (_damage_files, 8), "nothing": (None, 4)}  # fmt: skip
_SHOWN = {"terminal": 32, "scalars": 20, "export": 20, "tables": 18, "ratios": 2, "gate": 2, "explain": 2,
          "sections": 1, "html": 2, "tab": 1}  # fmt: skip
"""Ways to show a run, and in how many of 100 inputs each is taken: a page with figures takes seconds."""


def make_run(rng: random.Random, directory: Path) -> Path:
    """A damaged run whose directory's name says what `show_run` is to draw of it."""
    kind = rng.choice(sorted(KINDS))
    shown = rng.choices(list(_SHOWN), list(_SHOWN.values()))[0]
    run = directory / f"{'.partial-' if kind == 'partial' else ''}{shown}-{kind}"
    shutil.copytree(_originals()[kind], run)
    kinds = rng.choices(list(_DAMAGE), [weight for _, weight in _DAMAGE.values()], k=rng.choice([1, 1, 1, 2]))
    for name in kinds:
        damage = _DAMAGE[name][0]
        if damage is not None and (run / "run.json").is_file() and (name == "files" or _tables(run)):
            try:
                damage(rng, run)
            except (ValueError, KeyError, TypeError, AttributeError, OSError, pa.ArrowException):
                continue  # a damage before left nothing that this one could damage
    if rng.random() < 0.9 and "bytes" not in kinds and "files" not in kinds and kind != "partial":
        # What is no manifest has no checksum.
        with contextlib.suppress(ValueError, TypeError, KeyError, OSError, RecursionError):
            reseal(run)
    return run


def show_run(path: Path) -> None:
    """Read a run as the commands do, and show it in one way."""
    shown, kind = path.name.removeprefix(".partial-").split("-")
    attempts: list[Callable[[], object]] = [lambda: Records(str(path.parent)).listing()]
    if shown == "tab":
        attempts.append(lambda: _tab(path))
    run = read_run(path, partial=True)
    attempts += [functools.partial(run.table, table) for table in TABLES]
    if shown in _WAYS:
        attempts.append(lambda: _WAYS[shown](run))
    elif shown in _COMPARED:
        sides = [Group("intact", (_intact(kind),)), Group("damaged", (run,))]
        attempts.append(lambda: _COMPARED[shown](sides if len(run.cases) % 2 else sides[::-1]))
    for attempt in attempts:
        if (refused := _refusal(attempt)) is not None:
            assert len(refused.splitlines()) == 1, refused


def _refusal(attempt: Callable[[], object]) -> str | None:
    try:
        attempt()
    except UserError as error:
        return str(error)
    return None


def _export(run: Run) -> None:
    with tempfile.TemporaryDirectory() as place:
        export(run, sorted(FORMATS)[len(run.cases) % len(FORMATS)], Path(place) / "export")


def _gate(sides: list[Group]) -> None:
    print_items([gate_table(judge([parse("time > 1.05"), parse("peak_memory > +2%")], sides), sides)])


def _explain(sides: list[Group]) -> None:
    for each in explanations(sides[0], sides[1]):
        print_items(each.tables)


_WAYS: dict[str, Callable[[Run], object]] = {
    "terminal": lambda run: Console(file=io.StringIO(), width=100).print(drawn(summary(run))),
    "scalars": lambda run: list(scalars(run)), "export": _export, "html": sections,
}  # fmt: skip
_COMPARED: dict[str, Callable[[list[Group]], object]] = {
    "ratios": lambda sides: print_items(tables(sides, _BY)), "gate": _gate, "explain": _explain,
    "sections": comparison_sections,
}  # fmt: skip


def _tab(path: Path) -> None:
    pages = Records(str(path.parent))
    for run_id in pages.directories():
        pages.sections(run_id)


@pytest.mark.parametrize("count", [5, pytest.param(10_000, marks=pytest.mark.slow)])
def test_runs(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    _originals()
    monkeypatch.setattr("sys.stdout", io.StringIO())
    assert fuzz("run", make_run, show_run, count) == []


@pytest.mark.parametrize("count", [300, pytest.param(6_000, marks=pytest.mark.slow)])
def test_every_flipped_bit_is_noticed(tmp_path: Path, count: int) -> None:
    run = counter_records.write_gpu(tmp_path)
    intact = load_run(run)
    before = {table: intact.table(table) for table in TABLES}
    files = [run / "run.json"] * 2 + sorted(run.glob("*.parquet"))
    rng = random.Random("bits")
    unnoticed = []
    for number in range(count):
        path = files[number % len(files)]
        content = path.read_bytes()
        bit = rng.randrange(8 * len(content))
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with contextlib.suppress(UserError):
            read = load_run(run)
            if path.name != "run.json":
                same = read.table(path.stem).equals(before[path.stem])
            else:
                same = read.manifest == intact.manifest and read.checksums == intact.checksums
            if not same or path.name != "run.json":
                unnoticed.append((path.name, bit))
        path.write_bytes(content)
    assert unnoticed == []
