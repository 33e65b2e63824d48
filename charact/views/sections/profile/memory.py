"""The section Memory: peaks against the input, memory over one iteration, estimates, and what fits."""

from collections.abc import Sequence

import pandas as pd

from charact.analysis.common.pass_status import passes_taken, was_asked_for
from charact.analysis.memory import composition as composition_analysis
from charact.analysis.memory.by_input_size import (
    SERIES,
    growth_by_input_size,
    memory_by_size,
    memory_steps,
    named_series,
    training_to_inference,
)
from charact.analysis.memory.composition import (
    memory_by_phase,
    memory_composition,
    memory_needs,
    memory_peaks,
    memory_timeline,
    peak_moments,
)
from charact.analysis.memory.limits import out_of_memory, out_of_memory_composition
from charact.record.reader import Run
from charact.views.charts import MIN_SIZES
from charact.views.document import Block, Body, Item, Legend
from charact.views.figures import memory as figures
from charact.views.html.elements.blocks import legend_of, missing_cases, why_nothing
from charact.views.section import Section
from charact.views.sections.profile import _memory_tables as tables
from charact.views.sections.profile._shared import no_bar
from charact.views.tables import format as fmt
from charact.views.tables import memory_text as words
from charact.views.tables import palette

_ALIKE = [name for name in SERIES if name != "mode"]


_LEAD = "What PyTorch’s allocator holds, without memory that libraries and Python take for themselves."
_INPUTS = {"pixel": "image area", "token": "sequence length", "lookup": "lookups", "unit of S": "input size"}


def _has_memory(run: Run) -> bool:
    """Return whether memory was measured or estimated; not that of constructed models and of memory snapshots."""
    if "snapshot" in passes_taken(run):
        return False
    taken = passes_taken(run) & {"memory", "prediction"}
    return bool(taken) or len(run.fits) > 0 or bool((run.memory["method"] != "constructed").any())


def _html(run: Run) -> Body:
    peaks, ran_out = memory_composition(run), _ran_out(run)
    if peaks.empty:
        return Body(blocks=[*ran_out, Block(note=why_nothing(run, "memory"))])
    is_memory_run = composition_analysis.is_memory_run(run)
    curves, drawn = _against_input(run, 2 if is_memory_run else MIN_SIZES)  # bars at the peak show two sizes, too
    at_peak = peaks[~peaks["case"].isin(drawn)] if is_memory_run else peaks
    blocks = [Block(
        title="At the peak of an iteration", figures=[figures.at_peak(at_peak)], legend=_legend(at_peak),
        table=tables.composition(at_peak, "Memory by category at the peak"),
    )] if len(at_peak) else []  # fmt: skip
    blocks += curves
    if run.cases["input_size"].nunique() == 1:
        too_few = fmt.missing("one input size only: give --input-sizes two")
        blocks.append(Block(title="Against input size", note=too_few))
    fits = tables.fits(run)
    blocks += [*_training_over_inference(run), *_timelines(run),
               *([Block(title="What fits", table=fits)] if fits is not None else []),
               *ran_out, *_tables(run, is_memory_run=is_memory_run)]
    shown = [case for block in ran_out for case, _ in block.missing]
    return Body(lead=_LEAD, blocks=[*blocks, *missing_cases(run, "memory", [*peaks["case"], *shown])])


def _legend(rows: pd.DataFrame) -> Legend:
    return legend_of(rows.loc[rows["bytes"] > 0, "category"], palette.CATEGORIES)


