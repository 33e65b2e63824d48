"""SQL over many runs: the same numbers as the tables, and one line for every mistake."""

import json
import shutil
import time
from pathlib import Path

import pandas as pd
import pytest
from support import records

from charact.analysis.query import query
from charact.core.errors import UserError
from charact.record.reader import load_run
from charact.record.schema import TABLES

pytest.importorskip("duckdb", reason="needs duckdb: pip install 'charact[query]'")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    out = tmp_path_factory.mktemp("it's") / "runs"  # a quote in the path
    return [records.write_record(out), records.write_training(out)]


def test_medians_are_those_of_the_tables(runs: list[Path]) -> None:
    found = query(runs, 'select run, "case", median(host_s) as s from iterations group by all')
    table = load_run(runs[0]).iterations
    expected = table.groupby("case")["host_s"].median()
    ours = found[found["run"] == runs[0].name].set_index("case")["s"]
    pd.testing.assert_series_equal(ours.sort_index(), expected.sort_index(), check_names=False, check_dtype=False)


def test_every_case_has_its_coordinates(runs: list[Path]) -> None:
    found = query(runs, 'select * from cases where run = (select min(run) from cases)')
    cases = json.loads((min(runs) / "run.json").read_text(encoding="utf-8"))["cases"]
    assert list(found["case"]) == [case["case"] for case in cases]
    assert list(found["batch_size"]) == [case["batch_size"] for case in cases]


@pytest.mark.parametrize("table", TABLES)
def test_every_table_is_there_also_if_no_run_has_it(runs: list[Path], table: str) -> None:
    assert "run" in query(runs, f'select * from "{table}" limit 1').columns


@pytest.mark.parametrize(("sql", "message"), [
    ("select nothing from cases", '"nothing" not found'), ("selec 1", "syntax error"), ("", "no rows come back"),
    ("select * from absent", "absent does not exist: the tables are cases, iterations"),
    ("drop table cases", "trying to drop"),
])  # fmt: skip
def test_a_mistake_is_one_line(runs: list[Path], sql: str, message: str) -> None:
    with pytest.raises(UserError) as raised:
        query(runs, sql)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_damaged_run_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{", encoding="utf-8")
    with pytest.raises(UserError, match=r"broken/run\.json is damaged"):
        query([tmp_path / "broken"], "select * from cases")
    with pytest.raises(UserError, match=r"absent holds no run\.json"):
        query([tmp_path / "absent"], "select 1")


def test_only_the_tables_that_the_query_names_are_opened(runs: list[Path], tmp_path: Path) -> None:
    copy = shutil.copytree(runs[0], tmp_path / "copy")
    (copy / "operators.parquet").write_bytes(b"damaged")
    (copy / "run.json").write_text("{", encoding="utf-8")
    assert len(query([copy], "SELECT * FROM Iterations"))
    assert query([copy], "show all tables")["name"].nunique() == len({*TABLES, "cases"})
    with pytest.raises(UserError, match=r"operators\.parquet"):
        query([copy], 'select * from iterations, "operators" limit 1')


@pytest.mark.slow
def test_a_thousand_runs_take_less_than_a_second_of_processor_time(runs: list[Path], tmp_path: Path) -> None:
    for number in range(1000):
        (tmp_path / f"run-{number:04}").symlink_to(runs[0])
    paths = sorted(tmp_path.iterdir())
    begun_s = time.process_time()
    found = query(paths, 'select "case", median(host_s), count(distinct run) as n from iterations group by all')
    assert time.process_time() - begun_s < 4  # on a busy machine; alone it takes about 1 s
    assert set(found["n"]) == {1000}
