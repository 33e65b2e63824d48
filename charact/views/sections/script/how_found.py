"""The section How phases were found, for scripts."""

from charact.analysis.common.script_attribution import (
    attribution,
    blind_spots,
    has_unexplained_other,
    is_watched,
    memory_ran_out,
    time_outside,
)
from charact.record.reader import Run
from charact.views.document import Block, Body, Facts
from charact.views.html.elements.blocks import CASE
from charact.views.section import Section
from charact.views.tables import format as fmt
from charact.views.tables.model import Column, share_column, table

_LEAD = (
    "The program was run unchanged. A phase is the time inside certain calls into PyTorch: a loader’s next "
    "batch, a copy to the device, the outermost model’s forward, losses, backward, an optimizer’s step. An iteration "
    "ends where the next begins: after the optimizer’s step in training, after the model’s forward in inference; the "
    "last of an epoch where its loader is exhausted. The batch size is that of the DataLoader. Time between a forward "
    "and the next backward, outside of any call, is inferred to be a custom loss. The rest, including compilation, is "
    "“other”."
)


def _html(run: Run) -> Body:
    options = run.manifest["options"]
    unfinished = fmt.missing("still running, or killed")
    facts = Facts("Program", [
        ("script", str(options["script"])), ("how it ended", str(run.manifest.get("ending") or unfinished)),
        *(("out of memory", str(memory)) for memory in memory_ran_out(run)),
        *((f"outside iterations, {row.case}", fmt.outside(row)) for row in fmt.rows(time_outside(run))),
    ])  # fmt: skip
    columns = [
        CASE,
        Column("num_warmup_iterations", "Left out", fmt.number, "iterations before the first recorded one"),
        Column("num_pass_iterations", "Other passes", fmt.number, "iterations that other passes measured",
               lambda row: "not recorded"),
        Column("num_iterations", "Iterations", fmt.number, "timed"),
        Column("num_window_iterations", "In windows", fmt.number, "later iterations, of which windows of time hold "
               "quantiles", lambda row: "the program had ended before"),
        share_column("attributed_frac", "Attributed", "part of the iterations' time in another phase than “other”"),
        Column("inferred_frac", "Inferred", fmt.share, "part of the iterations' time whose phase a rule inferred"),
        Column("compile_s", "Compiling", fmt.duration, "over the whole program, including iterations that are left out",
               lambda row: "nothing was compiled"),
    ]  # fmt: skip
    rows = attribution(run)
    nothing = fmt.missing("no iteration has finished yet" if run.partial else "it ran no iterations")
    unexplained = any(has_unexplained_other(run, case) for case in rows["case"])
    attributed = table(rows, "Time that has a phase", columns, fmt.UNEXPLAINED if unexplained else "")
    blocks = [Block(table=attributed) if len(rows) else Block(note=nothing)]
    spots = blind_spots(run)
    if len(spots):
        blocks.append(Block(table=table(spots, "Not observed", [CASE, Column("blind_spot", "What")])))
    return Body(lead=_LEAD, facts=[facts], blocks=blocks)


SECTION = Section("program", "How phases were found", 110, _html, shows=is_watched)