def _against_input(run: Run, least_sizes: int = 2) -> tuple[list[Block], set[str]]:
    """Return a block per workload, batch size and precision with a figure per mode, and the cases that these show."""
    rows = memory_by_size(run).merge(
        memory_peaks(run)[["case", "low_bytes", "high_bytes"]], on="case", how="left"
    )
    rows = rows[rows.groupby([*SERIES])["input_size"].transform("nunique") >= least_sizes]
    limits = memory_needs(run).dropna(subset=["device_memory_bytes"])
    limits_bytes = dict(zip(limits["case"], limits["device_memory_bytes"], strict=True))
    blocks = []
    for _, group in rows.groupby(_ALIKE, sort=False):
        title = words.both_modes(next(fmt.rows(group)))
        caption = f"Peak memory against input size: {title}"
        drawn = []
        for mode, name in (("train", "training"), ("infer", "inference")):
            if len(of_mode := group[group["mode"] == mode]):
                limit_bytes = next((limits_bytes[case] for case in of_mode["case"] if case in limits_bytes), None)
                drawn.append(figures.against_input(f"{caption}, {mode}", name, of_mode, limit_bytes))
        # The rows are of several cases: the filter by case must not hide parts of the curve.
        blocks.append(Block(
            title=f"Against {_INPUTS[group['position'].iloc[0]]}: {title}", figures=drawn, legend=_legend(group),
            table=tables.by_size(group, caption),
            note=_limit_note(group, limits),
        ))  # fmt: skip
    return blocks, set(rows["case"])


def _limit_note(rows: pd.DataFrame, limits: pd.DataFrame) -> str:
    """Return a note about the dashed line; empty if none is drawn."""
    row = next(fmt.rows(limits[limits["case"].isin(rows["case"])]), None)
    if row is None or not rows["high_bytes"].max() >= row.device_memory_bytes:
        return ""
    return f"The dashed line is the {fmt.num_bytes(row.device_memory_bytes)} of {row.target}."


def _training_over_inference(run: Run) -> list[Block]:
    """Return the training-to-inference ratios, a figure per kind of input."""
    rows = training_to_inference(run)
    if rows.empty:
        return []
    rows = rows.assign(label=[words.both_modes(row) for row in fmt.rows(rows)])
    colors = {label: palette.CASES[number % len(palette.CASES)] for number, label in enumerate(rows["label"].unique())}
    drawn = [
        figures.ratios(f"Memory of training over inference against {_INPUTS[str(position)]}", group, colors)
        for position, group in rows.groupby("position", sort=False) if group["num_positions"].nunique() >= MIN_SIZES
    ]  # fmt: skip
    return [Block(
        title="Training over inference" if drawn else "", figures=drawn, legend=list(colors.items()), folded=not drawn,
        table=tables.ratios(rows, "Peak of training over that of inference"),
        note="At the same workload, input and batch size, precision and device, both measured or both predicted.",
    )]  # fmt: skip


def _timelines(run: Run) -> list[Block]:
    """Return the timeline of one iteration for the largest case of each workload and mode."""
    timeline, moments = memory_timeline(run), peak_moments(run)
    composition, by_phase = memory_composition(run), memory_by_phase(run)
    blocks = []
    for case in _largest(run, set(timeline["case"])):
        rows, peaks = timeline[timeline["case"] == case], moments[moments["case"] == case]
        held = composition[composition["case"] == case]
        notes = [
            f"Peak {peak.method}: {fmt.num_bytes(peak.bytes)} in {words.place(peak)}; "
            f"{words.largest(held[held['method'] == peak.method])}."
            for peak in fmt.rows(peaks)
        ]  # fmt: skip
        phases = ", ".join(rows["phase"].dropna().drop_duplicates())
        notes.append(f"The strip at the top shows the phases in order: {phases}.")
        blocks.append(Block(
            title=f"One iteration: {case}", case=case, legend=_legend(rows), note=" ".join(notes),
            figures=[figures.timeline(f"Memory through an iteration of {case}, {method}", group)
                     for method, group in rows.groupby("method", sort=False)],
            table=tables.by_phase(by_phase[by_phase["case"] == case], f"Memory by category in each phase of {case}"),
        ))  # fmt: skip
    return blocks


