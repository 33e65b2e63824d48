"""Graph breaks and recompilations in what is shown of a case: counts in its card, places and reasons in Method."""

from pathlib import Path
from typing import Any

import pytest
from support import records
from support.notes import Notes
from support.pages import words_of
from support.recording import recorded
from support.small import TwoLayers, small_case
from torch import Tensor, nn

from charact.analysis.profile.compilations import compile_counts, compile_events
from charact.measure.passes.runner import run_cases
from charact.measure.passes.timing import StopRule
from charact.record.reader import Run
from charact.views.export.run_summary import run_summary

EVENTS = [{"kind": "graph break", "reason": "<b>print</b>", "file": "nets.py", "line": 7, "text": "print(x)"},
          {"kind": "recompilation", "reason": "size mismatch", "num_times": 3}]


class Prints(nn.Module):
    """A linear layer that prints nothing, which breaks the graph."""

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(num_features, 10)

    def forward(self, x: Tensor) -> Tensor:
        print(end="")
        return self.linear(x)


class Printing(TwoLayers):
    """A workload whose model has a known graph break."""

    def model(self, dataset: Any) -> nn.Module:
        return Prints(dataset[0][0].numel())


@pytest.fixture
def run(tmp_path: Path) -> Run:
    entry = records.case_entry("resnet50", 32, "infer")
    entry["passes"]["timing"] |= {"compile_s": 4.0, "compilations": {
        "num_graphs": 4, "num_graph_breaks": 1, "num_recompilations": 3, "events": EVENTS}}
    return records.run_of(tmp_path, (entry, records.case_tables("infer", 32, "conv1")),
                          (records.case_entry("resnet50", 64, "infer"), records.case_tables("infer", 64, "conv1")))


def test_counts_and_events_by_case(run: Run) -> None:
    assert compile_counts(run).to_numpy().tolist() == [["resnet50-32-b8-infer-fp32-cpu", 4, 1, 3]]
    assert compile_events(run)[["kind", "line", "num_times"]].astype(object).fillna(0).to_numpy().tolist() == [
        ["graph break", 7, 1], ["recompilation", 0, 3]]


@pytest.mark.parametrize(("kernel_layers", "reason"), [
    (None, "n/a (no operators)"), (True, "n/a (no kernel of its own)"),
    (False, "this PyTorch keeps no origins of kernels")])
def test_layers_of_compiled_code_say_where_they_come_from_and_why_one_has_no_time(
        tmp_path: Path, kernel_layers: bool | None, reason: str) -> None:
    entry, tables = records.case_entry("resnet50", 32, "train"), records.case_tables("train", 32, "conv1")
    entry["passes"]["operators"]["kernel_layers"] = kernel_layers
    for row in tables["operators"]:
        row["layer"] = None
    words = words_of(records.run_of(tmp_path, (entry, tables)))["layers"]
    assert ("origins of kernels that PyTorch’s compiler keeps" in words) is bool(kernel_layers)
    assert reason in words  # of the layer with counted FLOP


def test_the_report_names_place_and_reason(run: Run) -> None:
    words = words_of(run)
    assert "compiled in 4.00 s: 4 graphs, 1 graph break, 3 recompilations" in words["summary"].replace("\xa0", " ")
    method = words["method"].replace("\xa0", " ")
    assert "nets.py:7" in method
    assert "<b>print</b>" in method  # escaped in the page
    assert "PyTorch names no line" in method


def test_json_has_them(run: Run) -> None:
    compiled, eager = run_summary(run)["cases"]
    assert [compiled["headline"][f"num_{name}"] for name in ("graphs", "graph_breaks", "recompilations")] == [4, 1, 3]
    assert compiled["compilations"][0] == EVENTS[0] | {"num_times": 1}
    assert compiled["compilations"][1]["file"] is None
    assert (eager["compilations"], eager["headline"]["num_graphs"]) == ([], None)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # PyTorch's compiler imports what it deprecates
def test_a_compiled_case_has_its_break(tmp_path: Path) -> None:
    cases = [small_case("infer", workload=Printing(), compiled=True, batch_size=4)]
    record = recorded(tmp_path, lambda writer, interrupt: run_cases(
        cases, StopRule(max_iterations=3, max_seconds=1.0), writer, Notes(), interrupt))
    assert record.entries[0].status == "ok"
    assert compile_counts(record)["num_graph_breaks"].tolist() == [1]
    (event,) = compile_events(record).to_dict("records")
    assert Path(event["file"]).name == Path(__file__).name
    assert event["text"] == 'print(end="")'
