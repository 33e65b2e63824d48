"""Rates of all ranks of a program together."""

import pandas as pd

from charact.analysis.common.cache import memoize
from charact.analysis.efficiency.flop_utilization import flop_utilization
from charact.analysis.profile.case_summary import case_summary
from charact.analysis.ranks.matching import rank_cases, rank_presence
from charact.record.reader import Run

_NUMBERS = ["num_ranks", "samples_per_s", "tokens_per_s", "mfu_frac", "hfu_frac"]


@memoize
def job_rates(run: Run) -> pd.DataFrame:
    """Return the rates of each program of several ranks, one row for each.

    Columns: program; case, that of its first rank; num_ranks; samples_per_s and tokens_per_s, sums over the ranks;
    mfu_frac, model FLOP/s of all ranks / (num_ranks × peak of a device), and hfu_frac with recomputed FLOP, null if no
    rank recomputes; reason, why the shares are null. If a rank lacks a number or is missing, it is null.
    """
    rows = []
    facts = rank_cases(run)[["program", "case"]]
    facts = facts.merge(case_summary(run)[["case", "samples_per_s", "tokens_per_s"]], on="case")
    facts = facts.merge(flop_utilization(run), on="case")
    presence = rank_presence(run).set_index("program")
    for program, ranks in facts.groupby("program", sort=False):
        num_ranks = len(ranks)
        row = {"program": program, "case": ranks["case"].iloc[0], "num_ranks": num_ranks}
        if presence["num_missing"][program]:
            rows.append(row | {"reason": presence["text"][program]})
            continue
        peaks = ranks["peak_flop_per_s"]
        shares = ranks["hfu_frac"].fillna(ranks["mfu_frac"]) if ranks["hfu_frac"].notna().any() else ranks["hfu_frac"]
        rows.append(row | {
            **{name: ranks[name].sum(min_count=num_ranks) for name in ("samples_per_s", "tokens_per_s")},
            "mfu_frac": (ranks["mfu_frac"] * peaks).sum(min_count=num_ranks) / peaks.sum(),
            "hfu_frac": (shares * peaks).sum(min_count=num_ranks) / peaks.sum(),
            "reason": next(iter(ranks["mfu_reason"].dropna()), None)})
    table = pd.DataFrame(rows, columns=["program", "case", *_NUMBERS, "reason"])
    return table.astype(dict.fromkeys(["program", "case"], "str") | dict.fromkeys(_NUMBERS, "float64")
                        | {"reason": "object"})
