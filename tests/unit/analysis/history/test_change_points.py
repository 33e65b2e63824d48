"""Change points: rarely in noise, surely at a clear step, never at a single slow run."""

import builtins
import sys
from typing import Any

import numpy as np
import pytest
from change_points import NOISES, false_alarms, found_steps

from charact.analysis.history.change_points import MIN_VALUES, change_points, levels
from charact.core.errors import UserError

pytest.importorskip("ruptures", reason="needs ruptures: pip install 'charact[history]'")


@pytest.mark.parametrize(("noise", "most"), [
    ("normal", 0.025), ("heavy-tailed", 0.025), ("slow outliers", 0.025), ("correlated 0.3", 0.06),
    ("correlated 0.5", 0.09),
])
@pytest.mark.parametrize("length", [12, 30])
def test_noise_rarely_has_a_change_point(noise: str, most: float, length: int) -> None:
    assert false_alarms(noise, length, 600) <= most


def test_a_step_of_ten_percent_is_found() -> None:
    assert found_steps("normal", 30, 0.02, 100) >= 0.98
    assert found_steps("normal", 12, 0.02, 200) >= 0.7
    assert found_steps("slow outliers", 30, 0.02, 100) >= 0.8


def test_levels_and_outliers() -> None:
    noise = np.random.default_rng(0).normal(0, 0.01, 60)
    values = np.repeat([1.0, 1.2, 0.9], 20) + noise
    assert change_points(values.tolist()) == [20, 40]
    found = levels(values.tolist(), [20, 40])
    assert len(found) == 60
    assert found[0] == np.median(values[:20])
    assert found[20] == found[39] == np.median(values[20:40])
    values = np.random.default_rng(1).normal(1, 0.01, 30)
    values[7] = 5.0
    values[20:22] = 3.0
    assert change_points(values.tolist()) == []
    assert change_points([3.0] * 50) == []
    assert change_points([3.0] * 10 + [4.0] * 10) == [10]
    assert change_points([1.0] * 4 + [2.0] * (MIN_VALUES - 5)) == []
    assert change_points([]) == []
    assert levels([], []) == []


def test_without_the_library_the_remedy_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    find = builtins.__import__

    def fail(name: str, *arguments: Any, **named: Any) -> Any:
        if name == "ruptures":
            raise ImportError(name)
        return find(name, *arguments, **named)

    monkeypatch.delitem(sys.modules, "ruptures", raising=False)
    monkeypatch.setattr(builtins, "__import__", fail)
    with pytest.raises(UserError, match=r"^change points need ruptures: pip install 'charact\[history\]'$"):
        change_points([1.0] * 10 + [2.0] * 10)


def test_every_noise_has_the_spread_of_one() -> None:
    for name, noise in NOISES.items():
        values = noise(np.random.default_rng(0), 2000)
        assert 0.8 < np.median(np.abs(values)) / 0.6745 < 1.5, name
