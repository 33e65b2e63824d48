"""SQL over many runs: the same numbers as the tables, and one line for every mistake."""

import json
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest
from support import records

from charact.analysis.query import VIEWS, query
from charact.core.errors import UserError
from charact.record.in_progress import CHECKSUM, TABLE_CHECKSUMS
from charact.record.reader import load_run
from charact.record.schema import TABLES

pytest.importorskip("duckdb", reason="needs duckdb: pip install 'charact[query]'")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    out = tmp_path_factory.mktemp("it's") / "runs"  # a quote in the path
    return [records.write_record(out), records.write_training(out)]


def test_numbers_are_those_of_the_tables(runs: list[Path]) -> None:
    found = query(runs, 'select run, "case", median(host_s) as s from iterations group by all')
    table = load_run(runs[0]).iterations
    expected = table.groupby("case")["host_s"].median()
    ours = found[found["run"] == runs[0].name].set_index("case")["s"]
    pd.testing.assert_series_equal(ours.sort_index(), expected.sort_index(), check_names=False, check_dtype=False)
    found = query(runs, 'select * from cases where run = (select min(run) from cases)')
    cases = json.loads((min(runs) / "run.json").read_text(encoding="utf-8"))["cases"]
    assert list(found["case"]) == [case["case"] for case in cases]
    assert list(found["batch_size"]) == [case["batch_size"] for case in cases]


@pytest.mark.parametrize("table", TABLES)
def test_every_table_is_there_also_if_no_run_has_it(runs: list[Path], table: str) -> None:
    assert "run" in query(runs, f'select * from "{table}" limit 1').columns


@pytest.mark.parametrize(("sql", "message"), [
    ("select nothing from cases", '"nothing" not found'), ("selec 1", "syntax error"), ("", "no rows come back"),
    ("select * from absent", "absent does not exist: the tables are summary, cases, results, best, worst, changes, it"),
    ("drop table cases", "trying to drop"),
])  # fmt: skip
def test_a_mistake_is_one_line(runs: list[Path], sql: str, message: str) -> None:
    with pytest.raises(UserError) as raised:
        query(runs, sql)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_damaged_runs_are_named(tmp_path: Path, runs: list[Path]) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{", encoding="utf-8")
    with pytest.raises(UserError, match=r"broken/run\.json is damaged"):
        query([tmp_path / "broken"], "select * from cases")
    with pytest.raises(UserError, match=r"absent holds no run\.json"):
        query([tmp_path / "absent"], "select 1")
    copy = shutil.copytree(runs[0], tmp_path / "copy")
    (copy / "run.json").write_text("{", encoding="utf-8")
    with pytest.raises(UserError, match=r"copy/run\.json.*leave this run out"):
        query([copy], "from best")


def test_only_the_tables_that_the_query_names_are_opened(runs: list[Path], tmp_path: Path) -> None:
    copy = shutil.copytree(runs[0], tmp_path / "copy")
    (copy / "operators.parquet").write_bytes(b"damaged")
    (copy / "run.json").write_text("{", encoding="utf-8")
    assert len(query([copy], "SELECT * FROM Iterations"))
    views = {"summary", "cases", "results", *VIEWS, "_results"}
    assert query([copy], "show all tables")["name"].nunique() == len({*TABLES, *views})
    with pytest.raises(UserError, match=r"operators\.parquet"):
        query([copy], 'select * from iterations, "operators" limit 1')


def _copies(run: Path, out: Path, factors: Sequence[float]) -> list[Path]:
    """Write copies of a run, a minute apart, with times longer by factors."""
    paths = []
    for number, factor in enumerate(factors):
        path = Path(shutil.copytree(run, out / f"run-{number}"))
        manifest = json.loads((path / "run.json").read_text(encoding="utf-8"))
        for key in (CHECKSUM, TABLE_CHECKSUMS):
            manifest.pop(key, None)
        manifest |= {"run_id": path.name, "started": f"2026-11-01T10:{number:02}:00+00:00"}
        (path / "run.json").write_text(json.dumps(manifest), encoding="utf-8")
        rows = pd.read_parquet(path / "iterations.parquet")
        for column in ("host_s", "device_s"):
            rows[column] *= factor
        rows.to_parquet(path / "iterations.parquet")
        paths.append(path)
    return paths


def test_best_worst_and_what_changed_are_found(runs: list[Path], tmp_path: Path) -> None:
    paths = _copies(runs[0], tmp_path, [1.0, 0.5, 2.0, 1.5])
    for metric in ("time", "throughput"):  # less time is better, more throughput is
        for table, expected in (("best", "run-1"), ("worst", "run-2")):
            found = query(paths, f"from {table} where metric = '{metric}'")
            assert set(found["run"]) == {expected}, (metric, table)
            assert set(found["num_runs"]) == {4}
    changes = query(paths, "from changes").set_index("metric")
    assert set(changes["run"]) == {"run-3"}
    assert set(changes["run_before"]) == {"run-2"}
    assert changes.loc[["time"], "ratio"].tolist() == pytest.approx([0.75] * len(changes.loc[["time"]]))
    assert set(changes.loc[["time"], "direction"]) == {"better"}
    assert set(changes.loc[["throughput"], "direction"]) == {"better"}
    assert set(changes.loc[["peak_memory"], "direction"]) == {"same"}


def test_a_change_to_nothing_is_no_error() -> None:
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect(":memory:") as connection:
        connection.execute("""CREATE TABLE results AS SELECT run, started, 'c' AS "commit", 'm' AS machine,
            't' AS torch, 'resnet18' AS "case", 'accuracy' AS metric, value, value AS low, value AS high
            FROM (VALUES ('first', '1', 0.5), ('second', '2', 0.0)) AS given(run, started, value)""")
        (changed,) = connection.sql(VIEWS["changes"]).df().to_dict("records")
    assert (changed["run"], changed["ratio"], changed["direction"]) == ("second", 0.0, "worse")


@pytest.mark.slow
def test_a_thousand_runs_take_less_than_a_second_of_processor_time(runs: list[Path], tmp_path: Path) -> None:
    for number in range(1000):
        (tmp_path / f"run-{number:04}").symlink_to(runs[0])
    paths = sorted(tmp_path.iterdir())
    begun_s = time.process_time()
    found = query(paths, 'select "case", median(host_s), count(distinct run) as n from iterations group by all')
    assert time.process_time() - begun_s < 4  # on a busy machine; alone it takes about 1 s
    assert set(found["n"]) == {1000}
