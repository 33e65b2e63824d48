"""Terminal tables of bricks: times of a suite's run, and constructed latencies against measured ones."""

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from charact.bricks.analysis.tables import (
    BAND_FRAC,
    brick_summary,
    has_failed,
    latency_errors,
    model_summary,
    normalized_latency,
    predicted_times,
    suite_summary,
    time_by_layers,
    time_saved,
)
from charact.bricks.views.tables import regression_text
from charact.record.reader import Run
from charact.views.document import Bar, Part
from charact.views.tables import format as fmt
from charact.views.tables import palette
from charact.views.terminal.progress import LiveProgress
from charact.views.terminal.renderer import NamedTable, drawn, plain_table

_NUM_BRICKS = 10
_NUM_FAILED = 10
_NUM_BARS = 6
_NUM_TYPES = 5
_STRATEGIES = {"sequential": "plain sum", "paper": "sum of warm times", "critical_path": "longest path",
               "corrected": "corrected"}  # fmt: skip
_NO_INTERVAL = "fewer than 6 rounds"


def suite(run: Run) -> list[RenderableType]:
    """Return the summary of a suite's run: each case, its slowest bricks, and failed bricks."""
    table = NamedTable("suite", "bricks", "layers", "each once", "rounds", "timed", "set-up")
    for row in fmt.rows(suite_summary(run)):
        counts = {"failed": row.num_failed, "left to the regression": row.num_left_out}
        of_these = "".join(f", {number:.0f} {what}" for what, number in counts.items() if number)
        table.add_row(Text(str(row.case)), Text(f"{row.num_bricks:.0f}{of_these}"), Text(fmt.number(row.num_layers)),
                      Text(fmt.seconds(row.suite_s, row.reason or "none was timed"), style="bold"),
                      Text(fmt.number(row.num_rounds)), Text(fmt.duration(row.timed_s)),
                      Text(fmt.duration(row.set_up_s)))  # fmt: skip
    shown: list[RenderableType] = [table]
    bricks = brick_summary(run)
    for case, of_case in bricks.dropna(subset=["time_s"]).groupby("case", sort=False):
        shown += _titled(f"slowest bricks of {case}", [_slowest(of_case), *_more(of_case, _NUM_BRICKS)])
    failed = bricks[has_failed(bricks)]
    shown += [Text.assemble((str(row.brick), "bold"), f" {row.layers}  ", (f"{row.status}: ", "bold red"),
                            fmt.failure(row.status, row.reason)) for row in fmt.rows(failed.head(_NUM_FAILED))]
    return [*shown, *_more(failed, _NUM_FAILED)]


def _slowest(timed: pd.DataFrame) -> Table:
    table = plain_table("brick", "layers", "time", "share", "FLOP/s", left=2)
    for row in fmt.rows(timed.head(_NUM_BRICKS)):
        table.add_row(Text(str(row.brick)), Text(str(row.layers)), Text(fmt.seconds(row.time_s), style="bold"),
                      Text(fmt.share(row.share_frac)), Text(fmt.flop_rate(row.flop_per_s, "none counted")))  # fmt: skip
    return table


def _more(rows: pd.DataFrame, num_shown: int) -> list[RenderableType]:
    left_out = len(rows) - num_shown
    return [Text(f"{left_out} more: see the report or charact export", style="dim")] if left_out > 0 else []


def _titled(title: str, below: Sequence[RenderableType]) -> list[RenderableType]:
    return [Text(), Rule(Text(title, style="bold"), align="left", style="dim"),
            *(Padding(each, (0, 0, 0, 2)) for each in below)]


