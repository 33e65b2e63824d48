import importlib.resources
import json
import math

import pandas as pd
import pytest

from charact.analysis.training.stages import inference_summary, prediction_metrics, training_summary
from charact.core.errors import UserError
from charact.record.published import reference, reference_names
from charact.record.schema import TABLES, column_names
from charact.workload.protocols import find_protocol
from charact.workload.registry import all_workloads

NORTHEASTERN = ("northeastern-k80", "northeastern-p100")


def totals(name: str) -> "pd.Series[float]":
    return training_summary(reference(name)).set_index("case")["total_s"]


def test_the_references_are_those_of_two_studies() -> None:
    assert reference_names() == ["aalto-1", "aalto-2", "aalto-3", "aalto-4", *NORTHEASTERN]


def test_times_are_as_published() -> None:
    k80, p100 = (totals(name) for name in NORTHEASTERN)
    assert k80.sum() == pytest.approx(12739.8801)
    assert p100.sum() == pytest.approx(4565.7445)
    speedups = (k80 / p100).round(4)
    assert speedups.tolist() == [2.7811, 2.8301, 2.8246, 2.629, 2.8175, 2.8684]
    assert math.exp(sum(map(math.log, k80 / p100)) / 6) == pytest.approx(2.7907, abs=5e-5)


def test_accuracies_are_as_published_and_unknown_rates_are_null() -> None:
    summary = training_summary(reference("northeastern-p100"))
    assert summary["best_value"].tolist() == [0.8706, 0.9930, 0.9761, 0.8326, 0.9919, 0.9680]
    assert set(summary["best_metric"]) == {"accuracy"}
    assert summary["samples_per_s"].isna().all()


def test_what_was_published_of_a_setup() -> None:
    run = reference("aalto-2")
    assert totals("aalto-2").tolist() == [1021, 1046, 14069, 14077, 128.05]
    inferences = [entry["passes"]["inference"]["total_s"] for entry in run.manifest["cases"]
                  if entry["mode"] == "infer"]
    assert inferences == [8.72, 51.36]
    assert inference_summary(run)["prediction_s"].isna().all()
    assert run.table("repetitions")["host_s"].tolist() == [0.94, 10.12]
    assert run.table("problems")["flop"].tolist()[0] == 244_379_762_688


@pytest.mark.parametrize("name", reference_names())
def test_a_reference_is_a_run_that_tells_its_source(name: str) -> None:
    run = reference(name)
    told = run.manifest["reference"]
    assert run.run_id == name
    assert told["source"]
    assert told["unstated"]
    assert len(run.cases) == run.cases["case"].nunique() >= 6
    assert set(run.cases["source"]) == {told["source"]}
    for table in TABLES:
        assert list(run.table(table).columns) == column_names(table)
        assert set(run.table(table)["case"]) <= set(run.cases["case"])
    assert prediction_metrics(run).empty


@pytest.mark.parametrize("name", reference_names())
def test_cases_are_those_of_the_study_s_protocol(name: str) -> None:
    published = json.loads((importlib.resources.files("charact.record.published") / f"{name}.json").read_text())
    for entry in reference(name).manifest["cases"]:
        if entry["mode"] != "train":
            continue
        protocol, workload = find_protocol(published["protocol"], entry["workload"]), all_workloads()[entry["workload"]]
        facts = entry["passes"]["training"]
        assert (entry["input_size"], entry["batch_size"]) == (protocol.input_size, protocol.batch_size)
        assert facts["num_epochs"] == protocol.num_epochs
        assert entry["precision"] == (protocol.precision or "fp32")
        assert entry["data"] in protocol.data
        assert entry["variant"] == workload.variants[0]


def test_an_unknown_reference_is_refused_with_those_there_are() -> None:
    with pytest.raises(UserError, match=r"there is no reference 'k80': choose from aalto-1, .+, northeastern-p100"):
        reference("k80")
