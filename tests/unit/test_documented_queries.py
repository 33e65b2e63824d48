"""Every query and every reading of tables in the documents gives the true numbers of known runs."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.documents import PAGES, blocks, charact_commands
from support.known_times import CASE, FAST_MEDIAN_S, FAST_S, NUM_ITERATIONS, SLOW_MEDIAN_S, write_known

import charact
from charact.commands.query import command
from charact.record.reader import Run


def _queries() -> list[str]:
    help_text = f"```bash\n{command.__doc__}\n```\n".replace("\n      charact", "\ncharact")
    texts = [*(path.read_text(encoding="utf-8") for path in PAGES), help_text]
    found = [words[1] for text in texts for words in charact_commands(text) if words[0] == "query" and len(words) > 1]
    return list(dict.fromkeys(found))


def _expressions() -> list[str]:
    found = [re.sub(r"\s+#.*", "", line.strip()) for path in PAGES for block in blocks(path.read_text(encoding="utf-8"))
             if block.language == "python" for line in block.text.splitlines()
             if re.search(r"print\(runs?\.", line)]
    return list(dict.fromkeys(line.removeprefix("print(").removesuffix(")") for line in found))


def _times(rows: pd.DataFrame) -> None:
    assert rows["time_s"].tolist() == pytest.approx([SLOW_MEDIAN_S, FAST_MEDIAN_S])
    if "low_s" in rows:
        assert (rows["low_s"] < rows["time_s"]).all()
        assert (rows["time_s"] < rows["high_s"]).all()


def _counts(rows: pd.DataFrame) -> None:
    assert rows.to_numpy().tolist() == [["resnet50", "train", 2]]


def _best(rows: pd.DataFrame) -> None:
    assert rows[["case", "metric", "num_runs"]].to_numpy().tolist() == [[CASE, "throughput", 2]]
    assert rows["value"].tolist() == pytest.approx([8 / FAST_MEDIAN_S])


def _changes(rows: pd.DataFrame) -> None:
    changed = rows.set_index("metric").loc["time"]
    assert sorted([changed["value"], changed["before"]]) == pytest.approx([FAST_MEDIAN_S, SLOW_MEDIAN_S])
    assert changed["is_outside_intervals"]


def _memory(rows: pd.DataFrame) -> None:
    assert set(rows["category"]) >= {"weights", "gradients"}
    assert rows["run"].nunique() == 2


QUERIES: dict[str, Callable[[pd.DataFrame], None]] = {
    'select run, "case", time_s, low_s, high_s from summary order by time_s desc': _times,
    'select run, "case", time_s, low_s, high_s, unreliable from summary order by time_s desc limit 5': _times,
    'select run, "case", median(s) as time_s from (select run, "case", iteration, sum(coalesce(device_s, host_s)) as s '
    'from iterations group by all) group by all order by time_s desc': _times,
    "select workload, mode, count(*) from cases group by all": _counts,
    "select workload, mode, count(*) as cases from cases group by all": _counts,
    "from best where metric = 'throughput'": _best,
    "from changes where metric = 'time'": _changes,
    "from changes where metric in ('time', 'peak_memory')": _changes,
    "select * from memory": _memory,
}


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    out = tmp_path_factory.mktemp("known")
    return [write_known(out, name=name, is_slow=name == "slow") for name in ("slow", "fast")]


def test_every_documented_query_has_a_truth() -> None:
    assert sorted(_queries()) == sorted(QUERIES)


@pytest.mark.parametrize("sql", QUERIES)
def test_a_documented_query_gives_the_truth(paths: list[Path], sql: str) -> None:
    pytest.importorskip("duckdb", reason="needs duckdb: pip install 'charact[query]'")
    from charact.analysis.query import query

    QUERIES[sql](query(paths, sql))


def test_the_median_over_phases_would_be_wrong(paths: list[Path]) -> None:
    """The record catches the mistake: the wrong query gives other numbers, in the other order."""
    pytest.importorskip("duckdb", reason="needs duckdb: pip install 'charact[query]'")
    from charact.analysis.query import query

    wrong = query(paths, 'select run, "case", median(host_s) as time_s from iterations group by all order by run')
    with pytest.raises(AssertionError):
        _times(wrong.sort_values("time_s", ascending=False))
    times = {run: time_s for run, time_s in wrong[["run", "time_s"]].to_numpy().tolist()}
    assert times[paths[0].name] < times[paths[1].name]


def _summary_of_one(found: pd.DataFrame, run: Run) -> None:
    assert found["time_s"].tolist() == pytest.approx([SLOW_MEDIAN_S])


def _summary_of_all(found: pd.DataFrame, run: Run) -> None:
    _times(found.sort_values("time_s", ascending=False))
    assert found["unreliable"].notna().tolist() == [run_id == run.run_id for run_id in found["run"]]


def _sums(found: "pd.Series[float]", run: Run) -> None:
    assert found.to_dict() == {CASE: pytest.approx(SLOW_MEDIAN_S)}


def _operators(found: pd.DataFrame, run: Run) -> None:
    assert list(found) == ["phase", "operator", "self_host_s"]


def _cases(found: pd.DataFrame, run: Run) -> None:
    assert found.to_numpy().tolist() == [[CASE, "ok"]]


EXPRESSIONS: dict[str, Callable[[Any, Run], None]] = {
    'run.summary()[["case", "time_s", "low_s", "high_s", "finding_cause"]]': _summary_of_one,
    'run.summary()[["case", "time_s", "low_s", "high_s", "finding_cause", "finding_remedy"]]': _summary_of_one,
    'run.summary()["time_s"]': lambda found, run: _summary_of_one(found.to_frame(), run),
    'runs.summary()[["run", "case", "time_s", "low_s", "high_s", "unreliable"]]': _summary_of_all,
    'run.iterations.groupby(["case", "iteration"])["host_s"].sum().groupby("case").median()': _sums,
    'run.operators.nlargest(10, "self_host_s")[["phase", "operator", "self_host_s"]]': _operators,
    'run.cases[["case", "status"]]': _cases,
}


def test_every_documented_expression_has_a_truth() -> None:
    assert sorted(_expressions()) == sorted(EXPRESSIONS)


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_a_documented_expression_gives_the_truth(paths: list[Path], expression: str) -> None:
    runs = charact.load_runs([str(path) for path in paths])
    run = next(run for run in runs if run.path == paths[0])
    EXPRESSIONS[expression](eval(expression, {"run": run, "runs": runs}), run)


def test_the_known_phases_are_those_of_the_record(paths: list[Path]) -> None:
    rows = charact.load_run(paths[1]).iterations
    assert len(rows) == NUM_ITERATIONS * len(FAST_S)