def constructed(run: Run) -> list[RenderableType]:
    """Return the summary of constructed models: latencies, errors, time saved, and shares by layer type."""
    models = model_summary(run)
    latencies = normalized_latency(run).query("phase == 'all'")
    verified = bool(models["measured_s"].notna().any())
    there = set(latencies.dropna(subset=["latency_s"])["strategy"])
    strategies = [each for each in _STRATEGIES if each in there]
    table = NamedTable("model", *(_STRATEGIES[each] for each in strategies), "95 % interval",
                       *(["measured", "error"] if verified else []))  # fmt: skip
    by_case = {(row.case, row.strategy): row for row in fmt.rows(latencies)}
    for row in fmt.rows(models[models["latency_s"].notna()]):
        cells = []
        for each in strategies:
            known = by_case.get((row.case, each))
            text = fmt.seconds(None, "not constructed") if known is None else fmt.seconds(known.latency_s, known.reason)
            cells.append(Text(text, style="bold" if each == row.strategy else ""))
        against = [Text(fmt.seconds(row.measured_s, "not measured")), _error(row.error_frac)] if verified else []
        table.add_row(Text(str(row.case)), *cells, Text(fmt.interval(row.low_s, row.high_s, _NO_INTERVAL)), *against)
    shown: list[RenderableType] = [table] if table.row_count else []
    shown += [*_missing_strategies(latencies, strategies), *_errors(latencies)]
    shown += [Text(regression_text(row), style="dim") for row in fmt.rows(predicted_times(run))]
    shown += [*_saved(run), *_bars(run)]
    return shown + [Text.assemble((str(row.case), "bold"), "  ", ("not constructed: ", "bold red"), str(row.reason))
                    for row in fmt.rows(models[models["latency_s"].isna()])]


def _error(error_frac: float) -> Text:
    if pd.isna(error_frac):
        return Text(fmt.missing("not measured"))
    return Text(f"{error_frac:+.1%}".replace("%", " %").replace("-", "−"),
                style="green" if abs(error_frac) <= BAND_FRAC else "yellow")  # fmt: skip


def _missing_strategies(latencies: pd.DataFrame, shown: Sequence[str]) -> list[RenderableType]:
    """Return why a strategy has no latency for any model."""
    rows = latencies[~latencies["strategy"].isin(list(shown))]
    known = latencies.loc[latencies["latency_s"].notna(), "case"]
    rows = rows[rows["case"].isin(known)].drop_duplicates(["strategy", "reason"])
    return [Text(f"{_STRATEGIES[row.strategy]}: {fmt.missing(row.reason)}", style="dim") for row in fmt.rows(rows)]


def _errors(latencies: pd.DataFrame) -> list[RenderableType]:
    """Return the table of errors over the measured models."""
    rows = latency_errors(latencies)
    if rows.empty:
        return []
    table = plain_table("constructed ÷ measured", "models", "geometric mean", "mean |error|", "worst")
    for row in fmt.rows(rows):
        table.add_row(Text(f"{_STRATEGIES[row.strategy]}, {row.mode}"), Text(f"{row.num_models}"),
                      Text(f"{row.geometric_mean:.3f}"), Text(fmt.share(row.mean_abs_error_frac), style="bold"),
                      _error(row.worst_error_frac))  # fmt: skip
    worst = rows.drop_duplicates("strategy")["worst_case"].drop_duplicates()
    return [Text(), table, Text(f"worst: {', '.join(map(str, worst))}", style="dim")]


def _saved(run: Run) -> list[RenderableType]:
    lines = []
    for row in fmt.rows(time_saved(run)):
        with_set_up = fmt.ratio(row.speedup_with_set_up, row.reason)
        lines.append(Text.assemble(
            "benchmarking time: bricks take ", (fmt.seconds(row.suite_s), "bold"),
            f" once, {'the model' if row.num_models == 1 else f'the {row.num_models:.0f} models'} "
            f"{fmt.seconds(row.models_s)}: ", (fmt.ratio(row.speedup), "bold"),
            f", with the whole suite's set-up {with_set_up}"))  # fmt: skip
    return [Text(), *lines] if lines else []


