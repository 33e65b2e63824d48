"""The section of trainings: where their time goes, how they learn, and whose protocol they followed."""

import json
from typing import Any

import pandas as pd

from charact.analysis.training.stages import (
    TRAINING_STAGES,
    learning_curves,
    stage_breakdown,
    stage_times,
    training_summary,
)
from charact.record.reader import Run
from charact.views.html.elements import bars
from charact.views.html.elements import curves as drawn
from charact.views.html.elements.blocks import (
    CASE,
    STATUS,
    Block,
    Body,
    Card,
    failure_of,
    legend_of,
    missing_cases,
    status_reason,
    why_nothing,
)
from charact.views.tables import format as fmt
from charact.views.tables import palette
from charact.views.tables.model import Column, Table, share_column, table

_TOTAL = "training, validation and checkpointing of all epochs"


def _no_epoch(row: Any) -> str:
    return status_reason(row) or "no epoch was finished"


def cards(summary: pd.DataFrame, parts: pd.DataFrame) -> list[Card]:
    """A card a training: its total execution time, split by stage, and what came out."""
    return [_card(row, parts[parts["case"] == row.case]) for row in fmt.rows(summary)]


def _card(row: Any, parts: pd.DataFrame) -> Card:
    failure = failure_of(row.status, row.reason)
    if pd.isna(row.total_s):
        return Card(row.case, failure=failure or ("nothing", _no_epoch(row)))
    shares = parts.groupby("stage", sort=False)["share_frac"].sum()
    epochs = "1 epoch" if row.num_epochs == 1 else f"{fmt.number(row.num_epochs)} epochs"
    stages = [
        f"{stage} {fmt.duration(getattr(row, f'{stage}_s'))}"
        for stage in TRAINING_STAGES if pd.notna(getattr(row, f"{stage}_s"))
    ]  # fmt: skip
    compiled = [] if pd.isna(row.compile_s) else [f"compiling took {fmt.duration(row.compile_s)} of it"]
    return Card(
        row.case,
        failure=failure,
        headline=(fmt.duration(row.total_s), f"for {epochs}"),
        details=[", ".join(stages), *compiled],
        numbers=[
            ("samples/s", fmt.number(row.samples_per_s, _no_epoch(row))),
            _best(row),
            _time_to_target(row) if pd.notna(row.target_metric) else
            ("last validation loss", fmt.number(row.validation_loss, _no_epoch(row))),
        ],
        bar=[(str(stage), float(share_frac), palette.STAGES[str(stage)]) for stage, share_frac in shares.items()],
    )  # fmt: skip


def _best(row: Any) -> tuple[str, str]:
    if pd.isna(row.best_value):
        return "best", fmt.missing(_no_epoch(row))
    return f"best {row.best_metric}, epoch {row.best_epoch:.0f}", fmt.metric(row.best_metric, row.best_value)


def _time_to_target(row: Any) -> tuple[str, str]:
    target = fmt.metric(row.target_metric, row.target_value).replace(" ", "\N{NO-BREAK SPACE}")
    return f"to {row.target_metric} {target}", fmt.duration(row.time_to_target_s, row.target_reason)


def headlines(summary: pd.DataFrame, *more: Column) -> Table:
    """Headline numbers of each training; `more` columns stand after the case."""
    best = [None if pd.isna(row.best_value) else fmt.best(row) for row in fmt.rows(summary)]
    target = [None if pd.isna(row.target_value) else fmt.target(row) for row in fmt.rows(summary)]
    words = pd.DataFrame({"best": best, "target": target}, index=summary.index, dtype="str")
    summary = summary.join(words)
    columns = [
        CASE, *more, STATUS,
        Column("total_s", "Total time", fmt.duration, _TOTAL, _no_epoch),
        Column("samples_per_s", "Samples/s", fmt.number, "samples trained on / time of training", _no_epoch),
        Column("best", "Best", None, "of the epochs, on the validation data", _no_epoch, unbroken=True),
        Column("target", "Target", None, "asked for with --until", lambda row: "none was given", unbroken=True),
        Column("time_to_target_s", "Time to target", fmt.duration, "total time when it was reached",
               lambda row: _no_epoch(row) if pd.isna(row.target_reason) else row.target_reason),
        Column("training_s", "Training", fmt.duration, "over all epochs", _no_epoch),
        Column("validation_s", "Validation", fmt.duration, "over all epochs", lambda row: "not validated"),
        Column("checkpointing_s", "Checkpointing", fmt.duration, "over all epochs", lambda row: "no checkpoints"),
        Column("training_loss", "Last training loss", fmt.number, "of the last finished epoch", _no_epoch),
        Column("validation_loss", "Last validation loss", fmt.number, "of the last finished epoch", _no_epoch),
    ]  # fmt: skip
    return table(summary, "Headline numbers of each training", columns)


def training(run: Run) -> Body:
    """Curves of each metric, time by stage and phase, epochs, what was run, and the protocol."""
    times = stage_times(run)
    if times.empty:
        return Body(blocks=[Block(note=why_nothing(run, "training"))])
    lead = (
        "Total execution time is training, validation and checkpointing over all epochs; making the model and reading "
        "the data set come before it. Loss and metrics are means over a stage’s samples: those of training are taken "
        "while the weights still change."
    )
    blocks = [_curves(run), *_breakdowns(run), _setups(run), *_protocols(run)]
    return Body(lead=lead, blocks=[*blocks, *missing_cases(run, "training", times["case"])])


