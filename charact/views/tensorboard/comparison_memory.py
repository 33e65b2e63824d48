"""Peaks of runs that look at memory alone side by side, each against the first run that has the case."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
from jinja2 import Environment
from markupsafe import Markup

from charact.analysis.compare import memory_comparison
from charact.store import Run
from charact.views import format as fmt
from charact.views import memory_words as words
from charact.views.tensorboard.comparison_stages import Comparison

_TEMPLATE = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string("""
<p class="ch-lead">Peak memory of an iteration. Ratios are against the first run that has the case by the same method.
</p>
<div class="tb-scroll"><table class="tb-compare">
<thead><tr><th>run</th><th>measured</th><th>ratio</th><th>predicted<small>uncertainty</small></th><th>ratio</th>
<th>error<small>of the prediction</small></th></tr></thead>
{% for case, rows in groups %}
<tbody data-case="{{ case }}"><tr><th colspan="6" scope="rowgroup">{{ case }}</th></tr>
{% for row in rows %}
<tr><td><span class="tb-badge tb-run-{{ row.run % 6 }}" title="{{ names[row.run] }}">{{ row.letter }}</span></td>
{% for cell, small in row.cells %}<td>{{ cell }}<small>{{ small }}</small></td>{% endfor %}
</tr>
{% endfor %}
</tbody>
{% endfor %}
</table></div>
""")


def memories(runs: Sequence[Run]) -> Comparison:
    """Measured and predicted peaks with their ratios, and the error of each prediction."""
    groups = [
        (case, [_row(row) for row in of_case.to_dict("records")])
        for case, of_case in memory_comparison(runs).groupby("case", sort=False)
    ]
    html = _TEMPLATE.render(groups=groups, names=[run.manifest["name"] for run in runs])
    return Comparison({str(case) for case, _ in groups}, Markup(html))


def _row(row: dict[Any, Any]) -> dict[str, Any]:
    not_both = "not measured" if pd.isna(row["measured_bytes"]) else "not predicted"
    uncertainty = "" if pd.isna(row["low_bytes"]) else words.plus_minus(row["low_bytes"], row["high_bytes"])
    return {"run": row["run"], "letter": chr(ord("A") + row["run"] % 26), "cells": [
        (fmt.num_bytes(row["measured_bytes"], row["measured_reason"]), ""),
        (_ratio(row["measured_ratio"], "not measured"), ""),
        (fmt.num_bytes(row["predicted_bytes"], row["predicted_reason"]), uncertainty),
        (_ratio(row["predicted_ratio"], "not predicted"), ""),
        (words.share_of(row["error_frac"], not_both), ""),
    ]}  # fmt: skip


def _ratio(value: float, reason: str) -> str:
    return fmt.missing(reason) if pd.isna(value) else f"{value:.3f}"
