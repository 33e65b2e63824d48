"""Groups of slow iterations: each pattern is recognized by what the slow iterations have in common."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from charact.analysis.findings._slow_groups import SlowGroup, slow_groups

TYPICAL_S, SLOW_S = 0.01, 0.3


def iterations(num: int, slow: list[int], phase: str = "other", **columns: Any) -> pd.DataFrame:
    """Return rows of `program_iterations` with 10 ms each, but 300 ms at some positions, and little noise."""
    noise = np.random.default_rng(0).uniform(0.98, 1.02, num)
    walls = np.where(np.isin(np.arange(num), slow), SLOW_S, TYPICAL_S) * noise
    phases = {f"{name}_s": np.full(num, np.nan) for name in
              ("data", "forward", "loss", "backward", "update", "communication", "other")}
    phases["forward_s"] = np.full(num, TYPICAL_S / 2)
    phases[f"{phase}_s"] = walls - TYPICAL_S / 2
    facts = {"compile_s": np.nan, "gc_s": np.nan, "first_of_epoch": 0, "input_shapes": "[[8,3]]"} | columns
    places = {"index": range(num), "position": range(num), "kind": "timed"}
    return pd.DataFrame({**places, "wall_s": walls, **phases, **facts})


def only(rows: pd.DataFrame) -> tuple[str, SlowGroup]:
    ((reason, group),) = slow_groups(rows).items()
    return reason, group


def flags(num: int, where: list[int]) -> list[int]:
    return [int(number in where) for number in range(num)]


def test_equal_and_warm_up_iterations_have_no_group() -> None:
    assert slow_groups(iterations(100, [])) == {}
    assert slow_groups(iterations(120, [], first_of_epoch=flags(120, [0, 30, 60, 90]))) == {}
    kinds = ["warm-up"] * 3 + ["timed"] * 97
    assert slow_groups(iterations(100, [0, 1], kind=kinds)) == {}


@pytest.mark.parametrize("length", [4, 10, 30])
def test_first_iterations_of_epochs(length: int) -> None:
    first = list(range(0, 120, length))
    reason, group = only(iterations(120, first, "data", first_of_epoch=flags(120, first)))
    assert (reason, group.indices, group.phase) == ("epoch_start", first, "data")
    assert group.extra_s == pytest.approx(len(first) * (SLOW_S - TYPICAL_S), rel=0.05)


@pytest.mark.parametrize("shift", [0, -1])
def test_new_shapes_also_if_the_iteration_before_ends_late(shift: int) -> None:
    shapes = ["[[64,8]]"] * 80 + ["[[128,8]]"] * 80 + ["[[192,8]]"] * 80
    slow = [80 + shift, 160 + shift]
    reason, group = only(iterations(240, slow, input_shapes=shapes))
    assert reason == "new_input_shapes"
    assert set(slow) <= set(group.indices)
    assert group.extra_s == pytest.approx(2 * (SLOW_S - TYPICAL_S), rel=0.1)


def test_inputs_collections_and_no_pattern() -> None:
    slow = [7, 31, 50, 51, 77]
    shapes = [f"[[8,{900 if number in slow else 100 + number % 7}]]" for number in range(100)]
    reason, group = only(iterations(100, slow, "forward", input_shapes=shapes))
    assert (reason, group.indices) == ("long_inputs", slow)
    slow = [10, 37, 90, 91]
    gc_s = [0.28 if number in slow else np.nan for number in range(100)]
    assert only(iterations(100, slow, gc_s=gc_s))[0] == "garbage_collection"
    reason, group = only(iterations(100, [10, 37, 38, 90]))
    assert (reason, group.indices, group.period) == ("slow_iterations", [10, 37, 38, 90], None)


@pytest.mark.parametrize("period", [2, 3, 10, 25])
def test_periodic_work(period: int) -> None:
    slow = list(range(period - 1, 200, period))
    reason, group = only(iterations(200, slow))
    assert (reason, group.indices, group.period) == ("periodic_work", slow, period)


def test_two_reasons_share_no_iteration() -> None:
    first, saved = [0, 50, 100, 150], list(range(24, 200, 25))
    groups = slow_groups(iterations(200, first + saved, "data", first_of_epoch=flags(200, first)))
    assert set(groups) == {"epoch_start", "periodic_work"}
    assert groups["epoch_start"].indices == first
    assert groups["periodic_work"].indices == saved
    saved = list(range(24, 200, 25))
    groups = slow_groups(iterations(200, sorted([*saved, 30, 95, 96, 142])))
    assert (groups["periodic_work"].indices, groups["periodic_work"].period) == (saved, 25)
    assert groups["slow_iterations"].indices == [30, 95, 96, 142]
