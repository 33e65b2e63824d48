"""Trainings and inferences of several runs side by side, each against the first run that has the case."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from jinja2 import Environment
from markupsafe import Markup

from charact import analysis
from charact.analysis.compare import inference_comparison, training_comparison
from charact.store import Run
from charact.views import format as fmt
from charact.views import palette

_TEMPLATE = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string("""
<p class="ch-lead">{{ lead }}</p>
<p class="tb-legend">{% for part, color in legend %}
<span><i style="background:{{ color }}"></i>{{ part }}</span>
{% endfor %}</p>
<div class="tb-scroll"><table class="tb-compare">
<thead><tr><th>run</th>{% for title in titles %}<th>{{ title }}</th>{% endfor %}
<th>{{ bar_title }}<small>length is time</small></th></tr></thead>
{% for case, rows in groups %}
<tbody data-case="{{ case }}"><tr><th colspan="{{ titles | length + 2 }}" scope="rowgroup">{{ case }}</th></tr>
{% for row in rows %}
<tr><td><span class="tb-badge tb-run-{{ row.run % 6 }}" title="{{ names[row.run] }}">{{ row.letter }}</span></td>
{% if row.failed %}
<td colspan="{{ titles | length + 1 }}" class="tb-missing">{{ row.failed }}</td>
{% else %}
{% for cell, small in row.cells %}<td>{{ cell }}<small>{{ small }}</small></td>{% endfor %}
<td class="tb-phases"><span class="tb-bar" style="width:{{ row.width }}%">{% for part in row.parts %}
<i style="width:{{ part.width }}%;background:{{ part.color }}" title="{{ part.text }}"></i>
{% endfor %}</span><small>{{ row.parts | map(attribute="text") | join(" · ") }}</small></td>
{% endif %}
</tr>
{% endfor %}
</tbody>
{% endfor %}
</table></div>
""")


@dataclass(frozen=True)
class Comparison:
    """The cases that are compared, and the fragment that shows them."""

    cases: set[str]
    html: Markup


def trainings(runs: Sequence[Run]) -> Comparison:
    """Total execution time, ratio of the time of an epoch, samples/s, best metric, time to target, and stages."""
    rows = training_comparison(runs)
    parts = pd.concat([analysis.stage_breakdown(run).assign(run=number) for number, run in enumerate(runs)])
    parts = parts.groupby(["case", "run", "stage"], sort=False, as_index=False)[["share_frac"]].sum()
    return _comparison(
        runs, rows, parts.rename(columns={"stage": "part"}), "total_s", palette.STAGES, _training_cells,
        lead="Trainings. Ratios are of the mean time of an epoch, against the first run that has the case; how many "
             "epochs a run has does not matter. One training a run has no interval.",
        titles=["total time", "ratio", "samples/s", "best", "to target"], bar_title="stages",
    )  # fmt: skip


def inferences(runs: Sequence[Run]) -> Comparison:
    """Total inference time with a cold and a warm load, its ratio, samples/s, time of a batch, and parts."""
    rows = inference_comparison(runs)
    parts = pd.concat([analysis.inference_breakdown(run).assign(run=number) for number, run in enumerate(runs)])
    return _comparison(
        runs, rows, parts[parts["load"] == "warm"], "total_warm_s", palette.INFERENCE_PARTS, _inference_cells,
        lead="Loads and predictions. Ratios are of the total with a warm load, against the first run that has the "
             "case. One prediction a run has no interval; that of its batches stands above.",
        titles=["cold", "warm", "ratio", "samples/s", "batch"], bar_title="with a warm load",
    )  # fmt: skip


def _comparison(runs: Sequence[Run], rows: pd.DataFrame, parts: pd.DataFrame, total: str, colors: dict[str, str],
                cells: Any, **words: Any) -> Comparison:
    groups = []
    for case, of_case in rows.groupby("case", sort=False):
        longest_s = of_case[total].max()
        groups.append((case, [
            _row(row, row[total] / longest_s, parts[(parts["case"] == case) & (parts["run"] == row["run"])], colors)
            | ({} if pd.isna(row[total]) else {"cells": cells(row)})
            for row in of_case.to_dict("records")
        ]))  # fmt: skip
    names = [run.manifest["name"] for run in runs]
    legend = [(part, color) for part, color in colors.items() if part in set(parts["part"])]
    html = _TEMPLATE.render(groups=groups, names=names, legend=legend, **words)
    return Comparison({str(case) for case, _ in groups}, Markup(html))


def _row(row: dict[Any, Any], width_frac: float, parts: pd.DataFrame, colors: dict[str, str]) -> dict[str, Any]:
    reason = f"{row['status']}: {fmt.failure(row['status'], row['reason'])}"
    return {
        "run": row["run"], "letter": chr(ord("A") + row["run"] % 26), "width": round(100 * width_frac, 2),
        "failed": fmt.missing(reason) if pd.isna(width_frac) else None,
        "parts": [
            {"text": f"{part.part} {fmt.share(part.share_frac)}".replace(" ", "\N{NO-BREAK SPACE}"),
             "width": round(100 * part.share_frac, 2), "color": colors[part.part]}
            for part in fmt.rows(parts)
        ],
    }  # fmt: skip


def _ratio(row: dict[Any, Any]) -> str:
    return "baseline" if row["run"] == row["baseline"] else f"{row['ratio']:.3f}"


def _training_cells(row: dict[Any, Any]) -> list[tuple[str, str]]:
    """Words and small words of each column."""
    ended = "" if row["status"] == "ok" else f", {row['status']}"
    best = (fmt.missing("no epoch was validated"), "") if pd.isna(row["best_value"]) else (
        fmt.metric(row["best_metric"], row["best_value"]), f"{row['best_metric']}, epoch {row['best_epoch']:.0f}")
    return [
        (fmt.duration(row["total_s"]), f"{fmt.number(row['num_epochs'])} epochs{ended}"),
        (_ratio(row), f"{fmt.duration(row['epoch_s'])} an epoch"), (fmt.number(row["samples_per_s"]), ""), best,
        (fmt.duration(row["time_to_target_s"], row["target_reason"]),
         "" if pd.isna(row["target_value"]) else f"{row['target_metric']} "
         f"{fmt.metric(row['target_metric'], row['target_value'])}"),
    ]  # fmt: skip


def _inference_cells(row: dict[Any, Any]) -> list[tuple[str, str]]:
    return [
        (fmt.duration(row["total_cold_s"], row["cold_reason"]),
         "" if pd.isna(row["load_cold_s"]) else f"load {fmt.duration(row['load_cold_s'])}"),
        (fmt.duration(row["total_warm_s"]), f"load {fmt.duration(row['load_warm_s'])}"), (_ratio(row), ""),
        (fmt.number(row["samples_per_s"]), ""),
        (f"p50 {fmt.seconds(row['p50_s'])}", f"p99 {fmt.seconds(row['p99_s'])}"),
    ]  # fmt: skip
