"""The answer of a run: one sentence about its cases, and the first things to do, the largest saving first."""

import re
import shlex
from typing import Any

import pandas as pd

from charact.analysis.efficiency.bottleneck import bottlenecks
from charact.analysis.findings import findings, has_findings, program_time
from charact.analysis.profile.case_summary import case_kinds, case_summary
from charact.record.reader import Run
from charact.views.case_kind import by_kind, shown_as
from charact.views.document import Action, Answer
from charact.views.tables import finding_text
from charact.views.tables import format as fmt

NUM_ACTIONS = 3
"""Largest number of actions of an answer."""
NUM_EVIDENCE = 2
"""Largest number of sentences of evidence of an action."""
_CODE = re.compile("`([^`]+)`")
_OPTION = re.compile(r"--[a-z][a-z-]*(?: (?:\d+|bf16|pure-bf16))?")
"""An option of charact with its value, in a text."""
_SAME_CASES = ("--compile", "--channels-last", "--workers")
"""Options that leave the cases as they are, so that `charact compare --ab` measures what they save."""


def answer(run: Run) -> Answer:
    """Return the answer of a run; its record has no secrets and no control characters."""
    sentences = [kind.answer(run, rows) for kind, rows in by_kind(case_summary(run))]
    actions = _of_program(run) if has_findings(run) else _of_bottlenecks(run)
    left, parts = len(actions) - NUM_ACTIONS, program_time(run)
    section = "Findings" if has_findings(run) else "Bottleneck"
    more = [f"{left} more in the report’s section {section}"] if left > 0 else []
    more += [finding_text.sentence(finding_text.program_parts(parts))] if len(parts) else []
    sentence = " ".join(f"{sentence}." for sentence in sentences if sentence)
    return Answer(sentence, actions[:NUM_ACTIONS], ". ".join(more))


def _of_program(run: Run) -> list[Action]:
    """Return the findings about a watched program; equal ones of several cases are one action, and save their sum."""
    several, ranks = len(case_summary(run)) > 1, {entry.case: entry.rank for entry in run.entries}
    actions: dict[tuple[Any, ...], list[Any]] = {}
    for row in fmt.rows(findings(run)):
        actions.setdefault((row.finding, finding_text.place(row), row.remedy), []).append(row)
    return [
        Action(finding_text.sentence(rows[0].cause), finding_text.sentence(rows[0].remedy),
               f"{finding_text.saving(rows[0], [row for row in rows[1:] if ranks[row.case] == ranks[rows[0].case]])}"
               f"{f' ({rows[0].basis})' if isinstance(rows[0].basis, str) else ''}",
               finding_text.place(rows[0]), [str(row.case) for row in rows] if several else (),
               rows[0].evidence[:NUM_EVIDENCE])
        for rows in actions.values()]


def _of_bottlenecks(run: Run) -> list[Action]:
    """Return the advice of bottlenecks, once each, the largest potential saving of a case first."""
    rows = bottlenecks(run)
    kinds = pd.Series(shown_as(case_kinds(run)), rows.index, dtype="str")
    rows = rows[(kinds == "profile") & rows["advice"].notna()].sort_values("prize_frac", ascending=False, kind="stable")
    several = len(case_summary(run)) > 1
    actions = []
    for (_, advice), alike in rows.groupby([rows["verdict"].fillna(""), "advice"], sort=False):
        first = next(fmt.rows(alike))
        cases = [str(case) for case in alike["case"]] if several else []
        verdict = fmt.verdict(first) if isinstance(first.verdict, str) else _no_verdict(str(first.reason))
        actions.append(Action(
            finding_text.sentence(verdict), finding_text.sentence(_CODE.sub("the command below", str(advice))),
            "" if pd.isna(first.prize_frac) else
            f"at most {fmt.seconds(first.prize_s)}, {fmt.share(first.prize_frac)} of an iteration",
            cases=cases, command=_command(run, str(advice)),
            evidence=(finding_text.sentence(first.limit_evidence),) if isinstance(first.limit_evidence, str) else ()))
    return actions


def _no_verdict(reason: str) -> str:
    """Return why there is no verdict, without the numbers of one case."""
    return reason if reason.startswith("unreliable") else "no limit takes much of the time"


def _command(run: Run, advice: str) -> str:
    """Return the command in an advice, or the one that measures with the first option in it; empty if it has none."""
    if code := _CODE.search(advice):
        return code[1]
    words = list(run.manifest.get("command_line") or [])
    option = _OPTION.search(advice)
    if option is None or words[1:2] != ["profile"]:
        return ""
    before, name = shlex.join(words), option[0].split()[0]
    kept = [word for position, word in enumerate(words) if word.partition("=")[0] != name
            and not (words[position - 1] == name and " " in option[0])]
    changed = f"{shlex.join(kept)} {option[0]}"
    if not option[0].startswith(_SAME_CASES) or any(word.partition("=")[0] == "--out" for word in words):
        return changed
    return shlex.join(["charact", "compare", "--ab", before, changed])
