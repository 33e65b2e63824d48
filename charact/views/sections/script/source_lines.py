"""The section Source lines: those of the program that took the time of a phase."""

import pandas as pd

from charact.analysis.common.pass_status import pass_reason
from charact.analysis.common.script_attribution import (
    has_unexplained_other,
    is_sparse,
    sample_delay_s,
    sampled_frames,
    sampled_functions,
    sampled_share,
    too_few_samples,
)
from charact.record.reader import Run
from charact.record.schema import SAMPLED_PHASES
from charact.views.document import Block, Body, Item, Line, Lines
from charact.views.html.elements.blocks import CASE
from charact.views.section import Section
from charact.views.tables import format as fmt
from charact.views.tables.model import Column, table

_NUM_PLACES = 3
_FEWEST = 5
"""Number of samples from which lines are shown in the terminal."""
_FEW = 100
"""Number of samples below which shares are so uncertain that more are advised."""
_TITLES = {phase: f"Lines of “{phase}”" for phase in SAMPLED_PHASES if phase != "between"} | {
    "outside": "Lines outside of iterations", "slow": "Lines of slow iterations"}
"""Titles of the tables; the lines between iterations are among those outside of them."""

_NO_PHASES = {"outside": "outside of iterations", "slow": "of slow iterations"}


def _html(run: Run) -> Body:
    """Return a table of the lines with most samples, for each of `SAMPLED_PHASES`."""
    blocks, cases = [], set[str]()
    for phase, title in _TITLES.items():
        frames = sampled_frames(run, phase)
        cases |= set(frames["case"])
        columns = [
            CASE, Column("share", "Share", meaning="part of the samples, with its 95 % interval", unbroken=True),
            Column("place", "Line"), Column("function", "In", unbroken=True),
            Column("calls", "Was calling"),
            *([] if phase in _NO_PHASES else
              [Column("time_s", "Time", fmt.seconds, f"per iteration: share × mean time of “{phase}”")]),
            Column("num_samples", "Samples", fmt.number,
                   _NO_PHASES.get(phase, f"while the time was “{phase}”")),
        ]  # fmt: skip
        texts = frames.assign(share=list(map(sampled_share, fmt.rows(frames))),
                              calls=frames["library"].astype("object").fillna("nothing in a Python library"))
        blocks += [Block(title=title, table=table(texts, title, columns))] if len(frames) else []
    lead = (
        "Lines of the program in which it was when its stack was sampled, and the library function that they called. "
        "Every 100 ms, or every 10 ms with --sample, a sampler thread recorded the main thread’s stack while it "
        "was in an iteration or between two: the innermost line of the program’s own code. Lines of backward and "
        "update are shown if code of the program’s own runs in them. Loader processes are not sampled, nor is the "
        "time before PyTorch is imported."
    )
    if (delay_s := sample_delay_s(run)) is not None:
        lead += (f" Samples were {fmt.seconds(delay_s)} late (median): each call that releases the GIL, as those of "
                 "PyTorch do, may seem longer by up to this time.")
    missing = [(entry.case, fmt.missing(pass_reason(run, entry.case, "frames")
                                        or "; ".join(_few(run, entry.case).values())
                                        or "no sample fell into a phase with more than 10 % of the time"))
               for entry in run.entries if entry.case not in cases]
    return Body(lead=lead, blocks=[*blocks, *([Block(title="Not shown", missing=missing)] if missing else [])])


def _summary(run: Run, case: str) -> list[Item]:
    """Return the lines with most samples, or why they are not named, for each of `SAMPLED_PHASES`."""
    items: list[Item] = [Lines(list(map(Line, lines))) for phase in _TITLES if (lines := _lines(run, case, phase))]
    items += [Line(f"{_heading(phase)}  ", (fmt.missing(why), "dim")) for phase, why in _few(run, case).items()]
    return [*items, Line((fmt.UNEXPLAINED, "dim"))] if has_unexplained_other(run, case) else items


def _heading(phase: str) -> str:
    return f"lines {_NO_PHASES.get(phase, f'of {phase}')}"


def _few(run: Run, case: str) -> dict[str, str]:
    return {phase: f"{number} sample{'' if number == 1 else 's'}, too few to name lines; charact run --sample takes 10 "
                   "times as many" for phase, number in too_few_samples(run, case).items()}


def _lines(run: Run, case: str, phase: str) -> list[str]:
    functions = sampled_functions(run, phase)
    rows = functions[functions["case"] == case]
    num_samples = 0 if rows.empty else round(rows["num_samples"].iloc[0] / rows["share_frac"].iloc[0])
    if num_samples < _FEWEST:
        return []
    shown = [f"{sampled_share(row)}  {row.place} in {row.function}"
             f"{'' if pd.isna(row.library) else f', {row.library}'}" for row in fmt.rows(rows.head(_NUM_PLACES))]
    more = len(rows) - _NUM_PLACES
    since = " since PyTorch was imported" if phase == "outside" else ""
    sparser = "; --sample takes 10 times as many" if num_samples < _FEW and is_sparse(run, case) else ""
    return [f"{_heading(phase)}{since}, in {num_samples} sample{'' if num_samples == 1 else 's'}{sparser}", *shown,
            *([f"{more} more"] if more > 0 else [])]


SECTION = Section("source-lines", "Source lines", 92, _html, ("frames",), summary=_summary,
                  points={"frames": [
    ("Source lines", "a sampler thread in the program’s process, every 100 ms, or every 10 ms with "
     "--sample. Calls that release the GIL get samples of the moment before them, too: for microseconds on most "
     "machines, which are measured. A position is known by line, not by call. With --sample, it may lengthen an "
     "iteration of short operators by up to 2 %, and computing in several threads of Python by 7 %."),
]})
