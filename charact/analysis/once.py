"""Analyses that others are made of are computed once a run."""

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec

import pandas as pd

from charact.store import Run

P = ParamSpec("P")
Analysis = Callable[Concatenate[Run, P], pd.DataFrame]


def once(analysis: Analysis[P]) -> Analysis[P]:
    """The analysis, which for a run and arguments that it knows gives a copy of what it found."""

    @wraps(analysis)
    def known(run: Run, /, *arguments: P.args, **named: P.kwargs) -> pd.DataFrame:
        key = (analysis.__qualname__, arguments, tuple(named.items()))
        if key not in run.found:
            run.found[key] = analysis(run, *arguments, **named)
        return run.found[key].copy()

    return known
