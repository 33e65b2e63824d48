"""Northeastern's comparison: time, accuracy and speedup of two networks on three data sets against two GPUs."""

from collections.abc import Sequence

import pandas as pd

from charact.analysis.training.stages import learning_curves, training_summary
from charact.core.units import digits
from charact.record.reader import Run
from charact.studies.claims import claims_block
from charact.studies.published import (
    INTERVAL_MEANING,
    NUM_SAMPLES,
    claims_of,
    published_cases,
    ratio_of_trainings,
    trainings,
)
from charact.studies.study import Study
from charact.views.document import Block, Body
from charact.views.figures.bars import bars_by_name
from charact.views.figures.curves import learning_curve
from charact.views.tables import format as fmt
from charact.views.tables import palette
from charact.views.tables.model import Column, table

_SECONDS_PER_HOUR = 3600
_K80, _P100 = "northeastern-k80", "northeastern-p100"


def chapter(runs: Sequence[Run]) -> Body:
    """Build the chapter: times, speedups, accuracy, learning curves."""
    keys = ["workload", "data", "num_epochs"]
    k80, p100 = (published_cases([name]).set_index(keys)[["total_s", "accuracy"]] for name in (_K80, _P100))
    rows = k80.merge(p100, left_index=True, right_index=True, suffixes=("_k80", "_p100")).reset_index()
    rows = trainings(runs, rows.assign(num_samples=rows["data"].map(NUM_SAMPLES)))
    rows = rows.assign(p100_over_k80=rows["total_s_k80"] / rows["total_s_p100"],
                       over_k80=rows["total_s_k80"] / rows["modelled_s"],
                       over_p100=rows["total_s_p100"] / rows["modelled_s"],
                       name=rows["workload"] + ", " + rows["data"])
    return Body(blocks=[_claims(rows), *_times(rows), _speedups(rows), _accuracy(rows), *_curves(runs)])


def _claims(rows: pd.DataFrame) -> Block:
    """Return the claims' table; how much a task gains from a faster GPU needs two GPUs, and one machine is here."""
    p100_s = rows[rows["data"] == "mnist"].set_index("workload")["total_s_p100"]
    return claims_block(claims_of("northeastern", {"networks": p100_s["googlenet"] / p100_s["resnet18"]}),
                        {"networks": ratio_of_trainings(rows, ("googlenet", "mnist"), ("resnet18", "mnist"))})


_NAMES = [Column("workload", "Workload"), Column("data", "Data")]


@fmt.or_missing
def _factor(value: float) -> str:
    return f"× {digits(value)}"


def _not_run(row: object) -> str:
    return "not run"


def _times(rows: pd.DataFrame) -> list[Block]:
    machines = {"total_s_k80": "K80", "total_s_p100": "P100", "modelled_s": "here, modelled"}
    long = rows.melt(id_vars=["name"], value_vars=list(machines), value_name="time_s", var_name="machine").dropna()
    long = long.assign(name=long["name"] + ": " + long["machine"].map(machines),
                       time_h=long["time_s"] / _SECONDS_PER_HOUR)
    order = {name: number for number, name in enumerate(rows["name"])}
    long = long.sort_values("name", key=lambda names: names.str.split(":").str[0].map(order), kind="stable")
    colors = dict(zip(machines.values(), palette.CASES, strict=False))
    figure = bars_by_name("Training time of 10 epochs", long, "time_h", "h", "10 epochs",
                          lambda row: colors[str(row.name).split(": ")[1]])
    # The table is a block of its own: below a figure it would be folded, and the published values with it.
    return [Block(title="Training time of 10 epochs", table=table(rows, "Training time of 10 epochs", [
                *_NAMES, Column("total_s_k80", "K80", fmt.duration, "published"),
                Column("total_s_p100", "P100", fmt.duration, "published"),
                Column("modelled_s", "Here", fmt.duration, "modelled from the measured samples/s: training alone",
                       _not_run),
                Column("modelled_interval", "95 % interval", None, INTERVAL_MEANING, _not_run, unbroken=True),
                Column("measured_s", "Measured", fmt.duration, "total execution time of what was run", _not_run),
                Column("source", "Of", None, "the data that were read", unbroken=True)])),
            Block(figures=[figure], legend=list(colors.items()))]


def _speedups(rows: pd.DataFrame) -> Block:
    return Block(title="Speedup", table=table(rows, "Speedup: a ratio of times, above 1 is faster", [
        *_NAMES, Column("p100_over_k80", "P100 over K80", _factor, "published"),
        Column("over_k80", "Here over K80", _factor, "published time / modelled time", _not_run),
        Column("over_p100", "Here over P100", _factor, "published time / modelled time", _not_run)]),
        note="The publication calls (K80 − P100) / P100 the speedup, which is 1 less than the ratio.")


def _accuracy(rows: pd.DataFrame) -> Block:
    def why(row: object) -> str:
        source = str(getattr(row, "source", ""))
        return "synthetic labels are random" if source.startswith("synthetic") else "not run"

    return Block(title="Accuracy", table=table(rows, "Accuracy", [
        *_NAMES, Column("accuracy_k80", "K80", fmt.share, "published, after 10 epochs"),
        Column("accuracy_p100", "P100", fmt.share, "published, after 10 epochs"),
        Column("accuracy", "Here", fmt.share, "best of the epochs that were run, on the validation data", why)]))


def _curves(runs: Sequence[Run]) -> list[Block]:
    frames = []
    for run in runs:
        curves = learning_curves(run).query("metric == 'accuracy'")
        cases = run.cases[["case", "workload"]].merge(training_summary(run)[["case", "data"]], on="case")
        cases = cases[cases["data"] != "synthetic"]
        curves = curves.merge(cases, on="case")
        frames.append(curves.assign(case=curves["workload"] + ", " + curves["data"]))
    curves = pd.concat(frames) if frames else pd.DataFrame(columns=["case"])
    if curves.empty or curves["epoch"].max() < 2:
        return []
    colors = {case: palette.CASES[number % len(palette.CASES)] for number, case in enumerate(curves["case"].unique())}
    return [Block(title="Accuracy by epoch", figures=[learning_curve("accuracy", curves, colors)],
                  legend=list(colors.items()))]


STUDY = Study(
    "northeastern", "Northeastern: training time on two GPUs",
    "Northeastern University: training time of GoogLeNet and ResNet-18 on the GPUs K80 and P100", chapter,
    {"quick": ("2 epochs of 6 batches, not 10 epochs of all: the time of 10 epochs is modelled from samples/s.",
               "Optimizer, learning rate and loss are not published: the workloads' own are used."),
     "full": ("Optimizer, learning rate and loss are not published: the workloads' own are used.",)})
