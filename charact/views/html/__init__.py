"""The HTML view: the sections of a run, and one self-contained report of one or more runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from charact import analysis
from charact.analysis.bricks.record_tables import model_summary
from charact.analysis.bricks.run_tables import suite_summary
from charact.analysis.comparing import Side
from charact.errors import UserError
from charact.presentable import presentable
from charact.schema import TABLES
from charact.store import Run
from charact.views import format as fmt
from charact.views.html import (
    bottleneck,
    brick_models,
    brick_records,
    bricks,
    comparing,
    content,
    counters,
    differences,
    facts,
    glance,
    inference,
    kernels,
    memory,
    memory_glance,
    method,
    operation_tables,
    operations,
    program,
    roofline,
    trace,
    training,
    utilization,
)
from charact.views.html.blocks import CASE, ITERATION, PEAK, RATE, SAMPLES, STATUS, Block, Body
from charact.views.tables import Column, Table, table

TEMPLATES = Path(__file__).parent / "templates"

_ENVIRONMENT = Environment(
    loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
)


@dataclass(frozen=True)
class _Part:
    """How a section is made, and the passes and tables that it shows: without any of them it is left out.

    `shows` tells whether there is anything to show where passes and tables do not.
    """

    title: str
    build: Callable[[Run], Body]
    passes: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    shows: Callable[[Run], bool] | None = None

    def belongs_to(self, run: Run) -> bool:
        """Whether a case of the run has taken one of the passes, or a table has rows."""
        if self.shows is not None:
            return self.shows(run)
        taken = analysis.passes_taken(run)
        always = not self.passes
        return always or not taken.isdisjoint(self.passes) or any(len(run.table(name)) for name in self.tables)


_PARTS = {
    "glance": _Part("At a glance", glance.glance),
    "bottleneck": _Part("Bottleneck", bottleneck.bottleneck, shows=content.is_timed),
    "training": _Part("Training", training.training, ("training",)),
    "inference": _Part("Inference", inference.inference, ("inference",)),
    "operations": _Part("Operations", operations.operations, ("ops",), ("problems",)),
    "constructed": _Part("Constructed latency", brick_models.models, ("construct",), ("constructions",)),
    "reuse": _Part("Reuse of bricks", bricks.reuse, ("construct",), ("pieces",)),
    "bricks": _Part("Bricks", bricks.bricks, ("bricks",), ("bricks",)),
    "phases": _Part("Time by phase", content.phases, shows=content.has_phases),
    "models": _Part("Models", program.parts, shows=program.has_parts),
    "program": _Part("How phases were found", program.program, shows=analysis.is_watched),
    "trace": _Part("How phases were found", trace.trace, shows=analysis.is_imported),
    "other": _Part("What “other” was", program.other, ("frames",)),
    "operator-types": _Part("Operator types", content.operator_types, ("operators",), ("operators",)),
    "operators": _Part("Operators", content.operators, ("operators",), ("operators",)),
    "layers": _Part("Layers", content.layers, ("operators", "flop"), ("operators", "flop")),
    "kernels": _Part("Kernels", kernels.kernels, ("kernels",), ("kernels",)),
    "memory": _Part("Memory", memory.memory, shows=memory.has_memory),
    "roofline": _Part("Work and roofline", roofline.roofline, ("flop",), ("flop",)),
    "utilization": _Part("Utilization and energy", utilization.utilization, shows=utilization.has_utilization),
    "counters": _Part("Counters", counters.counters, shows=counters.has_counters),
    "machine": _Part("Machine", facts.machine),
    "method": _Part("Method", method.method),
}


@dataclass(frozen=True)
class Section:
    """A part of the report: `html` is a fragment without scripts, style elements or addresses outside of it."""

    id: str
    title: str
    html: str


def sections(run: Run) -> list[Section]:
    """Sections of a run, in the order of the report.

    A section of a pass that no case has taken is left out; one whose pass gave nothing says why, and so does one that
    needs a damaged table.
    """
    run = presentable(run)
    found = ((name, part.title, _body(part, run)) for name, part in _PARTS.items())
    return [Section(name, title, render("section.html.j2", body=body)) for name, title, body in found
            if body is not None]


def _body(part: _Part, run: Run) -> Body | None:
    """What a section shows; None where the run has nothing of it."""
    try:
        return part.build(run) if part.belongs_to(run) else None
    except UserError as error:
        return Body(blocks=[Block(note=fmt.missing(str(error)))])


def report(runs: Sequence[Run]) -> str:
    """One self-contained page: each run's sections, after a table across them where there are several."""
    runs = [presentable(run) for run in runs]
    names = ", ".join(run.manifest["name"] for run in runs)
    # Sections of a run name its damaged tables; tables across runs leave it out.
    together = [run for run in runs if _is_readable(run)] if len(runs) > 1 else []
    return _page(runs, names, overview=_overview(together) if together else [],
                 across=brick_records.side_by_side(together))


