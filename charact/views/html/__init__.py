"""The HTML view: the sections of a run, and one self-contained report of one or more runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from charact import analysis
from charact.store import Run
from charact.views.html import content, device, facts, glance
from charact.views.html.blocks import CASE, ITERATION, PEAK, RATE, SAMPLES, STATUS
from charact.views.html.tables import Column, table

TEMPLATES = Path(__file__).parent / "templates"

_ENVIRONMENT = Environment(
    loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
)
_SECTIONS = {
    "glance": ("At a glance", glance.glance),
    "phases": ("Time by phase", content.phases),
    "operator-types": ("Operator types", content.operator_types),
    "operators": ("Operators", content.operators),
    "layers": ("Layers", content.layers),
    "kernels": ("Kernels", device.kernels),
    "memory": ("Memory", content.memory),
    "flop": ("FLOP", content.flop),
    "counters": ("Counters", device.counters),
    "machine": ("Machine", facts.machine),
    "method": ("Method", facts.method),
}


@dataclass(frozen=True)
class Section:
    """A part of the report: `html` is a fragment without scripts, style elements or addresses outside of it."""

    id: str
    title: str
    html: str


def sections(run: Run) -> list[Section]:
    """All sections of a run, in the order of the report; a section with nothing to show says why."""
    return [
        Section(name, title, _ENVIRONMENT.get_template("section.html.j2").render(body=build(run)))
        for name, (title, build) in _SECTIONS.items()
    ]


def report(runs: Sequence[Run]) -> str:
    """One self-contained page: each run's sections, after a table across them where there are several."""
    script = (TEMPLATES / "report.js").read_text(encoding="utf-8")
    style = (TEMPLATES / "style.css").read_text(encoding="utf-8")
    return _ENVIRONMENT.get_template("report.html.j2").render(
        runs=[{"manifest": run.manifest, "partial": run.partial, "sections": sections(run)} for run in runs],
        overview=_overview(runs) if len(runs) > 1 else None,
        script=Markup(script), style=Markup(style),
    )  # fmt: skip


def _overview(runs: Sequence[Run]) -> Any:
    """Headline numbers of every case of every run, equal cases beside each other."""
    frames = [analysis.case_summary(run).assign(run=run.run_id, position=n) for n, run in enumerate(runs)]
    filled = [frame.dropna(axis="columns", how="all") for frame in frames if len(frame)]
    cases = pd.concat(filled) if filled else frames[0]
    rows = cases.reindex(columns=frames[0].columns).sort_values(["case", "position"], ignore_index=True)
    columns = [CASE, Column("run", "Run"), STATUS, ITERATION, SAMPLES, RATE, PEAK]
    return table(rows, "Every case of every run", columns)
