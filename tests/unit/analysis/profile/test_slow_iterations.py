"""Iterations that took much longer than the others of their case."""

from pathlib import Path

import pytest
from support import records

from charact.analysis.profile.breakdown import phase_breakdown
from charact.analysis.profile.case_summary import slow_iterations
from charact.record.reader import Run


def run_of(tmp_path: Path, other_s: list[float]) -> Run:
    """Iterations with a forward of 9 ms and this time in no phase."""
    rows = [{"iteration": number, "phase": phase, "host_s": seconds, "device_s": None}
            for number, rest_s in enumerate(other_s) for phase, seconds in (("forward", 0.009), ("other", rest_s))]
    return records.run_of(tmp_path, (records.case_entry("r", 32, "infer"), {"iterations": rows}))


def test_a_checkpoint_is_not_in_the_shares(tmp_path: Path) -> None:
    run = run_of(tmp_path, [0.001] * 30 + [0.344] + [0.001] * 29)
    phases = phase_breakdown(run).set_index("phase")
    assert phases["time_s"].to_dict() == pytest.approx({"forward": 0.009, "other": 0.001})
    assert phases.loc["other", "mean_s"] == pytest.approx((59 * 0.001 + 0.344) / 60)
    (row,) = slow_iterations(run).to_dict("records")
    assert (row["num_slow"], row["num_iterations"], row["phase"]) == (1, 60, "other")
    assert row["extra_s"] == pytest.approx(0.343)
    assert row["extra_frac"] == pytest.approx(0.343 / (59 * 0.010 + 0.353))
    assert row["phase_frac"] == pytest.approx(1.0)


@pytest.mark.parametrize("other_s", [
    [0.001, 0.020] * 10,  # no iteration is typical
    [0.001] * 19 + [0.005],  # less than 1.5 times the median
    [0.001, 0.344],  # too few to say
])  # fmt: skip
def test_others_are_all_in_the_shares(tmp_path: Path, other_s: list[float]) -> None:
    run = run_of(tmp_path, other_s)
    phases = phase_breakdown(run).set_index("phase")
    total_s = 0.009 * len(other_s) + sum(other_s)
    assert phases["share_frac"].to_dict() == pytest.approx(
        {"forward": 0.009 * len(other_s) / total_s, "other": sum(other_s) / total_s})
    assert slow_iterations(run).empty
