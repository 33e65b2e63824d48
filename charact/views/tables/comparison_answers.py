"""The answer of a comparison in sentences: which group is faster, by how much, and in which phases."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from charact.analysis.common.significance import MIN_TURNS
from charact.analysis.compare import Group, ignored_differences, metric_ratios, ratios
from charact.analysis.compare.group_facts import disturbed_cases
from charact.analysis.compare.ratios import phases_by_side, run_times
from charact.analysis.compare.selection import most_different, of_places
from charact.analysis.compare.turns import separation
from charact.views.tables import format as fmt
from charact.views.tables.comparison_tables import DIFFERS, INCONCLUSIVE, SAME, with_verdicts

_MOST_NAMED = 3
"""Maximum number of cases that have a sentence of their own, largest differences first."""
_MOST_PHASES = 2
"""Maximum number of phases that a sentence names."""
_WIDE = 1.1
"""Minimum ratio of an interval's ends at which more runs are advised."""
_MOST_RUNS = 10
"""Maximum number of runs of a group whose times are listed."""
_MIN_SHARE = 0.1
"""Minimum share of a difference at which its phase is named."""


def answers(sides: Sequence[Group]) -> list[str]:
    """Return sentences that say which group is faster, for at most `_MOST_NAMED` cases that differ most.

    A sentence is about one case in one group, against the baseline, the first of `sides`. If others are left out, a
    line before the sentences counts all by verdict. After turns, a line says how many ran, and why they stopped.
    Where matched cases differ, a line before all says in what.
    """
    judged = judged_cases(sides)
    only, num_left = most_different(sides, _MOST_NAMED)
    named = of_places(judged, only)
    return [*filter(None, [ignored_sentence(sides)]),
            *([f"Of {len(judged):,} cases: {verdict_counts(judged)}. Those that differ most:"] if num_left else []),
            *(f"{row.case}: {sentence(row, sides)}{_of_runs(row, sides)}" for row in fmt.rows(named)),
            *filter(None, [turns_sentence(sides)])]


def verdict_counts(judged: pd.DataFrame) -> str:
    """Return how many rows of `judged_cases` have each verdict, the most frequent first: `3 faster, 1 slower`."""
    return ", ".join(f"{number:,} {verdict if number == 1 else str(verdict).replace('differs', 'differ')}"
                     for verdict, number in judged["verdict"].value_counts().items())


def turns_sentence(sides: Sequence[Group]) -> str:
    """Return how many turns ran and why they stopped, as a sentence; empty if the runs were not measured by turns."""
    if (turns := sides[0].turns) is None:
        return ""
    count = f"{turns.num_turns} turn{'' if turns.num_turns == 1 else 's'}, one run of each in a turn"
    return {
        "decided": f"Stopped after {count}: each ratio’s interval excludes 1, or lies within 3 % of it; "
                   "those of a script’s cases need not that take less than a tenth of its time.",
        "time": f"Stopped after {count}, undecided: the time was up, --max-minutes allows more."
                + (" Fewer turns decide nothing, so that these may have taken longer." if turns.num_turns <= MIN_TURNS
                   else ""),
        "repeat": f"Stopped after {count}, as --repeat asks for.",
        "interrupted": f"Stopped after {count}: interrupted. This is the answer so far.",
        "untimed": f"Stopped after {count}: no time decides.",
    }[turns.ending]


def ignored_sentence(sides: Sequence[Group]) -> str:
    """Return in what the matched cases of the groups differ, as a sentence; empty if they are equal."""
    rows = ignored_differences(sides)
    each = [f"{name} ({', '.join(f'{row.values} in {row.side}' for row in fmt.rows(of_name))})"
            for name, of_name in rows.groupby("name", sort=False)]
    return f"No case is equal in all groups: the cases compared differ in {' and in '.join(each)}." if each else ""


def _of_runs(row: Any, sides: Sequence[Group]) -> str:
    """Return the time of each run behind a row of `judged_cases`; empty if a group has one run, or very many."""
    base, new = run_times(sides, row.case, row.side)
    if not (1 < len(base) <= _MOST_RUNS and 1 < len(new) <= _MOST_RUNS):
        return ""
    return (f"; in the runs, {sides[0].label} took {', '.join(map(fmt.seconds, base))}, and {row.side} "
            f"{', '.join(map(fmt.seconds, new))}")


def judged_cases(sides: Sequence[Group]) -> pd.DataFrame:
    """Return the rows of `ratios` by case that have a ratio, with the column verdict: see `with_verdicts`."""
    timed = ratios(sides, "case")
    disturbed = frozenset(disturbed_cases(sides)["case"])
    return with_verdicts(timed[timed["ratio"].notna()], disturbed=disturbed, by_turns=sides[0].turns is not None)


def sentence(row: Any, sides: Sequence[Group]) -> str:
    """Return a sentence about a row of `judged_cases`: how much more or less time its group takes than the baseline.

    It has the 95 % interval, both times and the phases with most of the difference, or says that no difference is
    shown. If one is, it says whether the times of both groups' runs overlap. It does not name the case. If the batch
    sizes differ, it begins with the samples per second.
    """
    is_decided = row.verdict in ("faster", "slower", DIFFERS)
    return _throughput(row, sides) + _compared(row, sides) + (_separated(row, sides) if is_decided else "")


