"""Published gains from the faster GPU, and the host-bound share of profiled cases next to them."""

from pathlib import Path

import pandas as pd
import pytest
from support.records import write_record

from charact.analysis.efficiency.time_bounds import time_limits
from charact.record.reader import Run, load_run
from charact.studies.analysis.gains import (
    gain_correlation,
    gains_and_host_shares,
    host_shares,
    longer_iterations,
    published_gains,
    trainings_and_gains,
)


def profiled(out: Path, workload: str, data: str | None) -> Run:
    """A run of `charact profile` of one case on a data set."""
    run = load_run(write_record(out, name=workload, sizes=(224,), modes=("train",)))
    (case,) = run.manifest["cases"]
    case["data"] = data
    return run


def test_an_iteration_is_the_time_over_the_number_of_batches() -> None:
    rows = published_gains().set_index(["workload", "data"])
    cifar, mnist = rows.loc[("resnet18", "cifar10")], rows.loc[("resnet18", "mnist")]
    assert cifar["iteration_s_p100"] == pytest.approx(693.6736 / 50_000)  # 10 epochs of 5,000 batches
    assert mnist["iteration_s_k80"] == pytest.approx(1462.0754 / 60_000)
    assert cifar["beyond_s_p100"] == pytest.approx(693.6736 / 50_000 - 518.9218 / 60_000)
    assert cifar["gain"] == pytest.approx(1823.6968 / 693.6736)
    assert pd.isna(mnist["beyond_s_p100"])


def test_the_parts_of_a_longer_iteration_sum_to_it() -> None:
    rows = longer_iterations().query("machine == 'P100'").pivot(index=["workload", "data"], columns="part",
                                                                values="time_s")
    assert set(rows.index) == {("googlenet", "cifar10"), ("resnet18", "cifar10")}
    of_resnet = rows.loc[("resnet18", "cifar10")]
    assert of_resnet["as on MNIST"] == pytest.approx(518.9218 / 60_000)
    assert of_resnet.sum() == pytest.approx(693.6736 / 50_000)


def test_the_host_bound_share_is_data_and_launches(tmp_path: Path) -> None:
    run = profiled(tmp_path, "resnet18", "mnist")
    limits = time_limits(run).set_index("limit")["share_frac"]
    (row,) = host_shares([run]).to_dict("records")
    assert (row["workload"], row["data"]) == ("resnet18", "mnist")
    assert row["data_frac"] == pytest.approx(limits["data"])
    assert 0 < row["data_frac"] < row["host_frac"] < 1
    assert row["host_frac"] == pytest.approx(limits["data"] + limits.get("host", 0.0))


def test_a_case_on_synthetic_data_stands_for_data_sets_without_their_own(tmp_path: Path) -> None:
    runs = [profiled(tmp_path / "a", "resnet18", "mnist"), profiled(tmp_path / "b", "resnet18", "synthetic")]
    rows = gains_and_host_shares(runs).set_index(["workload", "data"])
    assert rows["read"].loc["resnet18"].to_dict() == {"cifar10": "synthetic", "mnist": "mnist", "kmnist": "synthetic"}
    assert rows.loc["googlenet", ["host_frac", "read"]].isna().all(axis=None)
    assert trainings_and_gains(runs)[["over_k80", "over_p100"]].isna().all(axis=None)  # profiles alone


@pytest.mark.parametrize(("shares", "expected"), [
    ([0.1, 0.2, 0.3, 0.4], -1.0), ([0.4, 0.3, 0.2, None], 1.0), ([0.2, 0.2, 0.1, 0.1], None), ([None] * 4, None)])
def test_the_correlation_is_of_ranks(shares: list[float | None], expected: float | None) -> None:
    rows = pd.DataFrame({"gain": [2.9, 2.8, 2.7, 1.0], "host_frac": shares}).astype("float64")
    found = gain_correlation(rows)
    assert found == (None if expected is None else pytest.approx(expected))
