"""Northeastern's comparison: time, accuracy and speedup of two networks on three data sets against two GPUs."""

from collections.abc import Sequence

import pandas as pd

from charact.analysis.training.stages import learning_curves, training_summary
from charact.core.units import digits
from charact.record.reader import Run
from charact.studies.analysis.gains import (
    gain_correlation,
    longer_iterations,
    relative_gains,
    trainings_and_gains,
)
from charact.studies.claims import Value, claims_block
from charact.studies.published import INTERVAL_MEANING, claims_of, ratio_of_trainings
from charact.studies.study import Study
from charact.studies.views.figures import gains as gains_figure
from charact.studies.views.figures import times
from charact.views.charts import MIN_SIZES, Chart, stacked_bars
from charact.views.document import Block, Body, Legend
from charact.views.figures.curves import learning_curve
from charact.views.tables import format as fmt
from charact.views.tables import palette
from charact.views.tables.model import Column, table, with_footnotes


def chapter(runs: Sequence[Run]) -> Body:
    """Build the chapter: claims, times, what the faster GPU gains and why, accuracy with learning curves."""
    rows = trainings_and_gains(runs)
    rows = rows.assign(name=rows["workload"] + ", " + rows["data"])
    return Body(blocks=[_claims(rows), _times(rows), _gains(rows), _accuracy(rows, runs)])


def _claims(rows: pd.DataFrame) -> Block:
    """Return the claims' table; how much a task gains from a faster GPU needs two GPUs, and one machine is here."""
    p100_s = rows[rows["data"] == "mnist"].set_index("workload")["total_s_p100"]
    gains = {f"gain_{data}": ratio for data, ratio in relative_gains().items()}
    one_machine = Value(reason="the gain needs two machines, and one is here")
    return claims_block(
        claims_of("northeastern", {"networks": p100_s["googlenet"] / p100_s["resnet18"], **gains}),
        {"networks": ratio_of_trainings(rows, ("googlenet", "mnist"), ("resnet18", "mnist")),
         **dict.fromkeys(gains, one_machine)})


_NAMES = [Column("workload", "Workload"), Column("data", "Data")]


@fmt.or_missing
def _factor(value: float) -> str:
    return f"× {digits(value)}"


def _not_run(row: object) -> str:
    return "not run"


def _times(rows: pd.DataFrame) -> Block:
    figures, legend = times("Training time of 10 epochs", rows, {"total_s_k80": "K80", "total_s_p100": "P100"},
                            "10 epochs", "h")
    return Block(title="Training time of 10 epochs", figures=figures, legend=legend, table=table(
        rows, "Training time of 10 epochs", [
            *_NAMES, Column("total_s_k80", "K80", fmt.duration, "published"),
            Column("total_s_p100", "P100", fmt.duration, "published"),
            Column("modelled_s", "Here", fmt.duration, "modelled from the measured samples/s: training alone",
                   _not_run),
            Column("modelled_interval", "95 % interval", None, INTERVAL_MEANING, _not_run, unbroken=True),
            Column("over_k80", "Here over K80", _factor, "published time / modelled time", _not_run),
            Column("over_p100", "Here over P100", _factor, "published time / modelled time", _not_run),
            Column("measured_s", "Measured", fmt.duration, "total execution time of what was run", _not_run),
            Column("source", "Of", None, "the data that were read", unbroken=True)]))


def _gains(rows: pd.DataFrame) -> Block:
    """Return what each training gains from the faster GPU next to how long an iteration waits for the host."""
    title = "Why some tasks gain less from the faster GPU"
    drawn = rows.dropna(subset=["host_frac"])
    colors = dict(zip(rows["workload"].unique(), palette.CASES, strict=False))
    parts = longer_iterations()
    parts = parts.assign(name=parts["workload"] + ", " + parts["data"] + ": " + parts["machine"])
    figures = [stacked_bars("Published iterations against those on MNIST", parts, ("name", "part", "time_s"),
                            _PARTS.__getitem__, "share of an iteration, by published times", unit=None)]
    figures += [gains_figure(title, drawn, colors)] if len(drawn) else []

    def is_reference(row: object) -> str:
        return "the reference"

    def not_profiled(row: object) -> str:
        return "not profiled: charact study northeastern"

    shown = table(rows, "Speedup of the P100, and the host-bound share", [
        *_NAMES, Column("gain", "K80 / P100", fmt.ratio, "published times"),
        Column("iteration_s_k80", "Iteration, K80", fmt.seconds, "published time / number of batches of 10"),
        Column("iteration_s_p100", "Iteration, P100", fmt.seconds, "published time / number of batches of 10"),
        Column("beyond_s_k80", "Beyond MNIST, K80", fmt.change, _BEYOND, is_reference),
        Column("beyond_s_p100", "Beyond MNIST, P100", fmt.change, _BEYOND, is_reference),
        Column("data_frac", "Data", fmt.share, "phase data, share of an iteration here", not_profiled),
        Column("launch_frac", "Launch", fmt.share, "share of an iteration here: on a CPU Python and the calling of "
               "operators, on a GPU its waiting for launches", not_profiled),
        Column("host_frac", "Host-bound", fmt.share, "data + launch: the device waits for the host", not_profiled),
        Column("read", "Profiled", None, "the data that were read", not_profiled)])
    return Block(title=title, figures=figures, legend=[*_PARTS.items(), *(colors.items() if len(drawn) else [])],
                 table=with_footnotes(shown), note=" ".join([_published_answer(), _answer_here(rows)]).strip())


