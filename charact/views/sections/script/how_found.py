"""The section How phases were found, of a script."""

from charact.analysis.common.script_attribution import attribution, blind_spots, has_unexplained_other, is_watched
from charact.record.reader import Run
from charact.views.html.elements.blocks import CASE, Block, Body, Facts
from charact.views.section import Section
from charact.views.tables import format as fmt
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


SECTION = Section("program", "How phases were found", 110, program, shows=is_watched)
