"""`charact run` on ranks that read text: tokens/s and MFU of each, and of all together."""

from pathlib import Path
from statistics import median

import pytest
from support.forked import Server
from support.ranks import SCRIPT, run_ranks

from charact.analysis.efficiency import flop_utilization as utilization
from charact.analysis.efficiency.flop_utilization import flop_utilization
from charact.analysis.ranks.job_rates import job_rates
from charact.machine.datasheets import Datasheet

NUM_WORDS, WIDTH, BATCH, LENGTH, SLEEP_S = 64, 16, 4, 8, 0.02  # as in the script
PEAK = 1e12


@pytest.mark.slow
def test_tokens_and_utilization_of_ranks(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(utilization, "datasheet", lambda name: Datasheet({"fp32": PEAK}, 1e9, "by hand"))
    run = run_ranks(server, tmp_path, script=SCRIPT.with_name("text_ranks.py"))
    rates, shares = 0.0, []
    for rank, entry in enumerate(run.entries):
        positions, timing = BATCH * LENGTH * (rank + 1), entry.passes.timing
        assert timing.num_iterations is not None
        assert timing.num_tokens == positions * 3 // 4 * timing.num_iterations
        assert timing.num_padding == positions // 4 * timing.num_iterations
        rows = run.iterations[run.iterations["case"] == entry.case]
        walls = rows.groupby("iteration")["host_s"].sum().tolist()
        assert min(walls) >= SLEEP_S
        rates += timing.num_tokens / sum(walls)
        shares.append(3 * 2 * positions * WIDTH * NUM_WORDS / median(walls) / PEAK)
    assert len(shares) == 2
    assert flop_utilization(run)["mfu_frac"].tolist() == pytest.approx(shares, rel=0.01)
    (_, job), = job_rates(run).iterrows()
    assert job["tokens_per_s"] == pytest.approx(rates)
    assert job["mfu_frac"] == pytest.approx(sum(shares) / 2, rel=0.01)