_BEYOND = "iteration − that of the same network on MNIST, whose tensors have the same shapes"
_PARTS = {"as on MNIST": "#77AADD", "beyond MNIST": "#EE8866"}
_EQUAL_FRAC = 0.01
"""Largest difference of two gains that are called equal."""


def _published_answer() -> str:
    less = [data for data, ratio in relative_gains().items() if ratio < 1 - _EQUAL_FRAC]
    return (f"By the published times, ResNet-18 gains less than GoogLeNet, by more than {100 * _EQUAL_FRAC:.0f} %, on "
            f"{' and '.join(less)} only. There an iteration takes longer than on MNIST by a similar time for both "
            "networks, although the tensors have the same shapes. This points to the host: its time is a larger part "
            "of the shorter iteration.")


def _answer_here(rows: pd.DataFrame) -> str:
    correlation = gain_correlation(rows)
    if correlation is None:
        return ""
    shares = rows["host_frac"].dropna()
    return (f"Here, {fmt.share(shares.min())} to {fmt.share(shares.max())} of an iteration wait for the host; the rank "
            f"correlation of that share with the published speedup is {f'{correlation:+.2f}'.replace('-', '−')} over "
            f"{len(shares)} trainings.")


def _accuracy(rows: pd.DataFrame, runs: Sequence[Run]) -> Block:
    """Return the accuracies, with the learning curves on real data."""
    def why(row: object) -> str:
        source = str(getattr(row, "source", ""))
        return "synthetic labels are random" if source.startswith("synthetic") else "not run"

    figures, legend = _curves(runs)
    shown = table(rows, "Accuracy", [
        *_NAMES, Column("accuracy_k80", "K80", fmt.share, "published, after 10 epochs"),
        Column("accuracy_p100", "P100", fmt.share, "published, after 10 epochs"),
        Column("accuracy", "Here", fmt.share, "best of the epochs that were run, on the validation data", why)])
    return Block(title="Accuracy" if figures else "", figures=figures, legend=legend, folded=not figures, table=shown)


def _curves(runs: Sequence[Run]) -> tuple[list[Chart], Legend]:
    frames = []
    for run in runs:
        curves = learning_curves(run).query("metric == 'accuracy'")
        cases = run.cases[["case", "workload"]].merge(training_summary(run)[["case", "data"]], on="case")
        cases = cases[cases["data"] != "synthetic"]
        curves = curves.merge(cases, on="case")
        frames.append(curves.assign(case=curves["workload"] + ", " + curves["data"]))
    curves = pd.concat(frames) if frames else pd.DataFrame(columns=["case"])
    if curves.empty or curves["epoch"].max() < MIN_SIZES:
        return [], []
    colors = {case: palette.CASES[number % len(palette.CASES)] for number, case in enumerate(curves["case"].unique())}
    return [learning_curve("accuracy", curves, colors)], list(colors.items())


STUDY = Study(
    "northeastern", "Northeastern: training time on two GPUs",
    "Northeastern University: training time of GoogLeNet and ResNet-18 on the GPUs K80 and P100", chapter,
    {"quick": ("2 epochs of 6 batches, not 10 epochs of all: the time of 10 epochs is modelled from samples/s.",
               "Optimizer, learning rate and loss are not published: the workloads' own are used."),
     "full": ("Optimizer, learning rate and loss are not published: the workloads' own are used.",)})
