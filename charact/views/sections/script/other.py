"""The section What “other” was."""

from typing import Any

import pandas as pd
from rich.console import RenderableType
from rich.text import Text

from charact.analysis.common.pass_status import pass_reason
from charact.analysis.common.script_attribution import has_unexplained_other, sampled_frames
from charact.record.reader import Run
from charact.views.html.elements.blocks import CASE, Block, Body
from charact.views.section import Section
from charact.views.tables import format as fmt
from charact.views.tables.model import Column, share_column, table

_NUM_PLACES = 3


def other(run: Run) -> Body:
    """Build the section: source lines that ran while the time was `other`."""
    frames = sampled_frames(run)
    columns = [
        CASE, Column("place", "Line"), Column("function", "In", unbroken=True),
        Column("library", "Was calling", reason=lambda row: "the line itself, or a call outside of Python"),
        Column("num_samples", "Samples", fmt.number, "while the time was “other”"),
        share_column("share_frac", "Share of “other”", "part of the samples in “other”"),
        Column("time_s", "Time", fmt.seconds, "per iteration: share × mean time of “other”"),
    ]  # fmt: skip
    blocks = [Block(table=table(frames, "What “other” was", columns))] if len(frames) else []
    lead = (
        "Every 100 ms, or every 10 ms with --sample, unless a phase was running, a sampler thread recorded the main "
        "thread’s stack: the innermost line of the program’s own code, and the outermost library function that it "
        "called."
    )
    return Body(lead=lead, blocks=[*blocks, *_without_samples(run, frames)])


def _without_samples(run: Run, frames: pd.DataFrame) -> list[Block]:
    def reason(entry: dict[str, Any]) -> str:
        why = pass_reason(run, entry["case"], "frames")
        return fmt.missing(why or "no sample fell into “other”")

    shown = set(frames["case"])
    missing = [(entry["case"], reason(entry)) for entry in run.manifest["cases"] if entry["case"] not in shown]
    return [Block(title="Not shown", missing=missing)] if missing else []


def _terminal(run: Run, case: Any) -> list[RenderableType]:
    """Return the most frequently sampled lines while the time was `other`."""
    frames = sampled_frames(run)
    rows = frames[frames["case"] == case["case"]].head(_NUM_PLACES)
    called = ("" if pd.isna(library) else f", {library}" for library in rows["library"])
    lines = [
        f"{fmt.share(row.share_frac)}  {row.place} in {row.function}{library}"
        for row, library in zip(fmt.rows(rows), called, strict=True)
    ]
    if has_unexplained_other(run, str(case["case"])):
        return [Text(fmt.UNEXPLAINED, style="dim")]
    num_samples = run.passes(case["case"])["frames"]["num_samples"] if lines else 0
    return [Text("\n".join([f"other was, in {num_samples} samples", *lines]))] if lines else []


SECTION = Section("other", "What “other” was", 120, other, ("frames",), terminal=_terminal,
                  points={"frames": [
    ("What “other” was", "a sampler thread in the program’s process, every 100 ms, or every 10 ms with --sample. "
     "A sample is late while the main thread computes in Python, and its position is known by line, not by call. "
     "Every 10 ms, it may lengthen an iteration of short operators by up to 2 %."),
]})
