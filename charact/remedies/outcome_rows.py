"""The result of a race as rows, which the terminal, the report and JSON show."""

from collections.abc import Iterator
from typing import Any

import pandas as pd

from charact.remedies.race import ROUNDED_FRAC, Candidate, Result, label_of

STATES = ("proven", "helps", "seems to help", "no difference", "slower", "not decided", "dropped", "failed",
          "not tried")
"""States of a row: 'proven' on fresh turns; 'helps' by turns with the baseline; 'seems to help' if not on fresh."""
_COLUMNS = ["remedy", "state", "iteration_s", "saves_frac", "low_frac", "high_frac", "added_bytes", "losses_frac",
            "changes_results", "num_turns", "change", "place", "reason"]
_OF_STATE = {"faster": "helps", "same": "no difference", "slower": "slower", "undecided": "not decided",
             "dropped": "dropped", "failed": "failed", "trying": "not decided"}


def outcome_rows(result: Result) -> pd.DataFrame:
    """Return a row for each remedy, the proven combination first; then those that help most; those not tried last.

    Columns: remedy, its settings as code; state, one of `STATES`; iteration_s, the mean time of an iteration (s);
    saves_frac with low_frac and high_frac, the share of the baseline's time that it saves and its interval;
    added_bytes of the process's peak memory; losses_frac, the largest relative difference of the first losses from the
    unchanged program's (null if they cannot be compared); changes_results, whether that is more than rounding;
    num_turns; change, code that does the same; place, its file and line; reason, why it failed or was not tried.
    """
    rows = list(_rows(result))
    rows.sort(key=lambda row: (STATES.index(row["state"]), -(row.get("saves_frac") or 0.0)))
    frame = pd.DataFrame(rows, columns=_COLUMNS)
    numbers = ["iteration_s", "saves_frac", "low_frac", "high_frac", "added_bytes", "losses_frac"]
    return frame.astype(dict.fromkeys(numbers, "float64"))


def _rows(result: Result) -> Iterator[dict[str, Any]]:
    proof = result.proof
    if proof is not None:
        yield _row(proof, result) | {"state": "proven" if proof.state == "faster" else "seems to help"}
    for candidate in result.candidates:
        if proof is None or candidate.settings != proof.settings:
            yield _row(candidate, result)
    for untried in result.untried:
        yield {"remedy": untried.remedy.name, "state": "not tried", "reason": untried.reason}


def _row(candidate: Candidate, result: Result) -> dict[str, Any]:
    places = dict.fromkeys(str(setting.place) for setting in candidate.settings if setting.place is not None)
    row: dict[str, Any] = {
        "remedy": label_of(candidate.settings), "state": _OF_STATE[candidate.state], "num_turns": candidate.num_turns,
        "change": "; ".join(setting.change for setting in candidate.settings),
        "place": ", ".join(places) or None, "reason": candidate.failure, "losses_frac": candidate.losses_frac,
        "changes_results": None if candidate.losses_frac is None else
        candidate.losses_frac > max(ROUNDED_FRAC, result.own_losses_frac or 0.0)}
    if candidate.num_turns:
        judgement = candidate.judgement
        ratio, low, high = judgement.ratio, judgement.low, judgement.high
        row |= {"iteration_s": candidate.new.sample().value, "saves_frac": None if ratio is None else 1 - ratio,
                "low_frac": None if high is None else 1 - high, "high_frac": None if low is None else 1 - low}
    if candidate.added_bytes:
        row["added_bytes"] = sum(candidate.added_bytes) / len(candidate.added_bytes)
    return row