def _bars(run: Run) -> list[RenderableType]:
    """Return a bar of time by layer type for each of the first models."""
    layers = time_by_layers(run)
    shown: list[RenderableType] = []
    cases = list(layers["case"].unique())
    for case in cases[:_NUM_BARS]:
        times = layers[layers["case"] == case].groupby("operator_type")["time_s"].sum().sort_values(ascending=False)
        top, rest = times.iloc[:_NUM_TYPES], times.iloc[_NUM_TYPES:]
        parts = [Part(str(name), time_s / times.sum(), palette.operator_type(str(name)), fmt.seconds(time_s))
                 for name, time_s in top.items()]
        if len(rest):
            parts.append(Part(f"{len(rest)} more", rest.sum() / times.sum(), palette.REMAINDER,
                              fmt.seconds(rest.sum())))  # fmt: skip
        shown += [Text(), drawn(Bar(f"{case} by layer type (plain sum)", parts))]
    if len(cases) > _NUM_BARS:
        shown.append(Text(f"{len(cases) - _NUM_BARS} more models: see the report", style="dim"))
    return shown


_BASES = {"corrected": "corrected", "sequential": "plain sums", "paper": "sums by the paper’s method",
          "critical_path": "longest paths"}


def machines(latencies: pd.DataFrame) -> RenderableType:
    """Return a table of models by machines, from `latency_by_machine`, and reasons for missing latencies below it."""
    names = list(dict.fromkeys(latencies["machine"]))
    keys = ["workload", "variant", "input_size", "batch_size", "mode", "precision"]
    table = NamedTable("model", *map(str, names))
    reasons: list[RenderableType] = []
    num_variants = latencies.groupby("workload")["variant"].nunique().to_dict()
    for key, rows in latencies.groupby(keys, sort=False, dropna=False):
        cells = [_on_machine(fmt.rows(rows[rows["machine"] == name])) for name in names]
        facts = dict(zip(keys, key, strict=True))
        if num_variants[facts["workload"]] > 1:
            facts["workload"] = f"{facts['workload']}.{facts['variant']}"
        model = configuration(facts)
        table.add_row(Text(model), *cells)
        reasons += [Text(f"{model} on {row.machine}: {fmt.missing(row.reason)}", style="dim")
                    for row in fmt.rows(rows[rows["latency_s"].isna()])]
    bases = [_BASES[name] for name in dict.fromkeys(latencies["strategy"].dropna())]
    title = Text.assemble(("latency by machine", "bold"), (f"  {', '.join(bases)}", "dim"))
    return Group(Text(), title, table, *reasons)


def _on_machine(rows: Iterable[Any]) -> Text:
    """Return a model's latency on a machine; several, in the order of the records, if there are several."""
    found = []
    for row in rows:
        measured = "" if pd.isna(row.measured_s) else f" (measured {fmt.seconds(row.measured_s)})"
        found.append(Text.assemble((fmt.seconds(row.latency_s), "bold"), measured))
    return Text(", ").join(found) if found else Text(fmt.missing("not constructed there"))


def configuration(facts: dict[str, Any]) -> str:
    """Return a model's configuration as text, without the device: resnet18 224 b8 infer fp32."""
    words = [facts["workload"], facts["input_size"],
             None if pd.isna(facts["batch_size"]) else f"b{facts['batch_size']:.0f}", facts["mode"], facts["precision"]]
    return " ".join(f"{word:.0f}" if isinstance(word, float) else str(word) for word in words if pd.notna(word))


class BrickProgress(LiveProgress):
    """Progress of rounds over the bricks of a suite."""

    def pass_started(self, name: str) -> None:
        """Show the current step: timing rounds or memory."""
        self._progress.update(self._task, state="first round" if name == "bricks" else name)
        self._draw()

    def iteration(self, num_iterations: int, median_s: float) -> None:
        """Show the number of rounds, and the time of the last one."""
        if self._is_due:
            self._progress.update(self._task, state=f"{num_iterations} rounds, {median_s:.3g} s each")
            self._draw()
