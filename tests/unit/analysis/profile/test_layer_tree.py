"""The numbers of a flame graph: each layer's work, and that of the layers inside it."""

from pathlib import Path

import pytest

from charact.analysis.profile.breakdown import operator_times
from charact.analysis.profile.layer_tree import layer_work
from charact.record.reader import load_run

CASE = "resnet50-224-b8-train-fp32-cpu"


def test_times_and_flop_of_all_layers_are_those_of_all_operators(record: Path) -> None:
    run = load_run(record)
    work, operators = (table[table["case"] == CASE] for table in (layer_work(run), operator_times(run)))
    for column in ("time_s", "flop"):
        assert work[column].sum() == pytest.approx(operators[column].sum())
    assert set(work["phase"]) == set(operators["phase"])
