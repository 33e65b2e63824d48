"""The section What “data” and “other” were."""

from typing import Any

import pandas as pd
from rich.console import RenderableType
from rich.text import Text

from charact.analysis.common.pass_status import pass_reason
from charact.analysis.common.script_attribution import has_unexplained_other, sampled_frames, sampled_share
from charact.record.reader import Run
from charact.views.html.elements.blocks import CASE, Block, Body
from charact.views.section import Section
from charact.views.tables import format as fmt
from charact.views.tables.model import Column, table

_NUM_PLACES = 3


def other(run: Run) -> Body:
    """Build the section: source lines that ran while the time was `other`, and while batches were loaded."""
    tables = [
        Block(title=f"What “{phase}” was", table=table(
            frames.assign(share=list(map(sampled_share, fmt.rows(frames)))), f"Lines of “{phase}”", _columns(phase)))
        for phase in ("data", "other")
        if len(frames := sampled_frames(run, phase))
    ]
    lead = (
        "Every 100 ms, or every 10 ms with --sample, a sampler thread recorded the main thread’s stack while it "
        "fetched a batch or no phase was running: the innermost line of the program’s own code, and the outermost "
        "library function that it called. Loader processes are not sampled."
    )
    return Body(lead=lead, blocks=[*tables, *_without_samples(run)])


def _columns(phase: str) -> list[Column]:
    return [
        CASE, Column("share", "Share", meaning=f"part of the samples of “{phase}”, ± 95 % interval", unbroken=True),
        Column("place", "Line"), Column("function", "In", unbroken=True),
        Column("library", "Was calling", reason=lambda row: "the line itself, or a call outside of Python"),
        Column("time_s", "Time", fmt.seconds, f"per iteration: share × mean time of “{phase}”"),
        Column("num_samples", "Samples", fmt.number, f"while the time was “{phase}”"),
    ]  # fmt: skip


def _without_samples(run: Run) -> list[Block]:
    def reason(entry: dict[str, Any]) -> str:
        why = pass_reason(run, entry["case"], "frames")
        return fmt.missing(why or "no sample fell into “other” or “data”")

    shown = {case for phase in ("other", "data") for case in sampled_frames(run, phase)["case"]}
    missing = [(entry["case"], reason(entry)) for entry in run.manifest["cases"] if entry["case"] not in shown]
    return [Block(title="Not shown", missing=missing)] if missing else []


def _terminal(run: Run, case: Any) -> list[RenderableType]:
    """Return the most frequently sampled lines in `data` and in `other`."""
    name = str(case["case"])
    lines = [Text("\n".join(found)) for phase in ("data", "other") if (found := _lines(run, name, phase))]
    return [*lines, Text(fmt.UNEXPLAINED, style="dim")] if has_unexplained_other(run, name) else [*lines]


def _lines(run: Run, case: str, phase: str) -> list[str]:
    frames = sampled_frames(run, phase)
    rows = frames[frames["case"] == case]
    if rows.empty:
        return []
    num_samples = f"{rows['num_samples'].iloc[0] / rows['share_frac'].iloc[0]:.0f}"
    return [f"{phase} was, in {num_samples} samples", *(
        f"{sampled_share(row)}  {row.place} in {row.function}"
        f"{'' if pd.isna(row.library) else f', {row.library}'}" for row in fmt.rows(rows.head(_NUM_PLACES)))]


SECTION = Section("other", "What “data” and “other” were", 120, other, ("frames",), terminal=_terminal,
                  points={"frames": [
    ("What “data” and “other” were", "a sampler thread in the program’s process, every 100 ms, or every 10 ms with "
     "--sample. A sample is late while the main thread computes in Python, and its position is known by line, not by "
     "call. Every 10 ms, it may lengthen an iteration of short operators by up to 2 %."),
]})
