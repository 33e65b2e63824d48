"""Times of bricks that are predicted from others': a law that is known, and what a record of them says."""

from pathlib import Path

import numpy as np
import pytest
from support.brick_runs import CASE, brick_run, composition

from charact.bricks.analysis.construction import BrickTimes, construct
from charact.bricks.suite.prediction import Sizes, predict, sizes_of

PLACES = [(rows, width) for rows in (8, 16, 32, 64, 128, 256) for width in (64, 128, 256, 512)]


def product_row(rows: int, width: int) -> dict[str, object]:
    return {"kind": "sequence", "layer_types": '["mm"]', "input_shapes": f"[[{rows}, {width}], [{width}, {width}]]",
            "literals": "[]", "flop": 2.0 * rows * width**2, "bytes": 4.0 * (2 * rows * width + width**2)}


def product_s(rows: int, width: int) -> float:
    """A machine of 100 GFLOP/s and 10 GB/s that takes 5 µs for any call."""
    return 5e-6 + 2e-11 * rows * width**2 + 4e-10 * (2 * rows * width + width**2)


def sizes(rows: int, width: int) -> Sizes:
    return sizes_of(product_row(rows, width))


def test_times_of_a_law_are_found_between_what_was_timed() -> None:
    wanted = [(16, 128), (64, 256), (128, 128), (32, 256)]
    known = [each for each in PLACES if each not in wanted]
    times, deviations = predict([sizes(*each) for each in known], np.array([product_s(*each) for each in known]),
                                [sizes(*each) for each in wanted])
    errors = np.log(times / np.array([product_s(*each) for each in wanted]))
    assert np.abs(errors).max() < 0.25
    assert np.abs(errors).mean() < 0.1
    assert (np.abs(errors) < 2 * deviations).all()


def test_a_brick_that_was_timed_is_predicted_as_it_was() -> None:
    seconds = np.array([product_s(*each) for each in PLACES])
    times, _ = predict([sizes(*each) for each in PLACES], seconds, [sizes(*PLACES[7])])
    assert times[0] == pytest.approx(seconds[7], rel=0.15)


def test_what_is_like_nothing_else_is_less_certain() -> None:
    known = [sizes(*each) for each in PLACES]
    other = Sizes("another", "other", (1.0,), (20.0, 20.0))
    _, deviations = predict(known, np.array([product_s(*each) for each in PLACES]), [sizes(48, 200), other])
    assert deviations[1] > 2 * deviations[0]


def test_doubled_times_are_predicted_doubled() -> None:
    known, wanted = [sizes(*each) for each in PLACES[::2]], [sizes(*each) for each in PLACES[1::2]]
    seconds = np.array([product_s(*each) for each in PLACES[::2]])
    once, _ = predict(known, seconds, wanted)
    twice, _ = predict(known, 2 * seconds, wanted)
    assert twice == pytest.approx(2 * once)


class TestRecord:
    def times(self, out: Path) -> BrickTimes:
        timed = {f"b{number}": {"forward": product_s(*place)} for number, place in enumerate(PLACES[::2])}
        rows = {name: product_row(*place) for name, place in zip(timed, PLACES[::2], strict=True)}
        left_out = product_row(*PLACES[1]) | {"status": "left_out", "reason": "not timed"}
        return BrickTimes(brick_run(out, timed, rows=rows | {"left": left_out}), CASE)

    def test_a_brick_that_was_left_out_has_a_time_and_says_so(self, tmp_path: Path) -> None:
        times = self.times(tmp_path)
        assert times.has("left", "forward")
        assert not times.has("left", "backward")
        assert (times.method("left"), times.method("b0")) == ("predicted", "measured")
        drawn = times.drawn("left", "forward", "host_s")
        assert len(drawn) == len(times.drawn("b0", "forward", "host_s"))
        assert drawn[0] == pytest.approx(product_s(*PLACES[1]), rel=0.25)
        assert np.std(np.log(drawn[1:])) > 0.1

    def test_a_construction_is_as_uncertain_as_its_predictions(self, tmp_path: Path) -> None:
        times = self.times(tmp_path)
        found = construct(composition(["b0", "left"]), times, "none")
        assert [row["method"] for row in found.pieces] == ["measured", "predicted"]
        row = next(row for row in found.latencies if row["strategy"] == "sequential")
        assert row["low_s"] < 0.95 * row["latency_s"] < 1.05 * row["latency_s"] < row["high_s"]

    def test_bricks_whose_work_is_not_known_teach_nothing(self, tmp_path: Path) -> None:
        timed = {f"b{number}": {"forward": product_s(*place)} for number, place in enumerate(PLACES[::2])}
        rows = {name: product_row(*place) for name, place in zip(timed, PLACES[::2], strict=True)}
        left_out = product_row(*PLACES[1]) | {"status": "left_out", "reason": "not timed"}
        odd = {"odd": product_row(*PLACES[1]) | {"flop": None, "bytes": None}}
        times = BrickTimes(brick_run(tmp_path, timed | {"odd": {"forward": 1.0}}, rows=rows | odd | {"left": left_out}),
                           CASE)
        alone = self.times(tmp_path / "alone").drawn("left", "forward", "host_s")
        assert times.drawn("left", "forward", "host_s")[0] == pytest.approx(alone[0])
        only_odd = brick_run(tmp_path / "odd", {"odd": {"forward": 1.0}}, rows=odd | {"left": left_out})
        assert not BrickTimes(only_odd, CASE).has("left", "forward")

    def test_without_any_time_nothing_is_predicted(self, tmp_path: Path) -> None:
        left_out = product_row(*PLACES[1]) | {"status": "left_out", "reason": "not timed"}
        times = BrickTimes(brick_run(tmp_path, {}, rows={"left": left_out}), CASE)
        assert not times.has("left", "forward")
