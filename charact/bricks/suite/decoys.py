"""Decoys: bricks of models that were not asked for, so that a suite does not tell which models it is made for."""

import math
import secrets
from collections.abc import Collection, Iterable
from dataclasses import replace

from charact.bricks.suite.writer import CutModel

_MOST_FRAC = 0.5
"""Share of a model's bricks that may be decoys: a whole model among them would be one more that was asked for."""


def drawn_decoys(others: Iterable[CutModel], known: Collection[str], number: int) -> list[CutModel]:
    """Models, each with some of its bricks alone, that together have so many which are not known.

    Which ones is drawn from what the system gives as random, and so cannot be found out by drawing again.

    Args:
        others: models that were not asked for, in a random order; no more are taken than are needed.
        known: bricks that the suite has, or will have.
        number: how many decoys; fewer where the models do not have as many.
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
