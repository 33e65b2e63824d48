"""A metric is one file: all that reads metrics knows it by that."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.compared import scattered, side

from charact.analysis.compare import metric_ratios, metrics
from charact.analysis.compare.gate import judge
from charact.analysis.compare.metrics import all_metrics
from charact.analysis.compare.thresholds import parse
from charact.analysis.history.index import read_index
from charact.analysis.history.series import history
from charact.commands._shared import completion
from charact.views.tables.comparison_tables import metric_table
from charact.views.tables.gate_tables import sentence
from charact.views.tables.history_table import history_table

FILE = '''"""Number of parameters."""

from charact.analysis.common.significance import Sample
from charact.analysis.compare.metrics._metric import Metric

METRIC = Metric(
    "parameter_memory", 35, "parameters", "B", "bytes of parameters in float32",
    lambda run: ((entry["case"], Sample(4.0 * entry["num_parameters"], exact=True)) for entry in run.manifest["cases"]),
    is_exact=True)
'''


@pytest.fixture
def new_metric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "parameter_memory.py").write_text(FILE, encoding="utf-8")
    monkeypatch.setattr(metrics, "__path__", [*metrics.__path__, str(tmp_path)])
    all_metrics.cache_clear()
    yield
    all_metrics.cache_clear()


@pytest.mark.usefixtures("new_metric")
def test_a_file_adds_a_metric_to_tables_gate_and_history(tmp_path: Path) -> None:
    runs = [scattered(tmp_path), scattered(tmp_path)]
    sides = [side("before", runs[0]), side("after", runs[1])]
    names = list(all_metrics())
    assert names.index("peak_memory") < names.index("parameter_memory") < names.index("process_memory")
    rows = metric_ratios(sides).query("metric == 'parameter_memory'")
    assert rows[["base", "value"]].to_numpy().tolist() == [[4.0 * 25_557_032] * 2]
    table = metric_table(sides)
    assert table is not None
    assert "parameters" in [cell.text for row in table.rows for cell in row.cells]
    (judged,) = judge([parse("parameter_memory > +1%")], sides).itertuples()
    assert sentence(judged).startswith("ok: 97.5 MiB to 97.5 MiB")
    case = runs[0].cases["case"].iloc[0]
    values = history(read_index([runs[0].path, runs[1].path]), case, "parameter_memory")
    assert values["value"].tolist() == [4.0 * 25_557_032] * 2
    assert history_table(values, case, "parameter_memory", values).caption == f"Parameters of {case}"


def test_completion_knows_metrics_by_their_files() -> None:
    assert completion.metric_names() == sorted(all_metrics())
    assert all(metric.name == name and metric.meaning for name, metric in all_metrics().items())