def _is_readable(run: Run) -> bool:
    """Whether all tables of a run can be read."""
    try:
        for name in TABLES:
            run.table(name)
    except UserError:
        return False
    return True


_COMPARISON = {
    "comparison": ("Comparison", comparing.comparison), "parts": ("Where times differ", comparing.parts),
    "differences": ("What accounts for the differences", differences.explanations),
    "left-out": ("Left out, and what else differs", comparing.left_out),
}  # fmt: skip


def comparison_sections(sides: Sequence[Side]) -> list[Section]:
    """Sections of a comparison, in the order of its report."""
    return [Section(name, title, render("section.html.j2", body=build(sides)))
            for name, (title, build) in _COMPARISON.items()]


def comparison_report(sides: Sequence[Side]) -> str:
    """One self-contained page: the comparison, then the sections of the first run of each side that is measured."""
    measured = [side.runs[0] for side in sides if "reference" not in side.runs[0].manifest]
    return _page(measured, fmt.against([side.label for side in sides]), comparison=comparison_sections(sides))


def _page(runs: Sequence[Run], title: str, **content: Any) -> str:
    script = (TEMPLATES / "report.js").read_text(encoding="utf-8")
    style = (TEMPLATES / "style.css").read_text(encoding="utf-8")
    return render(
        "report.html.j2",
        runs=[{"manifest": run.manifest, "partial": run.partial, "sections": sections(run)} for run in runs],
        title=title, **{"overview": [], "across": [], "comparison": [], **content}, script=Markup(script),
        style=Markup(style),
    )  # fmt: skip


def render(template: str, **content: Any) -> str:
    """A template of this package, filled in; what is put in is escaped."""
    return _ENVIRONMENT.get_template(template).render(content)


def _overview(runs: Sequence[Run]) -> list[Table]:
    """Headline numbers of every case of every run, equal cases beside each other; a table a kind of case."""
    name = Column("run", "Run", unbroken=True)
    tables = []
    if len(cases := _together(runs, lambda run: analysis.case_summary(run).query("kind == 'profile'"))):
        columns = [CASE, name, STATUS, ITERATION, SAMPLES, RATE, PEAK]
        tables.append(table(cases, "Every profiled case of every run", columns))
    if len(cases := _together(runs, analysis.training_summary)):
        tables.append(training.headlines(cases, name))
    if len(cases := _together(runs, analysis.inference_summary)):
        tables.append(inference.headlines(cases, name))
    if len(cases := _together(runs, _memory_peaks)):
        tables.append(memory_glance.headlines(cases, name))
    if len(cases := _together(runs, analysis.operation_cases)):
        tables.append(operation_tables.headlines(cases, name))
    if len(cases := _together(runs, suite_summary)):
        tables.append(bricks.suites(cases, name))
    if len(cases := _together(runs, model_summary)):
        tables.append(brick_models.headlines(cases, name))
    return tables


def _memory_peaks(run: Run) -> pd.DataFrame:
    """Peaks of a run that looks at memory alone; no rows of another."""
    peaks = analysis.memory_peaks(run)
    return peaks if analysis.is_memory_run(run) else peaks.iloc[:0]


def _together(runs: Sequence[Run], summary: Callable[[Run], pd.DataFrame]) -> pd.DataFrame:
    frames = [summary(run).assign(run=run.run_id, position=number) for number, run in enumerate(runs)]
    filled = [frame.dropna(axis="columns", how="all") for frame in frames if len(frame)]
    cases = pd.concat(filled) if filled else frames[0]
    return cases.reindex(columns=frames[0].columns).sort_values(["case", "position"], ignore_index=True)
