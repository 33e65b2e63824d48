"""Rates of all ranks together, of records made by hand."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.records import case_entry, case_tables, manifest, run_of

from charact.analysis.efficiency import flop_utilization as utilization
from charact.analysis.efficiency.flop_utilization import flop_utilization
from charact.analysis.ranks.job_rates import job_rates
from charact.machine.datasheets import Datasheet
from charact.record.reader import Run

PEAK = 1e13
MEDIAN_S = 0.1 * 1.0045
FLOP = 1.95e11


@pytest.fixture(autouse=True)
def peak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(utilization, "datasheet", lambda name: Datasheet({"fp32": PEAK}, 1e9, "by hand"))


def ranks(out: Path, *facts: dict[str, Any], world_size: int = 2) -> Run:
    """A run with a case for each rank; `facts` has its numbers of tokens in 10 iterations and recomputed FLOP."""
    cases = []
    for rank, of_rank in enumerate(facts):
        entry = case_entry("gpt", 32, "train")
        entry["passes"]["timing"]["num_tokens"] = of_rank["num_tokens"]
        entry["passes"]["flop"]["recomputed_flop"] = of_rank.get("recomputed_flop", 0.0)
        cases.append((entry | {"case": f"gpt-rank{rank}", "rank": rank, "world_size": world_size},
                      case_tables("train", 32)))
    return run_of(out, *cases, **manifest("profile"))


def test_tokens_are_summed_and_shares_are_of_all_devices(tmp_path: Path) -> None:
    run = ranks(tmp_path, {"num_tokens": 1000}, {"num_tokens": 3000, "recomputed_flop": 0.95e11})
    (_, row), = job_rates(run).iterrows()
    assert (row["program"], row["case"], row["num_ranks"]) == ("gpt", "gpt-rank0", 2)
    assert row["tokens_per_s"] == pytest.approx(400 / MEDIAN_S)
    assert row["samples_per_s"] == pytest.approx(16 / MEDIAN_S)
    assert row["mfu_frac"] == pytest.approx((FLOP + 1e11) / MEDIAN_S / (2 * PEAK))
    assert row["hfu_frac"] == pytest.approx(2 * FLOP / MEDIAN_S / (2 * PEAK))
    assert flop_utilization(run)["mfu_frac"].tolist() == pytest.approx(
        [FLOP / MEDIAN_S / PEAK, 1e11 / MEDIAN_S / PEAK])


def test_a_rank_that_lacks_a_number_leaves_none_for_all(tmp_path: Path) -> None:
    (_, row), = job_rates(ranks(tmp_path, {"num_tokens": 1000}, {"num_tokens": None})).iterrows()
    assert pd.isna(row["tokens_per_s"])
    assert row["mfu_frac"] == pytest.approx(FLOP / MEDIAN_S / PEAK)
    assert pd.isna(row["hfu_frac"])


def test_a_missing_rank_leaves_no_number(tmp_path: Path) -> None:
    run = ranks(tmp_path, {"num_tokens": 1000}, {"num_tokens": 1000}, world_size=3)
    (_, row), = job_rates(run).iterrows()
    assert row[["samples_per_s", "tokens_per_s", "mfu_frac", "hfu_frac"]].isna().all()
    assert "rank 2 is missing" in row["reason"]


def test_a_run_without_ranks_has_no_row(tmp_path: Path) -> None:
    run = run_of(tmp_path, (case_entry("gpt", 32, "train"), case_tables("train", 32)))
    assert job_rates(run).empty
