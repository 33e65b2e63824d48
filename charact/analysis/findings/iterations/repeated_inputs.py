"""Each call of a model computes the inputs of the call before again, and one more, as in generation without a cache."""

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pandas as pd

from charact.analysis.findings._finding import Finding
from charact.analysis.findings._watched_case import WatchedCase
from charact.core.units import quantity, share

_FEWEST = 20
"""Minimum number of iterations."""
_MUCH_FRAC = 0.7
"""Minimum share of the iterations whose input is longer by one than that of the iteration before."""


def find(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding if the input of most inferences is that of the one before and one element more."""
    rows = case.iterations[case.iterations["input_shapes"].notna()]
    if case.trains or len(rows) < _FEWEST:
        return
    shapes = [json.loads(each) for each in rows["input_shapes"]]
    grows = pd.Series([False, *(_is_longer_by_one(before, after) for before, after in pairwise(shapes))], rows.index)
    if grows.mean() < _MUCH_FRAC:
        return
    walls = rows.loc[grows, "wall_s"]
    total_s = float(walls.sum()) * case.num_iterations / len(case.iterations)
    shortest_s = float(walls.quantile(0.05))
    beyond_frac = max(1 - shortest_s / float(walls.mean()), 0.0)
    saving = case.saving_in_all(0.5 * beyond_frac * total_s, 0.95 * total_s, "modelled")
    if saving is None:
        return
    line = next(iter(case.lines("forward")), None)
    yield Finding(
        "each call of the model computes all earlier elements of the sequence again, for one new element",
        "keep what the model computed for earlier elements: past_key_values (use_cache=True) of a Transformer, the "
        "hidden state of a recurrent layer; and pass only the new element", saving,
        (f"in {share(float(grows.mean()))} of {len(rows):,} inferences, an input is longer by one than in the one "
         f"before; short ones take {quantity(shortest_s, 's')}, the mean is {quantity(float(walls.mean()), 's')}",),
        "medium", place=line.place if line else None, phase="forward", setting="use_cache",
        covers=frozenset({"time_trend", "long_inputs", "new_input_shapes", "slow_iterations"}))


def _is_longer_by_one(before: list[Any], after: list[Any]) -> bool:
    """Return whether two lists of shapes differ in one or more dimensions, each longer by one."""
    if [len(shape) for shape in before] != [len(shape) for shape in after]:
        return False
    changes = {new - old for old_shape, new_shape in zip(before, after, strict=True)
               for old, new in zip(old_shape, new_shape, strict=True)}
    return changes in ({1}, {0, 1})
