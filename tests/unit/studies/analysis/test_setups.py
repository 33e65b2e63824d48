"""Published times of Aalto's setups: by setup, next to those here, and their ratios."""

from math import prod
from pathlib import Path

import pandas as pd
import pytest
from support.records import write_inference

from charact.record.reader import load_run
from charact.studies.analysis.setups import (
    SETUPS,
    execution_times,
    inference_ratio,
    inference_times,
    published_ratios,
    set_times,
    setup_names,
)


def test_published_times_have_a_column_for_each_setup() -> None:
    times = execution_times([]).set_index(["workload", "data"])[list(SETUPS)]
    assert times.loc[("model_a", "mnist"), :].tolist() == [2317, 1021, 1661, 1718]
    assert times.loc[("model_b", "fashion_mnist"), :].tolist() == [27406, 14077, 15128, 16490]
    assert set_times([]).set_index("set").loc["smm", list(SETUPS)].tolist() == [16.85, 10.12, 16.39, 22.86]
    assert next(iter(setup_names().items())) == ("setup_1", "RTX 2060 (setup 1)")


def test_an_inference_is_a_warm_load_and_10_000_images(tmp_path: Path) -> None:
    run = load_run(write_inference(tmp_path, name="model_a"))
    row = inference_times([run]).drop_duplicates("workload").set_index("workload").loc["model_a"]
    # Warm loads take 0.2, 0.21 and 0.22 s; 100 batches of one image take 1 ms, 2 ms, ... 100 ms.
    assert row["modelled_s"] == pytest.approx(0.21 + 10_000 * 5.05 / 100)
    assert row["setup_1"] == 9.01
    assert inference_ratio(inference_times([run])).value is None  # Model B was not run


def test_the_ratio_of_inferences_is_that_of_the_modelled_times() -> None:
    times = pd.DataFrame({"workload": ["model_a", "model_b"], "modelled_s": [2.0, 5.0]})
    assert inference_ratio(times).value == 2.5


def test_published_ratios_are_geometric_means() -> None:
    ratios = published_ratios()
    for name, over, under in (("sparse", (16.85, 10.12, 16.39, 22.86), (1.88, 0.94, 2.14, 1.28)),
                              ("convolution", (183.75, 128.05, 152.65, 158.15), (16.85, 10.12, 16.39, 22.86)),
                              ("training", (27378, 14069, 15215, 16504), (2317, 1021, 1661, 1718)),
                              ("inference", (55.85, 51.36, 56.88, 50.72), (9.01, 8.72, 27.46, 11.61))):
        assert ratios[name] == pytest.approx(prod(a / b for a, b in zip(over, under, strict=True)) ** 0.25)
