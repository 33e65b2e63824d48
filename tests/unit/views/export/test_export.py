"""Exports: equal to the record in every format, whole or absent, and never over what is not theirs."""

import json
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
from support import records
from support.damage import reseal
from support.memory_records import write_memory

from charact.commands import export as export_command
from charact.core.errors import UserError
from charact.record.manifest import typed_entry
from charact.record.reader import load_run
from charact.record.schema import SCHEMA_VERSION, TABLES, column_names
from charact.record.writer import RunWriter
from charact.views.export.tables import FORMATS, export


def read(path: Path) -> pd.DataFrame:
    if path.suffix == ".csv":
        return pd.read_csv(path, keep_default_na=False, na_values=[""])
    if path.suffix == ".json":
        return pd.DataFrame(json.loads(path.read_text()))
    return pd.read_parquet(path)


@pytest.mark.parametrize("form", FORMATS)
def test_every_table_comes_back_as_it_was(tmp_path: Path, form: str) -> None:
    for number, write in enumerate((records.write_record, records.write_training,
                                    partial(write_memory, kinds=("sequence",)))):
        run, out = load_run(write(tmp_path / "runs")), tmp_path / f"out {number}"
        names = export(run, form, out)
        with_rows = [table for table in TABLES if len(run.table(table))]
        assert names == sorted([f"{table}.{form}" for table in ("summary", *with_rows)] + ["run.json", "columns.json"])
        assert not any(path.name.startswith(".") for path in tmp_path.iterdir())
        for table in with_rows:
            exported, rows = read(out / f"{table}.{form}"), run.table(table)
            pd.testing.assert_frame_equal(exported.astype(rows.dtypes), rows, check_dtype=False, rtol=1e-14)


def test_the_manifest_and_the_columns_are_told(record: Path, tmp_path: Path) -> None:
    run = load_run(record)
    export(run, "csv", tmp_path / "out")
    assert json.loads((tmp_path / "out" / "run.json").read_text()) == run.manifest
    columns = json.loads((tmp_path / "out" / "columns.json").read_text())
    described = {table: [column["name"] for column in described] for table, described in columns.items()}
    assert described.pop("summary")[0] == "case"
    assert described == {table: column_names(table) for table in TABLES if len(run.table(table))}
    assert columns["iterations"][-1]["description"].endswith("null on a CPU")


def test_whole_numbers_stay_whole_beside_nulls(tmp_path: Path) -> None:
    kernels = [
        {"phase": "forward", "kernel": "gemm", "num_calls": 1.0, "device_s": 0.1, "registers": 32},
        {"phase": "forward", "kernel": "memset", "num_calls": 1.0, "device_s": 0.1, "registers": None},
    ]
    writer = RunWriter(tmp_path, "r", {})
    writer.add_case(typed_entry(records.case_entry("r", 32, "infer")), {"kernels": kernels})
    run = load_run(writer.close("complete"))
    export(run, "json", tmp_path / "json")
    assert [row["registers"] for row in json.loads((tmp_path / "json" / "kernels.json").read_text())] == [32, None]
    export(run, "csv", tmp_path / "csv")
    assert ",32," in (tmp_path / "csv" / "kernels.csv").read_text()


def test_tables_without_rows_are_left_out(tmp_path: Path) -> None:
    names = export(load_run(RunWriter(tmp_path, "r", {}).close("complete")), "csv", tmp_path / "out")
    assert names == ["columns.json", "run.json"]
    assert json.loads((tmp_path / "out" / "columns.json").read_text()) == {}


def test_an_export_is_replaced_by_force_only(record: Path, tmp_path: Path) -> None:
    run, target = load_run(record), tmp_path / "out"
    export(run, "csv", target)
    with pytest.raises(UserError, match="--force replaces it"):
        export(run, "json", target)
    assert (target / "flop.csv").exists()
    export(run, "json", target, force=True)
    assert (target / "flop.json").exists()
    assert not (target / "flop.csv").exists()


@pytest.mark.parametrize("place", ["run", "runs", "file", "other"])
def test_nothing_but_an_export_is_ever_replaced(record: Path, tmp_path: Path, place: str) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("")
    (tmp_path / "file").write_text("")
    target = {"run": record, "runs": record.parent}.get(place, tmp_path / place)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError, match=r"choose another directory|is a file"):
        export(load_run(record), "csv", target, force=True)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_failure_in_the_middle_leaves_nothing(record: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(table: str, rows: pd.DataFrame, path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setitem(FORMATS, "csv", full)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(UserError, match="no space left"):
        export(load_run(record), "csv", tmp_path / "out")
    assert sorted(tmp_path.iterdir()) == before


def test_the_command_names_the_directory_after_run_and_format(
    record: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    export_command.command(record, "parquet")
    assert (tmp_path / f"{record.name}-parquet" / "run.json").exists()
    assert capsys.readouterr().out.startswith(f"Wrote {record.name}-parquet: columns.json, counters.parquet,")


def test_bad_input_is_one_line_and_writes_nothing(record: Path, tmp_path: Path) -> None:
    newer = tmp_path / "newer"
    newer.mkdir()
    manifest = json.loads((record / "run.json").read_text())
    (newer / "run.json").write_text(json.dumps(manifest | {"schema_version": SCHEMA_VERSION + 1}))
    corrupt = tmp_path / "corrupt"
    corrupt.mkdir()
    (corrupt / "run.json").write_text(json.dumps(manifest | {"tables": ["flop"]}))
    (corrupt / "flop.parquet").write_bytes(b"PAR1 and then nothing")
    reseal(corrupt)
    attempts = [
        (record, "xml", "unknown format 'xml': choose from csv, json, parquet"), (tmp_path, "csv", "holds no run.json"),
        (newer, "csv", "upgrade charact"), (corrupt, "csv", "flop.parquet is corrupt"),
    ]  # fmt: skip
    for path, form, words in attempts:
        with pytest.raises(UserError, match=words) as refusal:
            export_command.command(path, form, to=tmp_path / "out")
        assert "\n" not in str(refusal.value)
        assert not (tmp_path / "out").exists()
