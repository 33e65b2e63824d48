"""The sections of a watched program: its models, how its phases were found, and what `other` was."""

from typing import Any

import pandas as pd

from charact.analysis.common.pass_status import pass_reason
from charact.analysis.common.script_attribution import attribution, blind_spots, has_unexplained_other, sampled_frames
from charact.analysis.profile.model_parts import part_breakdown
from charact.record.reader import Run
from charact.views.html.elements import bars
from charact.views.html.elements.blocks import CASE, PHASE, Block, Body, Facts, legend_of
from charact.views.tables import format as fmt
from charact.views.tables import palette
from charact.views.tables.model import Column, share_column, table

_LEAD = (
    "The program was run as it is. A phase is the time inside the calls into PyTorch that make it up: a loader’s next "
    "batch, a copy to the device, the outermost model’s forward, losses, backward, an optimizer’s step. An iteration "
    "ends where the next begins after the optimizer’s step, and where nothing trains, after a model’s forward. What "
    "lies between a forward and the backward after it, outside of any call, is taken for a loss written by hand: "
    "inferred. The rest is “other”, and so is compiling."
)


def program(run: Run) -> Body:
    """What ran and how it ended, and how much of each case's time could be told."""
    options = run.manifest["options"]
    going_on = fmt.missing("it has not ended, or was killed")
    facts = Facts("Program", [
        ("script", str(options["script"])), ("how it ended", str(run.manifest.get("ending") or going_on)),
    ])  # fmt: skip
    columns = [
        CASE,
        Column("num_warmup_iterations", "Left out", fmt.number, "iterations before the first that is recorded"),
        Column("num_iterations", "Iterations", fmt.number, "recorded"),
        share_column("attributed_frac", "Attributed", "part of the iterations' time in another phase than “other”"),
        Column("inferred_frac", "Inferred", fmt.share, "part of the iterations' time that a rule gave a phase"),
        Column("compile_s", "Compiling", fmt.duration, "over the whole program, iterations that are left out included",
               lambda row: "nothing was compiled"),
    ]  # fmt: skip
    found = attribution(run)
    nothing = fmt.missing("no iteration has ended yet" if run.partial else "it had no iterations")
    unexplained = any(has_unexplained_other(run, case) for case in found["case"])
    shown = table(found, "How phases were found", columns, fmt.UNEXPLAINED if unexplained else "")
    blocks = [Block(table=shown) if len(found) else Block(note=nothing)]
    spots = blind_spots(run)
    if len(spots):
        blocks.append(Block(table=table(spots, "What could not be seen", [CASE, Column("blind_spot", "Not seen")])))
    return Body(lead=_LEAD, facts=[facts], blocks=blocks)


def parts(run: Run) -> Body:
    """Time of an iteration by model and optimizer, a figure a case."""
    breakdown = part_breakdown(run)
    columns = [
        Column("part", "Model", unbroken=True), PHASE,
        Column("time_s", "Time", fmt.seconds, "share × median iteration time: rows sum to the headline"),
        share_column("share_frac", "Share", "part of the time of all iterations"),
    ]  # fmt: skip
    blocks = []
    for case, rows in breakdown.groupby("case", sort=False):
        named = rows.assign(part=rows["part"].fillna("none of them"))
        blocks.append(Block(
            title=str(case), case=str(case), figures=bars.parts(str(case), named),
            legend=legend_of(rows["phase"], palette.PHASES),
            table=table(named, f"Time of an iteration by model of {case}", columns),
        ))  # fmt: skip
    lead = (
        "Models go by the name that the program’s main module gives them, else by their class. A loss, a backward and "
        "an update belong to the model whose optimizer steps next."
    )
    return Body(lead=lead, blocks=blocks)


def has_parts(run: Run) -> bool:
    """Whether a case has several models or optimizers."""
    return bool(run.iterations["part"].notna().any())


def other(run: Run) -> Body:
    """Where the program was while its time was `other`."""
    frames = sampled_frames(run)
    columns = [
        CASE, Column("place", "Line"), Column("function", "In", unbroken=True),
        Column("library", "Was calling", reason=lambda row: "the line itself, or what it calls outside of Python"),
        Column("num_samples", "Samples", fmt.number, "of 10 ms each"),
        share_column("share_frac", "Share of “other”", "part of the samples that were taken in it"),
        Column("time_s", "Time", fmt.seconds, "per iteration: share × mean time of “other”"),
    ]  # fmt: skip
    blocks = [Block(table=table(frames, "What “other” was", columns))] if len(frames) else []
    lead = (
        "Every 10 ms a thread has looked where the main thread was, unless a phase was running, and has noted the "
        "innermost line of the program’s own code and the outermost function of a library that it was calling."
    )
    return Body(lead=lead, blocks=[*blocks, *_without_samples(run, frames)])


def _without_samples(run: Run, frames: pd.DataFrame) -> list[Block]:
    def reason(entry: dict[str, Any]) -> str:
        why = pass_reason(run, entry["case"], "frames")
        return fmt.missing(why or "no sample fell into “other”")

    shown = set(frames["case"])
    missing = [(entry["case"], reason(entry)) for entry in run.manifest["cases"] if entry["case"] not in shown]
    return [Block(title="Not shown", missing=missing)] if missing else []
