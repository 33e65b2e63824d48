"""The last sections: what machine and software ran, how numbers were taken, and what is not there and why."""

from typing import Any

from charact import analysis
from charact.store import Run
from charact.views import format as fmt
from charact.views.html.blocks import CASE, Block, Body, Facts
from charact.views.html.tables import Column, table

_POINTS = [
    ("Iteration time, phases, samples/s", "timing pass: only phase marks, no profiler. The iteration time is the "
     "median, with its 95 % interval from order statistics; a phase's time is its share of all iterations' time, times "
     "that median. It takes iterations for independent: slow drift makes it too narrow."),
    ("Operators, operator types, layers", "operator pass: PyTorch’s profiler over a few iterations of their own. It "
     "lengthens short operators; its overhead ratio stands below."),
    ("Memory", "memory pass: the allocator’s own statistics and events, in iterations of their own."),
    ("FLOP and bytes moved", "counted from the operators’ shapes on tensors without data; nothing is run. Counted are "
     "convolutions, matrix products and attention, as in published counts. Bytes are modelled: caches and fused "
     "operators move fewer, bad locality moves more."),
    ("Rates", "counted FLOP over time of the timing pass: a lower bound, since pointwise work is not counted."),
]  # fmt: skip


def machine(run: Run) -> Body:
    """What ran, on what machine, with which software and options."""
    manifest = run.manifest
    command = [("command line", " ".join(manifest.get("command_line", [])) or fmt.missing("not recorded"))]
    times = [(name, str(manifest.get(name) or fmt.missing("not recorded"))) for name in ("started", "ended")]
    lists = [Facts("Run", [("run", run.run_id), ("status", str(manifest["status"])), *command, *times])]
    for title in ("machine", "software", "options"):
        items = _items(manifest.get(title) or {})
        lists.append(Facts(title.capitalize(), items or [(title, fmt.missing("not recorded"))]))
    return Body(facts=lists)


def _items(facts: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested facts as one list, names joined, values in units where their name ends in one."""
    items = []
    for key, value in facts.items():
        name = f"{prefix}{key if key.isupper() else key.removeprefix('num_').replace('_', ' ')}"
        if isinstance(value, dict) and value:
            items += _items(value, f"{name} ")
        elif isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
            for number, each in enumerate(value):
                items += _items(each, f"{name} {number} ")
        else:
            items.append(_item(key, name, value))
    return items


def _item(key: str, name: str, value: Any) -> tuple[str, str]:
    if value is None:
        return name, fmt.missing("not found")
    if value in ([], {}, ""):
        return name, "none"
    if isinstance(value, bool):
        return name, "yes" if value else "no"
    if isinstance(value, (int, float)):
        for suffix, words in (("_bytes", fmt.num_bytes), ("_frac", fmt.share)):
            if key.endswith(suffix):
                return name.removesuffix(suffix.replace("_", " ")), words(value)
        return name, str(value)
    return name, ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def method(run: Run) -> Body:
    """Which pass each number comes from, what ended it, what it missed, and what is not there."""
    if not run.manifest["cases"]:
        return Body(points=_POINTS)
    return Body(points=_POINTS, blocks=[_stops(run), _coverage(run), _uncounted(run), _missing(run)])


def _stops(run: Run) -> Block:
    rules = analysis.stop_rules(run).dropna(subset=["num_iterations"])
    title = "What ended each case"
    if rules.empty:
        return Block(title=title, note=fmt.missing("no case was timed"))
    for column in ("warmup_ended_by", "ended_by"):
        rules[column] = rules[column].map(lambda value: fmt.ENDED_BY.get(value, value))

    def untimed(row: Any) -> str | None:
        return analysis.pass_reason(run, row.case, "timing") or "fewer than 6 iterations"

    def unprofiled(row: Any) -> str | None:
        return analysis.pass_reason(run, row.case, "operators")

    columns = [
        CASE,
        Column("num_warmup_iterations", "Warm-up", fmt.number, "iterations before timing, not recorded", untimed),
        Column("warmup_ended_by", "Warm-up ended", meaning="what ended the warm-up", reason=untimed),
        Column("num_iterations", "Iterations", fmt.number, "timed", untimed),
        Column("ended_by", "Ended by", meaning="'target met': the interval is narrow enough", reason=untimed),
        Column("interval_frac", "± interval", fmt.share, "half of the 95 % interval over the median", untimed),
        Column("precision_target_frac", "Target", fmt.share, "the half interval asked for", untimed),
        Column("overhead_ratio", "Profiler overhead", _ratio, "iteration under the profiler / iteration "
               "without; below 1 the machine got faster between the passes", unprofiled),
    ]  # fmt: skip
    return Block(title=title, table=table(rules, "Stop rule of each case", columns))


def _ratio(value: float | None, reason: str | None) -> str:
    return fmt.missing(reason) if value is None or fmt.absent(value) else f"× {value:.2f}"


def _coverage(run: Run) -> Block:
    coverage = analysis.operator_coverage(run)
    title = "How much operator time has a known type"
    if coverage.empty:
        return Block(title=title, note=fmt.missing("no case has operators"))
    columns = [
        CASE, Column("time_s", "Operator time", fmt.seconds, "per iteration, under the profiler"),
        Column("other_s", "Of type ‘other’", fmt.seconds, "no rule knows these operators"),
        Column("coverage_frac", "Known", fmt.share, "share of the operator time"),
    ]  # fmt: skip
    return Block(title=title, table=table(coverage, "Coverage of operator types", columns))


def _uncounted(run: Run) -> Block:
    names = {
        name for entry in run.manifest["cases"] for name in entry.get("passes", {}).get("flop", {}).get("uncounted", [])
    }
    note = ", ".join(sorted(names)) or "None: each that was counted has a formula."
    return Block(title="Heavy operators whose FLOP have no formula", note=note)


def _missing(run: Run) -> Block:
    outcomes = analysis.pass_outcomes(run).query("status != 'ok'")
    title = "What is not here, and why"
    if outcomes.empty:
        return Block(title=title, note="Every pass over every case ended well.")
    groups = outcomes.groupby(["case", "status", "reason"], sort=False, dropna=False, as_index=False)
    outcomes = groups.agg(passes=("pass", ", ".join))
    columns = [
        CASE, Column("passes", "Passes"), Column("status", "Status"),
        Column("reason", "Reason", reason=lambda row: "no reason recorded"),
    ]  # fmt: skip
    return Block(title=title, table=table(outcomes, "Passes that gave nothing", columns))