def throughput(row: Any, sides: Sequence[Group]) -> Any:
    """Return the row of `metric_ratios` with the samples per second of a row of `judged_cases`.

    None if the batch sizes are equal: the time of an iteration then says the same; and if they are not known.
    """
    if "batch_size" not in sides[0].ignored:
        return None
    rates = metric_ratios(sides).query("metric == 'throughput' and case == @row.case and side == @row.side")
    return next(fmt.rows(rates.dropna(subset=["ratio"])), None)


def _throughput(row: Any, sides: Sequence[Group]) -> str:
    """Return how the samples per second of a row of `judged_cases` compare, if `throughput` has them."""
    if (rate := throughput(row, sides)) is None:
        return ""
    within = "" if fmt.absent(rate.low) else f" (95 % interval {factor(rate.low)}–{factor(rate.high)})"
    within += "" if rate.significant else ", which the ranks of the times do not show"
    return (f"{row.side} has {factor(rate.ratio)}× the samples/s of {sides[0].label}{within}: "
            f"{fmt.number(rate.value)} against {fmt.number(rate.base)}; for an iteration, ")


def speed_text(row: Any) -> str:
    """Return how many times faster or slower than the baseline a row of `judged_cases` is: `1.47× faster`."""
    return f"{factor(max(row.ratio, 1 / row.ratio))}× {'slower' if row.ratio > 1 else 'faster'}"


def interval_text(row: Any) -> str:
    """Return the 95 % interval of the number in `speed_text`: `95 % interval 1.44–1.48`; empty without one.

    Its lower end is below 1 if the direction is not certain.
    """
    if fmt.absent(row.low):
        return ""
    low, high = (row.low, row.high) if row.ratio > 1 else (1 / row.high, 1 / row.low)
    return f"95 % interval {factor(low)}–{factor(high)}"


def factor(value: float) -> str:
    """Return a factor with three digits: 1.47."""
    return f"{value:#.3g}".removesuffix(".")


def _separated(row: Any, sides: Sequence[Group]) -> str:
    """Return that every run of a group was faster or slower than every run of the baseline; empty if it was not."""
    if (which := separation(sides, row.case, row.side)) is None:
        return ""
    what = "run" if sides[0].turns is None else "turn"
    return f"; every {what} of {row.side} was {which} than every {what} of {sides[0].label}"


def _compared(row: Any, sides: Sequence[Group]) -> str:
    new, base = row.side, sides[0].label
    if row.verdict in ("faster", "slower", DIFFERS):
        noise = "; one run each cannot show whether that is noise" if row.verdict == DIFFERS else ""
        within = f" ({interval_text(row)})" if interval_text(row) else ""
        return (f"{new} is {speed_text(row)} than {base}{within}: {fmt.seconds(row.time_s)} against "
                f"{fmt.seconds(row.base_s)}{_where(row, sides)}{noise}")
    if fmt.absent(row.low):
        return f"{new} takes {fmt.ratio(row.ratio)} the time of {base}; interval {fmt.missing(row.reason)}"
    if row.verdict == SAME:
        return (f"no difference larger than 3 %: the time of {new} is {fmt.share(row.low)} to {fmt.share(row.high)} of "
                f"that of {base}")
    again = ""
    if row.verdict == INCONCLUSIVE:
        again = "; other programs disturbed the runs: repeat it on an idle machine"
    elif row.high / row.low > _WIDE:
        more = "turns" if sides[0].turns is not None else "runs of each group"
        again = f"; more {more} narrow this interval"
    return (f"no difference shown: the time of {new} is {fmt.share(row.low)} to {fmt.share(row.high)} of that of "
            f"{base}{again}")


def _where(row: Any, sides: Sequence[Group]) -> str:
    """Return the phases with most of the difference of a case's times, as text: `, mostly in data (308 µs)`.

    At most two are named: each differs significantly, and has at least 10 % of the difference. The time is the change
    of the phase in an iteration, without its sign. Empty if these phases have at most half of the difference, or if a
    group has no times of phases.

    Args:
        row: a row of `judged_cases`.
        sides: the groups of runs, the baseline first.
    """
    judged = ratios(sides, "phase", frozenset([row.case]))
    differing = judged.loc[(judged["case"] == row.case) & (judged["side"] == row.side) & judged["significant"], "phase"]
    times = phases_by_side(sides, {row.case}).pivot_table("time_s", "phase", "side")  # they sum to the iteration
    if not {row.side, sides[0].label} <= set(times):
        return ""
    change_s = (times[row.side] - times[sides[0].label]).reindex(differing)
    shares = change_s / (row.time_s - row.base_s)
    largest = shares[shares >= _MIN_SHARE].nlargest(_MOST_PHASES)
    if largest.sum() <= 0.5:  # most of the difference is elsewhere
        return ""
    parts = " and ".join(f"{phase} ({fmt.seconds(abs(change_s[phase]))})" for phase in largest.index)
    return f", mostly in {parts}"
