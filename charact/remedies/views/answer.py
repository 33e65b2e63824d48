"""The result of `charact try`: the answer in a sentence, and a table of remedies."""

import pandas as pd

from charact.remedies.tried import NOT_FINITE, Tried, TriedRemedy
from charact.views.document import Item, Line
from charact.views.tables import format as fmt
from charact.views.tables.model import Column, Table, table

_ENDINGS = {"decided": "", "time": "The time was up before all were decided: --max-minutes allows more.",
            "interrupted": "Interrupted: this is what was decided so far."}
_HELPS_FRAC = 0.01
"""Saving from which a setting was dropped because another of its remedy saves more."""
_LEAST_BYTES = 32 * 2**20
"""Memory from which a remedy that is not recommended is said to save it: peaks of equal programs differ by less."""
_MOST_FILES = 10
"""Largest number of written files that are named."""


def answer(facts: Tried) -> str:
    """Return which remedies help and what they save together, or that none was shown to, as a sentence."""
    if (proven := facts.proven) is not None:
        return (f"{proven.remedy} saves {_saving(proven)} of an iteration: {fmt.seconds(proven.iteration_s)} instead "
                f"of {fmt.seconds(facts.baseline_s)}.")
    helping = [each for each in facts.remedies if each.state == "helps"]
    if names := [each.remedy for each in helping if each.changes_results]:
        return (f"Nothing is recommended: {', '.join(names)} help{'s' * (len(names) == 1)}, but the results change: "
                "--allow-numerics recommends it all the same.")
    if helping:
        return (f"Nothing is recommended: {', '.join(each.remedy for each in helping)} helped by turns, and was not "
                "measured on fresh ones.")
    if seeming := [each.remedy for each in facts.remedies if each.state == "seems to help"]:
        outcome = "fresh turns did not decide it" if facts.ending == "time" else "did not on fresh turns"
        return f"Nothing is recommended: {', '.join(seeming)} seemed to help, and {outcome}."
    if undecided := [each.remedy for each in facts.remedies if each.state == "not decided"]:
        return (f"Nothing is recommended: {', '.join(undecided)} {'was' if len(undecided) == 1 else 'were'} not "
                "decided in the time.")
    number = sum(each.state != "not tried" for each in facts.remedies)
    if not number:
        return "Nothing was tried: no remedy fits, as the table says."
    return f"Nothing is recommended: none of {number} remed{'y' if number == 1 else 'ies'} was shown to save time."


def notes(facts: Tried) -> list[str]:
    """Return sentences about what is not decided, what saves memory, and which files trials wrote."""
    found = [_ENDINGS[facts.ending]]
    found += [f"{each.remedy} lowers the peak of the process by {fmt.num_bytes(-each.added_bytes)}."
              for each in facts.remedies if each.state not in ("proven", "slower")
              and each.added_bytes is not None and each.added_bytes <= -_LEAST_BYTES]
    if facts.proven is None and facts.advice is not None:
        found.append(f"The first run's largest finding that was not tried: {facts.advice}")
    if names := facts.written_files:
        more = f" and {len(names) - _MOST_FILES} more" if len(names) > _MOST_FILES else ""
        found.append(f"Trials wrote or changed {', '.join(names[:_MOST_FILES])}{more}: --scratch runs them in a copy "
                     "of the directory.")
    return list(filter(None, found))


def untried(facts: Tried) -> list[tuple[str, str]]:
    """Return the remedies that were not tried, each with the reason."""
    return [(each.remedy, str(each.reason)) for each in facts.remedies if each.state == "not tried"]


def tried_table(facts: Tried) -> Table:
    """Return the table of the remedies that were tried, with the unchanged program last."""
    rows = [{"remedy": each.remedy, "time": "" if each.iteration_s is None else fmt.seconds(each.iteration_s),
             "saves": _result(each), "memory": _memory(each), "losses": _losses(each),
             "code": " ".join(filter(None, [each.place, each.change]))}
            for each in facts.remedies if each.state != "not tried"]
    own = facts.own_losses_frac
    rows.append({"remedy": "unchanged", "time": fmt.seconds(facts.baseline_s, "no trial ended"), "saves": "",
                 "code": "", "memory": "", "losses": f"differ by {own:.1g} from trial to trial" if own else ""})
    return table(pd.DataFrame(rows), "Remedies that were tried", [
        Column("remedy", "Remedy"), Column("time", "Iteration", meaning="mean time"),
        Column("saves", "Saves", meaning="of the unchanged program's mean iteration, with its 95 % interval"),
        Column("memory", "Memory", meaning="added to the peak of the process"),
        Column("losses", "Losses", meaning="largest relative difference of the first ten, with the same seed"),
        Column("code", "Change in your code", wide=True)])


def items(facts: Tried) -> list[Item]:
    """Return what the terminal prints."""
    lines = [Line((note, "dim")) for note in notes(facts)]
    if left := [f"{name} ({reason})" for name, reason in untried(facts)]:
        lines.append(Line((f"Not tried: {'; '.join(left)}.", "dim")))
    return [Line((answer(facts), "strong")), Line(), tried_table(facts), *lines]


def _saving(remedy: TriedRemedy) -> str:
    if remedy.low_frac is None or remedy.high_frac is None:
        return fmt.share(remedy.saves_frac)
    return f"{fmt.share(remedy.saves_frac)} ({100 * remedy.low_frac:.1f} to {100 * remedy.high_frac:.1f})"


def _result(remedy: TriedRemedy) -> str:
    if remedy.state == "failed":
        return f"failed: {remedy.reason}"
    if remedy.saves_frac is None:
        return str(remedy.state)
    if remedy.state == "slower":
        return f"slower by {fmt.share(-remedy.saves_frac)}"
    saving = _saving(remedy)
    turns = f"{remedy.num_turns} turn{'' if remedy.num_turns == 1 else 's'}"
    if remedy.state == "dropped":
        return f"{saving}: another setting saves more" if remedy.saves_frac > _HELPS_FRAC else f"no help in {turns}"
    if remedy.state == "not decided" and remedy.low_frac is None:
        return f"{saving} after {turns}, not decided"
    return saving if remedy.state in ("proven", "helps") else f"{remedy.state}: {saving}"


def _memory(remedy: TriedRemedy) -> str:
    if remedy.added_bytes is None:
        return fmt.missing("not recorded") if remedy.num_turns else ""
    if abs(remedy.added_bytes) < 2**20:
        return "0"
    return f"{'+' if remedy.added_bytes > 0 else '−'}{fmt.num_bytes(abs(remedy.added_bytes))}"


def _losses(remedy: TriedRemedy) -> str:
    if not remedy.num_turns:
        return ""
    if remedy.losses_frac is None:
        return fmt.missing("no losses to compare")
    if remedy.losses_frac >= NOT_FINITE:
        return "differ: one is not finite"
    apart = f"{remedy.losses_frac:.1g}"
    return "the same" if remedy.losses_frac == 0 else f"differ by {apart}" if remedy.changes_results else f"≤ {apart}"
