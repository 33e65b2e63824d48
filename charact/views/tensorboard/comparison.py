"""Runs side by side: each case that several of them hold, against the first run that has it."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
from jinja2 import Environment

from charact.analysis import pass_reason, phase_breakdown
from charact.analysis.compare import run_comparison
from charact.schema import PHASES
from charact.store import Run
from charact.views import format as fmt
from charact.views import palette
from charact.views.tensorboard.comparison_memory import memories
from charact.views.tensorboard.comparison_stages import inferences, trainings

_TEMPLATE = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string("""
{% if not groups and not others %}
<p class="ch-lead">These runs have no case in common: a case is compared where workload, input size, batch size, mode,
precision and device are the same.</p>
{% elif groups %}
<p class="ch-lead">Ratios are of median iteration times, against the run marked baseline; their 95 % intervals come from
resampling the iterations of both runs. Where the interval holds 1, the runs show no difference; where it does not, the
cause may still be what shifts a whole run, such as clocks and other load.
</p>
<p class="tb-legend">{% for phase, color in legend %}
<span><i style="background:{{ color }}"></i>{{ phase }}</span>
{% endfor %}</p>
<div class="tb-scroll"><table class="tb-compare">
<thead><tr><th>run</th><th>iteration time<small>median, 95 % interval</small></th>
<th>ratio<small>95 % interval</small></th><th>samples/s</th>
<th>peak memory</th><th>phases<small>length is time</small></th></tr></thead>
{% for case, rows in groups %}
<tbody data-case="{{ case }}"><tr><th colspan="6" scope="rowgroup">{{ case }}</th></tr>
{% for row in rows %}
<tr><td><span class="tb-badge tb-run-{{ row.run % 6 }}" title="{{ names[row.run] }}">{{ row.letter }}</span></td>
{% if row.failed %}
<td colspan="5" class="tb-missing">{{ row.failed }}</td>
{% else %}
<td>{{ row.median }}<small>{{ row.interval }}</small></td>
<td class="tb-{{ row.verdict }}">{{ row.ratio }}<small>{{ row.ratio_interval }}</small></td>
<td>{{ row.samples_per_s }}</td><td>{{ row.peak }}</td>
<td class="tb-phases"><span class="tb-bar" style="width:{{ row.width }}%">{% for part in row.phases %}
<i style="width:{{ part.width }}%;background:{{ part.color }}" title="{{ part.title }}"></i>
{% endfor %}</span><small>{{ row.phases | map(attribute="text") | join(" · ") }}</small></td>
{% endif %}
</tr>
{% endfor %}
</tbody>
{% endfor %}
</table></div>
{% endif %}
{% for other in others %}
{{ other }}
{% endfor %}
{% if groups or others %}
<p class="ch-note">{% if num_single %}Not compared: {{ num_single }} case{{ "s" if num_single > 1 }} that only one run
has.{% endif %}
{% for option, values in differing %}
{{ "Options differ:" if loop.first else "" }} {{ option }} {{ values }}{{ "." if loop.last else ";" }}
{% endfor %}</p>
{% endif %}
""")


def comparison(runs: Sequence[Run]) -> str:
    """HTML fragment: per case and run the iteration time, its ratio to the baseline, samples/s, memory and phases.

    Trainings, inferences, and cases whose memory alone was looked at have tables of their own below.
    """
    rows = run_comparison(runs)
    phases = pd.concat([phase_breakdown(run).assign(run=number) for number, run in enumerate(runs)])
    phases = phases[phases["case"].isin(rows["case"])]
    groups = [(case, _case_rows(of_case, phases, runs)) for case, of_case in rows.groupby("case", sort=False)]
    every_case = {case["case"] for run in runs for case in run.manifest["cases"]}
    others = [trainings(runs), inferences(runs), memories(runs)]
    compared = {case for case, _ in groups}.union(*(other.cases for other in others))
    legend = [(phase, palette.PHASES[phase]) for phase in PHASES if phase in set(phases["phase"])]
    return _TEMPLATE.render(groups=groups, legend=legend, differing=_differing_options(runs),
                            names=[run.manifest["name"] for run in runs],
                            others=[other.html for other in others if other.cases],
                            num_single=len(every_case - compared))  # fmt: skip


def _differing_options(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Options that are not the same in all runs, each with its values in the runs' order: cases do not name them."""
    options = [run.manifest.get("options", {}) for run in runs]
    names = dict.fromkeys(name for each in options for name in each)
    values = {name: [str(each.get(name, "not recorded")) for each in options] for name in names}
    return [(name.replace("_", " "), " / ".join(each)) for name, each in values.items() if len(set(each)) > 1]


def _case_rows(rows: pd.DataFrame, phases: pd.DataFrame, runs: Sequence[Run]) -> list[dict[str, Any]]:
    longest_s = rows["median_s"].max()
    cells = []
    for row in rows.to_dict("records"):
        of_run = phases[(phases["case"] == row["case"]) & (phases["run"] == row["run"])]
        memory = pass_reason(runs[row["run"]], row["case"], "memory") or "the record holds no rows"
        cells.append(_cells(row, memory) | {
            "phases": [_part(part) for part in of_run.to_dict("records")],
            "width": None if pd.isna(row["median_s"]) else round(100 * row["median_s"] / longest_s, 2),
        })
    return cells


def _cells(row: dict[Any, Any], memory: str) -> dict[str, Any]:
    reason = f"{row['status']}: {row['reason']}" if pd.notna(row["reason"]) else row["status"]
    is_baseline = row["run"] == row["baseline"]
    return {
        "run": row["run"], "letter": chr(ord("A") + row["run"] % 26),
        "failed": fmt.missing(reason) if pd.isna(row["median_s"]) else None,
        "median": fmt.seconds(row["median_s"]),
        "interval": fmt.interval(row["low_s"], row["high_s"], "fewer than 6 iterations"),
        "ratio": "baseline" if is_baseline else f"{row['ratio']:.3f}",
        "ratio_interval": "" if is_baseline else f"{row['ratio_low']:.3f}–{row['ratio_high']:.3f}",
        "verdict": "same" if is_baseline else _verdict(row["ratio_low"], row["ratio_high"]),
        "samples_per_s": fmt.number(row["samples_per_s"], fmt.no_samples(row["batch_size"])),
        "peak": fmt.num_bytes(row["peak_bytes"], memory),
    }  # fmt: skip


def _verdict(low: float, high: float) -> str:
    if high < 1:
        return "faster"
    return "slower" if low > 1 else "same"


def _part(phase: dict[Any, Any]) -> dict[str, Any]:
    text = f"{phase['phase']} {fmt.share(phase['share_frac'])}"
    return {
        "text": text.replace(" ", "\N{NO-BREAK SPACE}"), "title": f"{text}, {fmt.seconds(phase['time_s'])}",
        "width": round(100 * phase["share_frac"], 2), "color": palette.PHASES[phase["phase"]],
    }  # fmt: skip
