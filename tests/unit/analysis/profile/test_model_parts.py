"""Parts of a program with several models, and what its record says of how its phases were found."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.records import watched_rows, write_watched

from charact.analysis.common.script_attribution import attribution, is_watched, sampled_frames, sampled_share
from charact.analysis.profile.breakdown import part_breakdown, phase_breakdown
from charact.analysis.profile.case_summary import phase_times
from charact.analysis.profile.machine_speed import TimedIteration, current_speed
from charact.record.reader import Run, load_run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A pair of models: 4 iterations of 100 ms, and one of 150 ms in which only D was updated."""
    return load_run(write_watched(tmp_path / "runs"))


def times(frame: pd.DataFrame, *index: str) -> dict[Any, float]:
    return frame.astype({name: object for name in index}).fillna("").set_index(list(index))["time_s"].to_dict()


def test_parts_sum_to_phases_and_phases_to_the_headline(run: Run, record: Path) -> None:
    parts = part_breakdown(run)
    phases = phase_breakdown(run)
    assert parts["share_frac"].sum() == pytest.approx(1)
    assert parts["time_s"].sum() == pytest.approx(0.1)  # the median iteration
    by_phase = parts.groupby("phase")["time_s"].sum()
    assert by_phase.to_dict() == pytest.approx(phases.set_index("phase")["time_s"].to_dict())
    parts = times(part_breakdown(run), "part", "phase")
    # 4 × 100 + 150 = 550 ms, of which D's forward has 5 × 20 and G's 4 × 10 ms; in shares of the 100 ms headline.
    assert parts["netD", "forward"] == pytest.approx(0.1 * 100 / 550)
    assert parts["netG", "forward"] == pytest.approx(0.1 * 40 / 550)
    assert parts["", "data"] == pytest.approx(0.1 * 50 / 550)
    parts = part_breakdown(run)
    assert list(parts["part"].fillna("none").unique()) == ["netD", "netG", "none"]
    assert list(parts.loc[parts["part"] == "netD", "phase"]) == ["forward", "loss", "backward", "update"]
    assert part_breakdown(load_run(record)).empty


def test_statistics_of_a_phase_are_over_iterations_not_over_parts(run: Run) -> None:
    forward = phase_breakdown(run).set_index("phase").loc["forward"]
    assert forward["median_s"] == pytest.approx(0.030)  # D's 20 ms and G's 10 ms
    assert forward["mean_s"] == pytest.approx((4 * 0.030 + 0.020) / 5)
    assert forward["host_s"] == forward["mean_s"]
    assert pd.isna(forward["device_s"])
    loss = phase_breakdown(run).set_index("phase").loc["loss"]  # in the last iteration only
    assert (loss["median_s"], loss["mean_s"]) == pytest.approx((0.0, 0.005 / 5))
    rows = phase_times(run)
    assert not rows.duplicated(["case", "iteration", "phase"]).any()
    assert rows["time_s"].sum() == pytest.approx(0.55)


def test_device_times_of_parts_are_summed_too(tmp_path: Path) -> None:
    rows = [row | {"device_s": row["host_s"] / 2} for row in watched_rows()]
    phases = phase_breakdown(load_run(write_watched(tmp_path, rows=rows))).set_index("phase")
    assert phases.loc["forward", "device_s"] == pytest.approx((4 * 0.015 + 0.010) / 5)
    assert phases.loc["loss", "device_s"] == pytest.approx(0.0025 / 5)
    assert phases["time_s"].sum() == pytest.approx(0.05)


def test_attribution_is_of_watched_programs_only(run: Run, record: Path) -> None:
    found = attribution(run).iloc[0]
    assert found[["attributed_frac", "inferred_frac", "num_warmup_iterations"]].tolist() == [0.95, 0.02, 1]
    assert pd.isna(found["compile_s"])
    assert attribution(load_run(record)).empty
    assert (is_watched(run), is_watched(load_run(record))) == (True, False)


def test_sampled_frames_share_out_the_time_of_a_phase(run: Run) -> None:
    frames = sampled_frames(run)
    assert frames["share_frac"].tolist() == [0.75, 0.2]  # of 40 samples; 2 at places that were not kept
    # `other` is 10 ms in 4 iterations and 55 ms in the last: 19 ms in the mean.
    assert frames["time_s"].tolist() == pytest.approx([0.75 * 0.019, 0.2 * 0.019])
    assert pd.isna(frames["library"][1])
    assert sampled_frames(run, "data").empty
    frames = {"num_data_samples": 4, "data_frames": [{"place": "d.py:1", "function": "f", "library": None,
                                                      "num_samples": 3}]}
    run.manifest["cases"][0]["passes"]["frames"] |= frames
    found = sampled_frames(Run(run.path, run.manifest, partial=False, _tables={"iterations": run.iterations}), "data")
    # `data` is 10 ms in each iteration.
    assert found["time_s"].tolist() == pytest.approx([0.75 * 0.01])


@pytest.mark.parametrize(("share_frac", "num_samples", "text"), [
    (0.75, 6, "75 % (41–93 %)"), (0.35, 7, "35 % (18–57 %)"), (1.0, 8, "100 % (68–100 %)")])
def test_a_share_of_samples_has_wilsons_interval(share_frac: float, num_samples: int, text: str) -> None:
    assert sampled_share(pd.Series({"share_frac": share_frac, "num_samples": num_samples})) == text


def timed(training: bool = True, batch_size: int | None = None, **phase_s: float) -> TimedIteration:
    return TimedIteration(training, 0.0, phase_s, batch_size)


@pytest.mark.parametrize(("phase_s", "bottleneck", "is_bound"), [
    ({"data": 0.29, "forward": 0.2, "backward": 0.51}, "backward", False),
    ({"data": 0.31, "forward": 0.2, "backward": 0.49}, "data", True),
    ({"data": 0.31, "forward": 0.2, "other": 0.49}, "other", True),
    ({"data": 0.1, "forward": 0.5, "communication": 0.4}, "communication", True),
    ({"forward": 1.0}, "forward", False),
])
def test_what_computes_nothing_is_the_bottleneck_from_30_percent_on(
        phase_s: dict[str, float], bottleneck: str, is_bound: bool) -> None:
    now = current_speed([timed(**phase_s)])
    assert (now.bottleneck, now.is_bound) == (bottleneck, is_bound)
    assert now.share_frac == pytest.approx(phase_s)


def test_speed_is_of_the_mode_of_the_last_iteration() -> None:
    latest = [timed(forward=1.0), timed(forward=2.0, loss=1.0), timed(forward=2.0), timed(False, forward=9.0)]
    now = current_speed(latest[:3])
    assert (now.training, now.num_iterations, now.median_s) == (True, 3, 2.0)
    assert now.share_frac == pytest.approx({"forward": 5 / 6, "loss": 1 / 6})
    assert current_speed(latest).share_frac == {"forward": 1.0}
    assert (current_speed(latest).training, current_speed(latest).median_s) == (False, 9.0)
    assert current_speed(latest).samples_per_s is None
    assert current_speed([*latest, timed(False, 27, forward=9.0)]).samples_per_s == 3.0
    rollout = [timed(True, 6, forward=3.0), timed(True, None, forward=1.0)]
    assert current_speed([timed(True, None, forward=1.0), *rollout, *rollout]).samples_per_s == 12 / 8
