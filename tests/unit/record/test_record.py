import errno
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import records
from support.brick_records import three_models
from support.brick_runs import infer_run
from support.damage import change_manifest, reseal, unseal
from support.forked import no_file_above
from support.watched_programs import watched_program

from charact.core.bounded_reading import limited_to
from charact.core.errors import UserError
from charact.core.files import write_text
from charact.record import in_progress
from charact.record import writer as record_writer
from charact.record.in_progress import CHECKSUM, TABLE_CHECKSUMS
from charact.record.manifest import CaseEntry, typed_entry
from charact.record.reader import PARTIAL_PREFIX, Run, load_run
from charact.record.schema import ADDED_COLUMNS, DAMAGED, SCHEMA_VERSION, TABLES, UNIQUE, Column, column_names
from charact.record.tables import arrow_schema
from charact.record.writer import RunWriter

# A file may come from anywhere: the same directory is used for every example.
MANY = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
REAL_RECORD = Path(__file__).parents[3] / "reports" / "xeon-2-cores" / "run"
HTML = "<script>alert('x')</script>&amp;\"'"
TEXTS = st.one_of(st.just(HTML), st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
# An integer column with nulls is one of floats in pandas: whole up to 53 bits.
NUMBERS = {"int64": lambda least, most: st.integers(-2**53 if least is None else int(least),
                                                    2**53 if most is None else int(most)),
           "float64": lambda least, most: st.floats(-1e30 if least is None else least,
                                                    1e30 if most is None else min(most, 1e30))}


def values_of_column(column: Column) -> st.SearchStrategy[Any]:
    if column.allowed is not None:
        values: st.SearchStrategy[Any] = st.sampled_from(column.allowed)
    elif column.json is not None:
        values = st.just('{"saved_inputs": [0], "outputs": []}' if column.name == "held" else "[]")
    else:
        values = TEXTS if column.type == "string" else NUMBERS[column.type](column.least, column.most)
    return st.none() | values if column.nullable else values


def rows_of(table: str) -> st.SearchStrategy[list[dict[str, Any]]]:
    row = st.fixed_dictionaries({column.name: values_of_column(column)
                                 for column in TABLES[table] if column.name != "case"})
    keys = UNIQUE.get(table)
    if keys is None:
        return st.lists(row, max_size=4)
    return st.lists(row, max_size=4, unique_by=lambda row: tuple(row[key] for key in keys if key != "case"))


def entry(case: str) -> dict[str, Any]:
    return records.case_entry("resnet50", 32, "train") | {"case": case}


def values_of(frame: pd.DataFrame) -> list[list[Any]]:
    return [[None if pd.isna(value) else value for value in row] for row in frame.itertuples(index=False)]


def iteration_rows(number: int) -> list[dict[str, Any]]:
    return [{"iteration": i, "phase": "forward", "host_s": 0.5 + i, "device_s": None} for i in range(number)]


@pytest.mark.slow_variants
@settings(MANY)
@given(data=st.data())
@pytest.mark.parametrize("table", TABLES)
def test_rows_come_back_as_they_were(tmp_path: Path, table: str, data: st.DataObject) -> None:
    cases = data.draw(st.lists(rows_of(table), min_size=1, max_size=3))
    writer = RunWriter(tmp_path, "round", {})
    for number, rows in enumerate(cases):
        writer.add_case(typed_entry(entry(f"case-{number}")), {table: rows})
    writer.close("complete")
    frame = load_run(writer.publish()).table(table)
    columns = column_names(table)
    assert list(frame.columns) == columns
    assert values_of(frame) == [[{"case": f"case-{number}", **row}[column] for column in columns]
                                for number, rows in enumerate(cases) for row in rows]


@MANY
@given(name=TEXTS, command_line=st.lists(TEXTS, max_size=3), reason=st.none() | TEXTS)
def test_the_manifest_comes_back_as_it_was(tmp_path: Path, name: str, command_line: list[str],
                                           reason: str | None) -> None:
    writer = RunWriter(tmp_path / "runs", name, {"command_line": command_line})
    writer.add_case(typed_entry(entry(f"{name}-224") | {"reason": reason}), {})
    writer.close("complete")
    path = writer.publish()
    run = load_run(path)
    assert path.parent == tmp_path / "runs"  # whatever the name holds
    assert run.run_id == path.name
    assert run.manifest["name"] == name
    assert run.manifest["command_line"] == command_line
    assert run.entries == [typed_entry(entry(f"{name}-224") | {"reason": reason})]
    assert run.manifest["status"] == "complete"


def test_a_published_run_is_only_what_the_design_names(record: Path) -> None:
    names = {path.name for path in record.iterdir()}
    # What a profile on a CPU has none of.
    absent = ("program_iterations", "windows", "collectives", "kernels", "stages", "metrics", "fits", "problems",
              "repetitions", "bricks", "brick_times", "pieces", "constructions", "serving_steps", "serving_kernels")
    assert names == {"run.json", *(f"{table}.parquet" for table in TABLES if table not in absent)}
    assert [path.name for path in record.parent.iterdir()] == [record.name]


def test_columns_carry_their_descriptions(record: Path) -> None:
    written = pq.read_schema(record / "iterations.parquet")
    assert [(field.name, field.type, field.metadata[b"description"]) for field in written] == [
        (column.name, kind.type, column.description.encode())
        for column, kind in zip(TABLES["iterations"], arrow_schema("iterations"), strict=True)]


def test_a_table_that_the_run_lacks_is_empty_with_all_columns(record: Path) -> None:
    kernels = load_run(record).kernels
    assert (list(kernels.columns), len(kernels)) == (column_names("kernels"), 0)


def test_numbers_are_numbers_even_where_all_are_null(record: Path) -> None:
    assert load_run(record).iterations["device_s"].dtype == float


def test_cases_and_passes_are_those_of_the_manifest(record: Path) -> None:
    run = load_run(str(record))
    assert list(run.cases["case"]) == [f"resnet50-{size}-b8-{mode}-fp32-cpu" for size in (32, 224)
                                       for mode in ("train", "infer")]
    assert run.passes("resnet50-32-b8-train-fp32-cpu")["timing"]["num_iterations"] == 10
    with pytest.raises(KeyError):
        run.passes("absent")


def test_a_column_that_the_schema_does_not_know_is_a_bug(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, "x", {})
    with pytest.raises(AssertionError, match="host_seconds"):
        writer.add_case(typed_entry(entry("a")), {"iterations": [{"iteration": 0, "host_seconds": 1.0}]})


def test_a_number_that_is_none_never_reaches_the_manifest(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, "x", {})
    case = typed_entry(entry("a"))
    case.requested_bytes = math.nan
    with pytest.raises(ValueError, match="not JSON compliant"):
        writer.add_case(case, {})
    assert load_run(writer.directory, partial=True).manifest["cases"] == []


# Whole or absent

KILLED = """
import sys
from pathlib import Path
from charact.record.manifest import CaseEntry
from charact.record.writer import RunWriter

rows = [{"iteration": i, "phase": "forward", "host_s": 0.5, "device_s": None} for i in range(2000)]
while True:
    writer = RunWriter(Path(sys.argv[1]), "killed", {})
    for number in range(3):
        writer.add_case(CaseEntry(f"case-{number}", "ok"), {"iterations": rows, "layers": [{"layer": "a"}]})
        print("flushed", flush=True)
    writer.close("complete")
    writer.publish()
"""


def refusal(read: Callable[[], object]) -> str | None:
    """What a user is told where reading is refused; any other exception passes."""
    try:
        read()
    except UserError as refused:
        return str(refused)
    return None


def assert_whole_or_refused(directory: Path) -> None:
    """Every case that the manifest names has all of its rows, and there are no others."""
    said = refusal(lambda: load_run(directory))
    if said is not None:
        assert directory.name.startswith(PARTIAL_PREFIX)
        if "holds no run.json" in said:
            return
        assert said == f"{directory} was not finished: read it with charact report --partial"
    run = load_run(directory, partial=True)
    assert run.partial == (said is not None)
    assert run.partial or len(run.cases) == 3
    expected = {case["case"]: 2000 for case in run.manifest["cases"]}
    assert run.iterations.groupby("case").size().to_dict() == expected
    assert run.layers.groupby("case").size().to_dict() == dict.fromkeys(expected, 1)


@pytest.mark.slow_variants
@pytest.mark.parametrize("delay_s", [0.0, 0.003, 0.006, 0.011, 0.017])
def test_a_run_that_is_killed_is_hidden_and_its_cases_are_whole(tmp_path: Path, delay_s: float) -> None:
    child = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"flushed\n"
        time.sleep(delay_s)
    finally:
        child.kill()
        child.communicate()
    assert child.returncode == -signal.SIGKILL
    directories = list(tmp_path.iterdir())
    assert directories
    for directory in directories:
        assert_whole_or_refused(directory)


@pytest.mark.parametrize(("place", "function"), [(in_progress, "write_text"), (record_writer, "write_table")])
@pytest.mark.parametrize("countdown", range(6))
def test_a_run_that_is_killed_at_any_step_keeps_its_flushed_cases(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Any, function: str, countdown: int) -> None:
    calls = [0]
    original: Callable[..., None] = getattr(place, function)

    def dies(*arguments: Any) -> None:
        calls[0] += 1
        if calls[0] > countdown:
            raise KeyboardInterrupt
        original(*arguments)

    monkeypatch.setattr(place, function, dies)
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - which of the steps dies is the parameter
        writer = RunWriter(tmp_path, "killed", {})
        for number in range(3):
            writer.add_case(typed_entry(entry(f"case-{number}")),
                            {"iterations": iteration_rows(2000), "layers": [{"layer": "a"}]})
        writer.close("complete")
        raise KeyboardInterrupt
    directories = list(tmp_path.iterdir())
    if (function, countdown) == ("write_text", 0):  # nothing was begun: nothing is left
        assert directories == []
        return
    assert [path.name[: len(PARTIAL_PREFIX)] for path in directories] == [PARTIAL_PREFIX]
    assert_whole_or_refused(directories[0])


@pytest.mark.slow
def test_writers_of_one_directory_never_collide(tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
from charact.record.manifest import CaseEntry
from charact.record.writer import RunWriter

sys.stdin.read()  # until all are ready
for number in range(5):
    writer = RunWriter(Path(sys.argv[1]), "same", {"token": f"{sys.argv[2]}-{number}"})
    writer.add_case(CaseEntry("a", "ok"), {"layers": [{"layer": sys.argv[2]}]})
    writer.close("complete")
    writer.publish()
"""
    children = [subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "runs"), str(number)],
                                 stdin=subprocess.PIPE) for number in range(4)]
    for child in children:
        assert child.stdin is not None
        child.stdin.close()
    assert [child.wait() for child in children] == [0, 0, 0, 0]
    runs = [load_run(path) for path in (tmp_path / "runs").iterdir()]
    assert {run.manifest["token"] for run in runs} == {f"{i}-{j}" for i in range(4) for j in range(5)}
    assert all(list(run.layers["layer"]) == [run.manifest["token"][0]] for run in runs)


# Disks that are full, places that refuse

def random_rows(number: int) -> dict[str, list[dict[str, Any]]]:
    return {"layers": [{"layer": os.urandom(16).hex()} for _ in range(number)]}


NO_SPACE = "^no space left while writing .*: free some, or choose another place$"


def test_no_space_for_the_first_byte_leaves_nothing(tmp_path: Path) -> None:
    with no_file_above(10), pytest.raises(UserError, match=NO_SPACE):
        RunWriter(tmp_path, "x", {})
    assert list(tmp_path.iterdir()) == []


def test_no_space_for_a_case_or_the_tables_keeps_what_is_there(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, "x", {})
    for name in ("a", "b"):
        writer.add_case(CaseEntry(name, "ok"), random_rows(1_000))
    with no_file_above(30_000):
        for write in (lambda: writer.add_case(CaseEntry("c", "ok"), random_rows(20_000)),
                      lambda: writer.close("complete")):
            with pytest.raises(UserError, match=NO_SPACE):
                write()
            run = load_run(writer.directory, partial=True)
            assert ([case["case"] for case in run.manifest["cases"]], len(run.layers)) == (["a", "b"], 2_000)
            assert sorted(path.name for path in (writer.directory / "parts").iterdir()) == [
                "layers-0000.parquet", "layers-0001.parquet"]
    writer.discard()
    assert list(tmp_path.iterdir()) == []


FULL = """
import os, sys
from pathlib import Path
from charact.core.errors import UserError
from charact.record.manifest import CaseEntry
from charact.record.writer import RunWriter

def attempt(action, *arguments):
    try:
        action(*arguments)
    except UserError as error:
        return str(error)
    raise SystemExit("nothing was refused")

out = Path(sys.argv[1])
"""


def in_mount(tmp_path: Path, options: str, program: str) -> list[str]:
    """Run a child on a small file system of its own, which is gone when it ends."""
    if sys.platform != "linux":
        pytest.skip("needs Linux's namespaces")
    mount = ["unshare", "--mount", "--map-root-user", "sh", "-c",
             'mount -t tmpfs -o "$1" tmpfs "$2" && shift && shift && exec "$@"', "sh", options, str(tmp_path)]
    probe = subprocess.run([*mount, "true"], capture_output=True, text=True, check=False)
    if probe.returncode != 0:
        pytest.skip(f"no mount is allowed here: {probe.stderr.strip()}")
    done = subprocess.run([*mount, sys.executable, "-c", FULL + program, str(tmp_path)], capture_output=True,
                          text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_a_disk_that_fills(tmp_path: Path) -> None:
    said, left = in_mount(tmp_path, "size=128k", """
writer = RunWriter(out, "x", {})
rows = [{"layer": os.urandom(16).hex()} for _ in range(20_000)]
print(attempt(writer.add_case, CaseEntry("a", "ok"), {"layers": rows}))
writer.discard()
print(os.listdir(out))
""")
    assert said.startswith("no space left while writing ")
    assert left == "[]"


def test_a_disk_that_is_full(tmp_path: Path) -> None:
    said, left = in_mount(tmp_path, "size=64k", """
try:
    (out / "ballast").write_bytes(bytes(10**6))
except OSError:
    pass
print(attempt(RunWriter, out, "x", {}))
print(os.listdir(out))
""")
    assert said.startswith("no space left while writing ")
    assert left == "['ballast']"


def test_a_place_that_is_read_only(tmp_path: Path) -> None:
    said, = in_mount(tmp_path, "ro", "print(attempt(RunWriter, out, 'x', {}))")
    assert said == f"cannot write {tmp_path} (read-only file system): choose another place"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="permissions do not bind root")
def test_a_place_that_is_not_writable(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match=r"permission denied\): choose another place"):
        RunWriter(tmp_path, "x", {})


def test_a_place_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    with pytest.raises(UserError, match="file is a file: choose a directory with --out"):
        RunWriter(tmp_path / "file", "x", {})
    with pytest.raises(UserError, match=r"cannot write .*below \(not a directory\)"):
        RunWriter(tmp_path / "file" / "below", "x", {})
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "kept"


def test_a_place_whose_name_is_too_long(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot write .*\(file name too long\): choose another place"):
        RunWriter(tmp_path / ("x" * 300), "x", {})


def test_text_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    write_text(target, "one")
    with pytest.raises(UserError, match="exists: --force overwrites it"):
        write_text(target, "two", force=False)
    assert target.read_text() == "one"
    write_text(target, HTML)
    assert target.read_text() == HTML
    with pytest.raises(UserError, match="is a directory: name a file"):
        write_text(tmp_path, "x")
    with pytest.raises(UserError, match=r"cannot write .* \(no such file or directory\)"):
        write_text(tmp_path / "absent" / "report.html", "x")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_text_that_does_not_fit_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("old")
    with no_file_above(100), pytest.raises(UserError, match=NO_SPACE):
        write_text(tmp_path / "report.html", "x" * 1000)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("report.html", "old")]


# Records that are not

def test_a_directory_without_a_record(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent", tmp_path / "absent" / "run.json"):
        with pytest.raises(UserError, match=r"holds no run\.json: name a run directory"):
            load_run(path)


@MANY
@given(data=st.data())
def test_a_manifest_that_was_cut_short_is_refused(tmp_path: Path, data: st.DataObject) -> None:
    record = next((tmp_path / "runs").iterdir(), None) if (tmp_path / "runs").exists() else None
    record = record or records.write_record(tmp_path / "runs")
    whole = tmp_path / "whole.json"
    if not whole.exists():
        whole.write_bytes((record / "run.json").read_bytes())
    text = whole.read_bytes().rstrip()
    (record / "run.json").write_bytes(text[: data.draw(st.integers(0, len(text) - 1))])
    with pytest.raises(UserError, match="is corrupt"):
        load_run(record)


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3))


@MANY
@given(content=st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()))
def test_a_foreign_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(UserError, match="is corrupt"):
        load_run(tmp_path)


@MANY
@given(field=st.sampled_from(["schema_version", "run_id", "name", "status", "cases"]), value=JSON)
def test_a_manifest_with_a_foreign_field_is_refused_or_read(tmp_path: Path, field: str, value: Any) -> None:
    manifest = {"schema_version": 1, "run_id": "a", "name": "a", "status": "complete", "cases": []}
    (tmp_path / "run.json").write_text(json.dumps(manifest | {field: value}))
    if refusal(lambda: load_run(tmp_path, partial=True)) is None:
        run = load_run(tmp_path, partial=True)
        assert isinstance(run.run_id, str)
        assert len(run.cases) == len(run.manifest["cases"])


@pytest.mark.parametrize("content", [
    "[" * 100_000, '{"schema_version": 1e999}', '{"schema_version": true}', '{"schema_version": 0}', "\ufeff{}",
    '{"schema_version": 1}', '{"schema_version": 1, "run_id": "a", "name": "a", "status": "complete", "cases": 3}',
    '{"schema_version": 1, "run_id": "a", "name": "a", "status": "finished", "cases": []}',
    '{"schema_version": 1, "run_id": "a", "name": "a", "status": "complete", "cases": [], "later": NaN}',
    '{"schema_version": 1, "run_id": "a", "name": "a", "status": "complete", "cases": [], "later": 1e999}',
])
def test_a_manifest_that_no_writer_wrote_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "run.json").write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match="is corrupt"):
        load_run(tmp_path)


def test_a_newer_record_is_refused_whatever_it_holds(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"schema_version": SCHEMA_VERSION + 1, "what": "ever"}))
    with pytest.raises(UserError, match=f"schema 2, this charact reads up to {SCHEMA_VERSION}: upgrade charact"):
        load_run(tmp_path)


@MANY
@given(data=st.data())
def test_a_table_that_was_damaged_is_refused_or_read(record: Path, data: st.DataObject) -> None:
    path = record / "iterations.parquet"
    whole = record.parent / "whole.parquet"
    if not whole.exists():
        whole.write_bytes(path.read_bytes())
    damaged = bytearray(whole.read_bytes())
    for place in data.draw(st.lists(st.integers(0, len(damaged) - 1), max_size=4)):
        damaged[place] = data.draw(st.integers(0, 255))
    path.write_bytes(damaged[: data.draw(st.integers(0, len(damaged)))])
    said = refusal(lambda: load_run(record).iterations)
    if said is None:
        assert list(load_run(record).iterations.columns) == column_names("iterations")
    else:
        assert str(path) in said
        assert "\n" not in said


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1PAR1", b"not a table" * 100])
def test_a_foreign_table_is_refused(record: Path, content: bytes) -> None:
    (record / "memory.parquet").write_bytes(content)
    reseal(record)
    with pytest.raises(UserError, match=r"memory\.parquet is corrupt"):
        load_run(record).memory  # noqa: B018 - reading is what is refused


def test_a_text_that_is_none_is_refused(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, "r", {})
    writer.add_case(typed_entry(entry("case-0")), {"layers": [{"layer": "unique-name", "layer_type": "Linear"}]})
    writer.close("complete")
    path = writer.publish()
    table = pq.ParquetFile(path / "layers.parquet").read()
    pq.write_table(table, path / "layers.parquet", compression="none", use_dictionary=False)
    damaged = (path / "layers.parquet").read_bytes().replace(b"unique-name", b"unique\x80name")
    (path / "layers.parquet").write_bytes(damaged)
    reseal(path)
    with pytest.raises(UserError, match=r"layers\.parquet is corrupt"):
        load_run(path).table("layers")


def test_a_table_without_a_column_is_refused(record: Path) -> None:
    path = record / "operators.parquet"
    pq.write_table(pq.ParquetFile(path).read().drop_columns(["layer"]), path)
    reseal(record)
    run = load_run(record)
    with pytest.raises(UserError, match=r"operators\.parquet is not a record's table: it has no column 'layer'"):
        run.table("operators")
    assert len(run.iterations) > 0  # the others can still be read


@pytest.mark.parametrize("table", ADDED_COLUMNS)
def test_a_column_that_was_added_since_is_null_in_older_records(record: Path, tmp_path: Path, table: str) -> None:
    made = {"bricks": lambda out: infer_run(out, {"00aa": 0.01}).path, "pieces": lambda out: three_models(out).path,
            "stages": records.write_training,
            "program_iterations": lambda out: watched_program(out, {"forward": 0.1}).path}
    if table in made:
        record = made[table](tmp_path / "made")
    path = record / f"{table}.parquet"
    pq.write_table(pq.ParquetFile(path).read().drop_columns(list(ADDED_COLUMNS[table])), path)
    unseal(record)
    rows = load_run(record).table(table)
    assert len(rows) > 0
    assert list(rows.columns) == column_names(table)
    assert {column for column in rows if rows[column].isna().all()} >= ADDED_COLUMNS[table]
    assert rows["case"].notna().all()


@pytest.mark.parametrize("table", TABLES)
def test_a_real_record_of_an_earlier_day_can_be_read(table: str) -> None:
    run = load_run(REAL_RECORD)
    assert list(run.table(table).columns) == column_names(table)
    assert len(run.table(table)) > 0 or table not in run.manifest["tables"]


def test_a_column_of_another_type_is_refused(record: Path) -> None:
    path = record / "layers.parquet"
    rows = pq.ParquetFile(path).read().drop_columns(["num_parameters"])
    pq.write_table(rows.append_column("num_parameters", pa.array(["many"] * len(rows))), path)
    reseal(record)
    with pytest.raises(UserError, match=r"layers\.parquet is corrupt"):
        load_run(record).table("layers")


def test_a_column_from_a_later_version_is_left_out(record: Path) -> None:
    path = record / "layers.parquet"
    rows = pq.ParquetFile(path).read()
    pq.write_table(rows.append_column("colour", pa.array(["red"] * len(rows))), path)
    reseal(record)
    assert list(load_run(record).layers.columns) == column_names("layers")


def test_a_table_is_read_once(record: Path) -> None:
    run: Run = load_run(record)
    assert run.iterations is run.iterations


def test_a_table_that_is_gone_is_missed(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, "gone", {})
    writer.add_case(typed_entry(entry("case-0")), {"layers": [{"layer": "a"}]})
    writer.close("complete")
    path = writer.publish()
    assert load_run(path).manifest["tables"] == ["layers"]
    assert load_run(path).iterations.empty  # never held
    (path / "layers.parquet").unlink()
    with pytest.raises(UserError, match=r"layers.parquet is missing, but was part of the record: restore it"):
        load_run(path).table("layers")


def test_a_table_of_another_run_is_refused(tmp_path: Path) -> None:
    paths = []
    for name in ("one", "two"):
        writer = RunWriter(tmp_path, name, {})
        writer.add_case(typed_entry(entry(name)), {"layers": [{"layer": "a"}]})
        writer.close("complete")
        paths.append(writer.publish())
    (paths[0] / "layers.parquet").write_bytes((paths[1] / "layers.parquet").read_bytes())
    with pytest.raises(UserError, match=r"layers.parquet was changed since it was written"):
        load_run(paths[0]).table("layers")
    reseal(paths[0])
    with pytest.raises(UserError, match=r"run.json has no case 'two'"):
        load_run(paths[0]).table("layers")


def test_a_device_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with pytest.raises(UserError, match="is no regular file"):
        write_text(fifo, "text", force=True)
    assert fifo.is_fifo()


def test_a_case_that_is_flushed_again_takes_the_place_of_what_was_there(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, "again", {})
    writer.add_case(typed_entry(entry("one") | {"status": "running"}), {"iterations": iteration_rows(1)})
    writer.add_case(typed_entry(entry("two")), {"iterations": iteration_rows(2)})
    writer.add_case(typed_entry(entry("one")), {"iterations": iteration_rows(3)})
    for ended in (False, True):
        run = load_run(writer.close("complete") if ended else writer.directory, partial=not ended)
        assert list(run.cases["case"]) == ["one", "two"]
        assert list(run.cases["status"]) == ["ok", "ok"]
        assert list(run.iterations["case"]) == ["one"] * 3 + ["two"] * 2


def test_a_run_shows_itself_in_a_line(record: Path) -> None:
    run = load_run(record)
    assert repr(run).startswith(f"<Run {record} ({run.manifest['cases'][0]['case']}: ok, ")
    assert len(repr(run)) < 500


class TestReopening:
    def test_a_run_that_was_killed_is_gone_on_with(self, tmp_path: Path) -> None:
        writer = RunWriter(tmp_path, "killed", {"command_line": ["charact"]})
        writer.add_case(typed_entry(entry("one")), {"iterations": iteration_rows(2)})
        os.close(writer._lock)  # as the end of its process does
        again = RunWriter.reopen(writer.directory)
        assert again.entry("one") == typed_entry(entry("one"))
        assert again.entry("two") is None
        again.add_case(typed_entry(entry("two")), {"iterations": iteration_rows(1)})
        again.close("complete")
        run = load_run(again.publish())
        assert (run.run_id, run.path) == (writer.run_id, writer.final)
        assert list(run.iterations["case"]) == ["one", "one", "two"]
        assert [path.name for path in tmp_path.iterdir()] == [writer.run_id]

    def test_a_run_that_is_being_written_is_left_alone(self, tmp_path: Path) -> None:
        writer = RunWriter(tmp_path, "busy", {})
        with pytest.raises(UserError, match="is being written by another process: wait for it, or end it"):
            RunWriter.reopen(writer.directory)
        writer.close("complete")
        assert load_run(writer.publish()).manifest["status"] == "complete"

    def test_a_finished_run_is_refused(self, record: Path) -> None:
        with pytest.raises(UserError, match="is finished: there is nothing to resume"):
            RunWriter.reopen(record)
        with pytest.raises(UserError, match=f"has ended: its run is {record}$"):
            RunWriter.reopen(record.with_name(f"{PARTIAL_PREFIX}{record.name}"))

    def test_a_run_that_only_lacked_its_name_keeps_its_tables(self, tmp_path: Path) -> None:
        writer = RunWriter(tmp_path, "late", {})
        writer.add_case(typed_entry(entry("one")), {"iterations": iteration_rows(2)})
        writer.close("complete")
        os.close(writer._lock)
        again = RunWriter.reopen(writer.directory)
        again.close("interrupted")
        run = load_run(again.publish())
        assert (run.manifest["status"], len(run.iterations)) == ("complete", 2)


def test_a_trace_lies_in_its_folder_whatever_its_case_is_called(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, "a/b", {})
    assert writer.trace_path("a/b-train") == writer.directory / "trace" / "a_b-train.pt.trace.json.gz"


# Checksums, and what they cannot tell


def spoiled(path: Path, table: str, column: str, value: Any) -> None:
    """Give a column of a table a value in its first row, and the run the checksums of that."""
    rows = pq.ParquetFile(path / f"{table}.parquet").read()
    values = [value, *rows[column].to_pylist()[1:]]
    number = rows.column_names.index(column)
    pq.write_table(rows.set_column(number, rows.field(number), pa.array(values, rows[column].type)),
                   path / f"{table}.parquet")
    reseal(path)


class TestChecksums:
    def test_a_manifest_that_was_edited_says_so(self, record: Path) -> None:
        text = (record / "run.json").read_text()
        (record / "run.json").write_text(text.replace('"num_iterations": 10', '"num_iterations": 11'))
        with pytest.raises(UserError, match=r"run\.json was changed since it was written .*: restore it from a copy"):
            load_run(record)

    @pytest.mark.parametrize("key", [CHECKSUM, TABLE_CHECKSUMS])
    def test_a_manifest_without_one_of_its_checksums_was_changed(self, record: Path, key: str) -> None:
        manifest = json.loads((record / "run.json").read_text())
        manifest.pop(key)
        (record / "run.json").write_text(json.dumps(manifest))
        with pytest.raises(UserError, match="was changed since it was written"):
            load_run(record)

    def test_a_table_that_was_changed_says_so_and_the_others_are_read(self, record: Path) -> None:
        path = record / "memory.parquet"
        pq.write_table(pq.ParquetFile(path).read(), path, compression="none")
        run = load_run(record)
        with pytest.raises(UserError, match=r"memory\.parquet was changed since it was written"):
            run.table("memory")
        assert len(run.iterations) > 0

    def test_a_table_of_no_run_is_not_read(self, record: Path) -> None:
        shutil.copy(record / "layers.parquet", record / "kernels.parquet")
        with pytest.raises(UserError, match=r"kernels\.parquet was not written with its run"):
            load_run(record).table("kernels")

    def test_a_record_without_checksums_is_read(self, record: Path) -> None:
        before = {table: load_run(record).table(table) for table in TABLES}
        unseal(record)
        run = load_run(record)
        assert run.checksums is None
        for table, rows in before.items():
            pd.testing.assert_frame_equal(run.table(table), rows)

    def test_views_that_are_added_later_change_nothing(self, record: Path) -> None:
        (record / "report.html").write_text("x")
        assert len(load_run(record).iterations) > 0

    def test_a_flipped_bit_is_found_by_the_checksum_of_its_page(self, record: Path) -> None:
        path = record / "iterations.parquet"
        column = pq.ParquetFile(path).metadata.row_group(0).column(column_names("iterations").index("host_s"))
        content = bytearray(path.read_bytes())
        start = column.dictionary_page_offset or column.data_page_offset
        content[start + column.total_compressed_size - 1] ^= 1
        path.write_bytes(content)
        unseal(record)
        with pytest.raises(UserError, match=r"iterations\.parquet is corrupt \(.*CRC"):
            load_run(record).table("iterations")

    def test_a_run_that_goes_on_has_a_checksum_of_its_manifest(self, tmp_path: Path) -> None:
        writer = RunWriter(tmp_path, "x", {})
        writer.add_case(typed_entry(entry("a")), {"iterations": iteration_rows(1)})
        assert len(load_run(writer.directory, partial=True).iterations) == 1
        text = (writer.directory / "run.json").read_text()
        (writer.directory / "run.json").write_text(text.replace('"name": "x"', '"name": "y"'))
        with pytest.raises(UserError, match="was changed since it was written"):
            load_run(writer.directory, partial=True)


class TestValues:
    @pytest.mark.parametrize(("table", "column", "value", "problem"), [
        ("iterations", "phase", "forwards", "'forwards' is not one of data, forward, loss, sample, backward, update,"),
        ("iterations", "host_s", math.nan, "a number is not finite"),
        ("iterations", "host_s", math.inf, "a number is not finite"),
        ("iterations", "host_s", None, "1 rows have no value"),
        ("iterations", "host_s", 1e300, "is more than 1e\\+30"),
        ("iterations", "iteration", -1, "-1 is less than 0"),
        ("iterations", "iteration", 1, "rows with the same case, iteration, phase, part"),
        ("operators", "num_calls", -1.0, "-1.0 is less than 0"),
        ("operators", "input_shapes", "[[1,", "is not valid JSON for this column"),
        ("memory", "category", "\x1b[31mweights", "is not one of weights, unsharded_weights,"),
    ])
    def test_a_value_that_the_schema_does_not_allow_is_one_line(self, record: Path, table: str, column: str,
                                                                value: Any, problem: str) -> None:
        spoiled(record, table, column, value)
        named = "" if "rows with" in problem else f"column '{column}': .*"
        with pytest.raises(UserError, match=rf"{table}\.parquet is corrupt \({named}{problem}") as refused:
            load_run(record).table(table)
        assert str(refused.value).isprintable()

    def test_what_no_reader_would_take_is_not_written(self, tmp_path: Path) -> None:
        writer = RunWriter(tmp_path, "x", {})
        with pytest.raises(UserError, match=r"a cannot be recorded .table iterations, column 'phase': 'forwards' is"):
            writer.add_case(typed_entry(entry("a")), {"iterations": [iteration_rows(1)[0] | {"phase": "forwards"}]})

    def test_a_number_that_could_not_be_computed_is_written_as_missing(self, tmp_path: Path) -> None:
        writer = RunWriter(tmp_path, "x", {})
        row = {"operation": "gemm", "problem": "gemm:1x1x1", "direction": "forward", "max_error": math.inf,
               "tolerance": math.nan}
        writer.add_case(typed_entry(entry("a")), {"problems": [row]})
        writer.close("complete")
        assert load_run(writer.publish()).problems[["max_error", "tolerance"]].isna().all(axis=None)

    @pytest.mark.parametrize(("change", "reason"), [
        ({"status": "fine"}, "Invalid enum value 'fine' - at `$.cases[0].status`"),
        ({"device": "cuda:x"}, "at `$.cases[0].device`"),
        ({"input_size": 2.5}, "Expected `int | null`, got `float` - at `$.cases[0].input_size`"),
        ({"case": "resnet50-32-b8-infer-fp32-cpu"}, None),
        ({"passes": {"timing": {"status": "ok", "num_iterations": "many"}}},
         "Expected `int | null`, got `str` - at `$.cases[0].passes.timing.num_iterations`"),
        ({"passes": {"timing": {}}}, "missing required field `status` - at `$.cases[0].passes.timing`"),
        ({"passes": {"frames": {"status": "ok", "num_samples": 1, "frames": [
            {"place": "a", "function": "b", "num_samples": 2}]}}}, "the frames have more samples than the pass"),
    ])
    def test_a_case_that_is_damaged_says_so_and_the_others_are_read(self, record: Path, change: dict[str, Any],
                                                                    reason: str | None) -> None:
        manifest = json.loads((record / "run.json").read_text())
        change_manifest(record, cases=[manifest["cases"][0] | change, *manifest["cases"][1:]])
        run = load_run(record)
        damaged = [case for case in run.manifest["cases"] if case["status"] == DAMAGED]
        assert len(damaged) == 1
        assert reason is None or reason in damaged[0]["reason"]
        assert len(run.manifest["cases"]) == 4
        sound = [case["case"] for case in run.manifest["cases"] if case["status"] == "ok"]
        assert sorted(run.iterations["case"].unique()) == sorted(sound)
        assert set(run.iterations["case"]) < {case["case"] for case in manifest["cases"]}

    def test_a_text_that_no_output_can_encode_is_escaped(self, record: Path) -> None:
        change_manifest(record, command_line=["charact", "caf\ud8e9"])
        assert load_run(record).manifest["command_line"] == ["charact", "caf\\ud8e9"]


class TestSizes:
    @pytest.mark.slow
    def test_a_table_of_many_rows_is_not_unpacked(self, record: Path) -> None:
        rows = pq.ParquetFile(record / "layers.parquet").read().slice(0, 1)
        many = rows.take(pa.array([0] * 3_000_000, pa.int64()))
        pq.write_table(many, record / "layers.parquet", compression="zstd")
        assert (record / "layers.parquet").stat().st_size < 1_000_000
        reseal(record)
        with limited_to(2**26), pytest.raises(UserError, match=r"layers\.parquet unpacks to .* the limit is 64.0 MiB"):
            load_run(record).table("layers")

    def test_a_long_text_in_many_rows_is_not_unpacked(self, record: Path) -> None:
        rows = pq.ParquetFile(record / "layers.parquet").read().slice(0, 1)
        rows = rows.set_column(rows.column_names.index("layer"), "layer", pa.array(["x" * 1_000_000]))
        writer = pq.ParquetWriter(record / "layers.parquet", rows.schema, compression="zstd")
        with writer:
            for _ in range(200):
                writer.write_table(rows)
        reseal(record)
        with limited_to(2**26), pytest.raises(UserError, match=r"layers\.parquet unpacks to .* the limit is 64.0 MiB"):
            load_run(record).table("layers")

    def test_a_manifest_that_is_too_large_is_not_read(self, record: Path) -> None:
        change_manifest(record, later="x" * 2**21)
        with limited_to(2**20), pytest.raises(UserError, match=r"run\.json unpacks to more than 1\.0 MiB"):
            load_run(record)


class TestFilesThatCannotBeRead:
    @pytest.mark.parametrize("name", ["run.json", "iterations.parquet"])
    def test_a_file_without_permission_says_so(self, record: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        opened = Path.open

        def refuse(path: Path, *arguments: Any, **named: Any) -> Any:
            if path.name == name:
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return opened(path, *arguments, **named)

        monkeypatch.setattr(Path, "open", refuse)
        with pytest.raises(UserError, match=rf"cannot read .*{name} \(permission denied\): make it readable"):
            load_run(record).table("iterations")

    @pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)])
    def test_what_is_no_regular_file_is_not_opened(self, record: Path, make: Callable[[Path], object]) -> None:
        path = record / "iterations.parquet"
        path.unlink()
        make(path)
        with pytest.raises(UserError, match=r"iterations\.parquet is no regular file"):
            load_run(record).table("iterations")