def _curves(run: Run) -> Block:
    """A figure a metric, and the table of epochs."""
    curves = learning_curves(run)
    cases = list(curves["case"].unique())
    colors = {case: palette.CASES[number % len(palette.CASES)] for number, case in enumerate(cases)}
    figures = [
        drawn.learning_curve(str(metric), rows, colors)
        for metric, rows in curves.groupby("metric", sort=False) if rows["value"].notna().any()
    ]  # fmt: skip
    shown = _epochs(run, curves)
    synthetic = (training_summary(run)["data"] == "synthetic").any()
    return Block(title="Learning curves", figures=figures, legend=list(colors.items()) if figures else [], table=shown,
                 note=fmt.OF_NO_TASK if synthetic else "")


def _epochs(run: Run, curves: pd.DataFrame) -> Table:
    """A row an epoch: the time of its stages, then each metric in training and validation."""
    times = stage_times(run).rename(columns={"number": "epoch"})
    rows = times.pivot_table(index=["case", "epoch"], columns="stage", values="wall_s", sort=False).reset_index()
    columns = [CASE, Column("epoch", "Epoch", fmt.number)]
    columns += [
        Column(stage, stage.capitalize(), fmt.duration, f"time of the epoch's {stage}", lambda row: "not run")
        for stage in TRAINING_STAGES if stage in rows
    ]  # fmt: skip
    elapsed = curves.groupby(["case", "epoch"], as_index=False)["elapsed_s"].max()
    rows = rows.merge(elapsed, on=["case", "epoch"], how="left")
    columns.append(Column("elapsed_s", "Elapsed", fmt.duration, "total time at the end of its validation",
                          lambda row: "no metrics"))  # fmt: skip
    for number, ((metric, stage), values) in enumerate(curves.groupby(["metric", "stage"], sort=False)):
        name = f"value_{number}"  # a metric's name need not be one of Python's
        keyed = values.set_index(["case", "epoch"])
        rows = rows.join(keyed["value"].rename(name), on=["case", "epoch"])
        columns.append(_metric_column(name, str(metric), str(stage), keyed["reason"].to_dict()))
    return table(rows, "Epochs", columns)


def _metric_column(name: str, metric: str, stage: str, reasons: dict[Any, Any]) -> Column:
    def words(value: float | None, reason: str | None) -> str:
        return fmt.metric(metric, value, reason)

    def why(row: Any) -> str:
        reason = reasons.get((row.case, row.epoch))
        return "not told" if pd.isna(reason) else str(reason)

    return Column(name, f"{metric}, {stage}", words, f"mean over the samples of the {stage}", why)


def _breakdowns(run: Run) -> list[Block]:
    """A figure a case: the phases of each stage."""
    columns = [
        Column("stage", "Stage"), Column("phase", "Phase"), Column("time_s", "Time", fmt.duration, "over all epochs"),
        share_column("share_frac", "Share", "part of the total execution time"),
    ]  # fmt: skip
    return [
        Block(
            title=f"Time by stage and phase: {case}", case=str(case), figures=bars.stages(str(case), parts),
            legend=legend_of(parts["phase"], palette.PHASES),
            table=table(parts, f"Time by stage and phase of {case}", columns),
        )
        for case, parts in stage_breakdown(run).groupby("case", sort=False)
    ]


def _setups(run: Run) -> Block:
    """What each training was given: the manifest's facts."""
    facts = [
        {"case": entry["case"], "reason": entry["reason"], **entry["passes"]["training"]}
        for entry in run.manifest["cases"] if "training" in entry["passes"]
    ]  # fmt: skip
    names = ["case", "num_epochs_asked", "num_epochs", "num_train_samples", "num_valid_samples", "setup_s",
             "num_resumed", "weights"]  # fmt: skip
    columns = [
        CASE, Column("num_epochs_asked", "Epochs asked", fmt.number), Column("num_epochs", "Finished", fmt.number),
        Column("num_train_samples", "Trained on", fmt.number, "samples of an epoch"),
        Column("num_valid_samples", "Validated on", fmt.number, "samples of an epoch"),
        Column("setup_s", "Set-up", fmt.duration, "reading the data set and making the model; not in the total"),
        Column("num_resumed", "Resumed", fmt.number, "times it went on after it had been ended"),
        Column("weights", "Best weights", None, "file in the run's directory", lambda row: "none were kept",
               unbroken=True),
    ]  # fmt: skip
    return Block(title="What was run", table=table(pd.DataFrame(facts).reindex(columns=names), "Trainings", columns))


def _protocols(run: Run) -> list[Block]:
    """Each protocol that a case followed, with what was changed from it."""
    found = [entry["passes"].get("training", {}).get("protocol") for entry in run.manifest["cases"]]
    columns = [Column("option", "Option"), Column("published", "Published"), Column("used", "Here")]
    blocks = []
    for text in dict.fromkeys(json.dumps(each) for each in found if each):
        protocol = json.loads(text)
        rows = [[option, *map(_in_words, values)] for option, values in protocol["changed"].items()]
        changed = pd.DataFrame(rows, columns=["option", "published", "used"])
        source = f"Source: {protocol['source']}. Not stated there: {protocol['unstated']}."
        note = source if rows else f"Followed as published, nothing was changed. {source}"
        shown = table(changed, f"What was changed from {protocol['name']}", columns) if rows else None
        blocks.append(Block(title=f"Protocol: {protocol['name']}", table=shown, note=note))
    return blocks


def _in_words(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "none" if value is None else str(value)