def _largest(run: Run, cases: set[str]) -> list[str]:
    """Return the largest of these cases per workload, mode, precision and device; measured ones first."""
    peaks = memory_peaks(run)[["case", "measured_bytes", "predicted_bytes"]]
    rows = named_series(run).merge(peaks, on="case")
    rows = rows[rows["case"].isin(cases)].sort_values(["measured_bytes", "predicted_bytes"], na_position="first")
    last = rows.drop_duplicates([name for name in SERIES if name != "batch_size"], keep="last")
    return [str(case) for case in last.sort_index()["case"]]


def _tables(run: Run, *, is_memory_run: bool) -> list[Block]:
    """Return tables of growth, estimates, weights against intermediate results, needs, and peaks of phases."""
    growth = growth_by_input_size(run)
    several = growth[growth["num_sizes"] > 1]
    evidence = [
        tables.growth(several if len(several) else growth.iloc[:0]), tables.steps(memory_steps(run)),
        tables.predictions(run), *([tables.weights(run), tables.process(run)] if is_memory_run else []),
        tables.needs(run),
        tables.by_phase(memory_by_phase(run), "Memory by category at the peak of each phase"),
    ]  # fmt: skip
    return [Block(folded=True, table=each) for each in evidence if each is not None and each.rows]


def _ran_out(run: Run) -> list[Block]:
    """Return a text for each case that ran out of memory; in a memory run, for all that did not fit."""
    held = out_of_memory_composition(run)
    texts = {row.case: words.ran_out(row, held[held["case"] == row.case]) for row in fmt.rows(out_of_memory(run))}
    if composition_analysis.is_memory_run(run):
        failed = run.cases[run.cases["status"] == "oom"]
        texts = {row.case: fmt.failure(row.status, row.reason) for row in fmt.rows(failed)} | texts
    note = " ".join(words.searches(out_of_memory(run)))
    return [Block(title="Out of memory", missing=list(texts.items()), note=note)] if texts else []


def _summary(run: Run, case: str) -> Sequence[Item]:
    """Return why a case has no bar of its memory."""
    held = memory_composition(run).query("case == @case and bytes > 0")
    return no_bar(run, case, "Memory at the peak", "memory") if was_asked_for(run, "memory") and held.empty else []


SECTION = Section("memory", "Memory", 170, _html, shows=_has_memory, summary=_summary,
                  points={"memory": [
    ("Memory", "memory pass: the allocator’s own statistics and events, in iterations of their own. Activations are "
     "allocated in forward or loss and outlive their operator; temporary memory is all else that is freed by the end "
     "of the iteration. Against the input, dots are measured; areas and lines are predicted if there is an estimate."),
], "prediction": [
    ("Predicted memory", "an estimate: one iteration runs on tensors without data. Its allocations and frees are "
     "replayed in a model of the device’s allocator. No device is needed."),
    ("– tensors", "exact: their shapes are those of the iteration."),
    ("– workspaces", "temporary memory of operators. Measured by running operators alone, or "
     "modelled; the table of estimates shows which. The stated uncertainty is that of the workspaces."),
    ("– rounding, reserved", "modelled by the rules of the device’s caching allocator; CUDA only."),
    ("– context", "memory of a CUDA process before its first tensor: an estimate, not measured here."),
    ("Needed", "memory that a device needs: on CUDA the reserved memory at the upper end of the uncertainty, plus the "
     "context; on a CPU the upper end of the predicted peak."),
    ("Process memory", "resident set of the process, including Python, libraries, and memory that allocators cache. "
     "Its largest value is since the start of the process."),
    ("Growth", "a least-squares line through the peaks of one series against pixels or tokens, if the peaks rise and "
     "each is within 1 % of the line. Otherwise no slope is claimed: the peak is constant (within 1 %), or the steps "
     "from one size to the next are shown, with the category, phase, layer and operator that are responsible."),
]},
                  trace_points={"memory": [
    ("Memory",
     "memory that PyTorch’s allocator handed out during the last iteration. A trace has no categories, so all "
     "of it is “unknown”."),
]})
