"""Decoys: bricks of unrelated models, which hide the models that a suite was generated for."""

import math
import secrets
from collections.abc import Collection, Iterable
from dataclasses import replace

from charact.bricks.suite.writer import CutModel

_MOST_FRAC = 0.5
"""Maximum share of a model's bricks used as decoys; a complete model would look like a requested one."""


def drawn_decoys(others: Iterable[CutModel], known: Collection[str], number: int) -> list[CutModel]:
    """Return models reduced to randomly chosen bricks that together contain `number` new bricks.

    The choice uses the system's random numbers, so that it cannot be reproduced.

    Args:
        others: models that were not requested, in random order; only as many as needed are consumed.
        known: identifiers of the suite's bricks.
        number: number of decoys; the result has fewer if the models have fewer.
    """
    random, taken, found, left = secrets.SystemRandom(), set(known), [], number
    for model in others:
        new = [brick for brick in model.bricks if brick.id not in taken]
        chosen = random.sample(new, min(left, math.ceil(len(new) * _MOST_FRAC)))
        taken.update(brick.id for brick in chosen)
        left -= len(chosen)
        found.append(replace(model, bricks=tuple(chosen)))
        if left == 0:
            break
    return found
