"""Use of the cores by a case: shares worked out by hand."""

from pathlib import Path
from typing import Any

import pytest
from support.judged import judged

from charact.analysis.profile.core_use import Disturbance, core_use, disturbance
from charact.record.reader import Run

CASE = "net-32-b8-train-fp32-cpu"


def timed(tmp_path: Path, **use: Any) -> Run:
    """An iteration of 100 ms, timed for 10 s on 4 cores."""
    facts = {"length_s": 10.0, "num_usable_cores": 4, **use}
    return judged(tmp_path, {"forward": 0.1},
                  entry={"passes": {"timing": {"status": "ok", "reason": None, "core_use": facts}}})


@pytest.mark.parametrize(("processor_s", "others_s", "waiting_s", "stolen_s", "lost_frac"), [
    (30.0, 10.0, 10.0, 0.0, 0.25),  # the others held what it waited for
    (19.0, 1.0, 1.0, 0.0, 0.05),
    (30.0, 2.0, 10.0, 0.0, 2 / 32),  # the rest of the waiting is for its own threads
    (30.0, 9.0, 0.0, 0.0, 0.0),  # the others used cores that it did not want
    (30.0, 10.0, 0.0, 8.0, 6 / 36),  # three quarters of what the host took were its own
    (0.0, 0.0, 0.0, None, 0.0),
])  # fmt: skip
def test_lost_share(tmp_path: Path, processor_s: float, others_s: float, waiting_s: float, stolen_s: float | None,
                    lost_frac: float) -> None:
    run = timed(tmp_path, processor_s=processor_s, others_s=others_s, waiting_s=waiting_s, stolen_s=stolen_s)
    row = core_use(run).iloc[0]
    assert row["lost_frac"] == pytest.approx(lost_frac)
    assert row["used_cores"] == pytest.approx(processor_s / 10)
    assert row["wanted_cores"] == pytest.approx((processor_s + waiting_s) / 10)
    assert row["others_cores"] == pytest.approx((others_s + (stolen_s or 0.0)) / 10)
    found = disturbance(run, CASE)
    assert (found is None) == (lost_frac < 0.05)
    if found is not None:
        assert found.is_unreliable == (lost_frac >= 0.25)
        assert str(found) == f"other programs held {row['others_cores']:.1f} of 4 cores"


def test_an_older_record_and_a_system_that_does_not_count_waiting(tmp_path: Path) -> None:
    run = timed(tmp_path, processor_s=10.0, others_s=30.0, waiting_s=None, stolen_s=None)
    assert core_use(run)[["wanted_cores", "lost_frac"]].isna().all(axis=None)
    assert disturbance(run, CASE) is None
    run = judged(tmp_path, {"forward": 0.1})
    assert core_use(run).empty
    assert disturbance(run, CASE) is None


@pytest.mark.parametrize(("others_cores", "text"), [(0.04, "less than 0.1"), (0.05, "0.1"), (1.44, "1.4")])
def test_a_small_disturbance_is_not_zero(others_cores: float, text: str) -> None:
    assert str(Disturbance(others_cores, 2, 0.06)) == f"other programs held {text} of 2 cores"
