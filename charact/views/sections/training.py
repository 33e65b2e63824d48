"""The report section Training: learning curves, time by stage and phase, setups and protocols."""

from collections.abc import Iterator, Mapping
from functools import partial
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
from charact.views.document import Block, Body
from charact.views.figures import bars
from charact.views.figures import curves as drawn
from charact.views.html.elements.blocks import CASE, legend_of
from charact.views.section import Scalar, Section, body_of
from charact.views.tables import format as fmt
from charact.views.tables import palette
from charact.views.tables.model import Column, Table, share_column, table

_LEAD = (
    "Total execution time is training, validation and checkpointing over all epochs, without building the model "
    "and reading the data set. Loss and metrics are means over a stage’s samples: those of training are taken "
    "while the weights change."
)


def _html(run: Run) -> Body:
    cases = stage_times(run)["case"]
    blocks = [_curves(run), *_breakdowns(run), _setups(run), *_protocols(run)] if len(cases) else []
    return body_of(run, "training", _LEAD, blocks, cases)


def _curves(run: Run) -> Block:
    """Build the learning curves: a figure per metric, and the table of epochs."""
    curves = learning_curves(run)
    colors = {case: palette.CASES[number % len(palette.CASES)] for number, case in enumerate(curves["case"].unique())}
    figures = [
        drawn.learning_curve(str(metric), rows, colors)
        for metric, rows in curves.groupby("metric", sort=False) if rows["value"].notna().any()
    ]  # fmt: skip
    synthetic = (training_summary(run)["data"] == "synthetic").any()
    return Block(title="Learning curves", figures=figures, legend=list(colors.items()) if figures else [],
                 table=_epochs(run, curves), note=fmt.OF_NO_TASK if synthetic else "")


def _epochs(run: Run, curves: pd.DataFrame) -> Table:
    """Build the table of epochs: times of the stages, then training and validation metrics."""
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
        name = f"value_{number}"  # a metric's name may not be a Python identifier
        keyed = values.set_index(["case", "epoch"])
        rows = rows.join(keyed["value"].rename(name), on=["case", "epoch"])
        reasons = keyed["reason"].dropna().to_dict()
        columns.append(Column(name, f"{metric}, {stage}", partial(fmt.metric, str(metric)),
                              f"mean over the samples of the {stage}", partial(_not_reported, reasons)))
    return table(rows, "Epochs", columns)


def _not_reported(reasons: Mapping[Any, str], row: Any) -> str:
    return reasons.get((row.case, row.epoch), "not reported")


def _breakdowns(run: Run) -> list[Block]:
    """Build a block per case with the time of each phase of each stage."""
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
    """Build the table of each training's epochs, samples, set-up time and saved weights."""
    columns = [
        CASE, Column("num_epochs_asked", "Epochs requested", fmt.number), Column("num_epochs", "Finished", fmt.number),
        Column("num_train_samples", "Trained on", fmt.number, "samples of an epoch"),
        Column("num_valid_samples", "Validated on", fmt.number, "samples of an epoch"),
        Column("setup_s", "Set-up", fmt.duration, "reading the data set and building the model; not in the total"),
        Column("num_resumed", "Resumed", fmt.number, "how often it was resumed"),
        Column("weights", "Best weights", None, "file in the run's directory", lambda row: "none were saved",
               unbroken=True),
    ]  # fmt: skip
    facts = [{"case": entry.case} | {column.name: getattr(entry.passes.training, column.name) for column in columns[1:]}
             for entry in run.entries_with("training")]
    return Block(title="Trainings", table=table(pd.DataFrame(facts), "Trainings", columns))


def _protocols(run: Run) -> list[Block]:
    """Build a block per published protocol, with a table of the options that differ from it."""
    def in_words(value: Any) -> str:
        if isinstance(value, list):
            return ", ".join(map(str, value))
        return "none" if value is None else str(value)

    columns = [Column("option", "Option"), Column("published", "Published"), Column("used", "Here")]
    protocols = [entry.passes.training.protocol for entry in run.entries_with("training")]
    blocks = []
    for protocol in {repr(each): each for each in protocols if each is not None}.values():
        rows = [[option, *map(in_words, values)] for option, values in protocol.changed.items()]
        source = f"Source: {protocol.source}. Not stated there: {protocol.unstated}."
        changed = table(pd.DataFrame(rows, columns=["option", "published", "used"]),
                        f"What was changed from {protocol.name}", columns)
        blocks.append(Block(title=f"Protocol: {protocol.name}", table=changed if rows else None,
                            note=source if rows else f"Followed as published, nothing was changed. {source}"))
    return blocks


def _scalars(run: Run) -> Iterator[Scalar]:
    for row in learning_curves(run).dropna(subset=["value"]).to_dict("records"):
        yield Scalar(f"{row['case']}/{row['metric']}/{row['stage']}", row["epoch"], row["value"])
    for row in stage_times(run).to_dict("records"):
        if row["stage"] in TRAINING_STAGES:
            yield Scalar(f"{row['case']}/epoch_s/{row['stage']}", row["number"], row["wall_s"])


SECTION = Section("training", "Training", 30, _html, ("training",), scalars=_scalars,
                  points={"training": [
    ("Total execution time", "time of all epochs on the host’s clock: training, validation and checkpointing, each "
     "until the device has finished. Reading the data set and building the model are timed separately."),
    ("Phases of a stage", "marked as in a profile, without a profiler. If the device has timed phases, its times split "
     "the stage’s wall time."),
    ("Loss and metrics", "means over the samples of a stage. Those of training are taken while the weights change, so "
     "that they are older than those of the validation that follows."),
    ("Time to target", "total execution time at the end of the validation that first reached the target; its "
     "resolution is one epoch."),
]})
