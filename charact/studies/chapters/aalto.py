"""Aalto's hardware benchmark: Models A and B, their inference, rates, limits and memory, and basic operations."""

from collections.abc import Sequence

import pandas as pd

from charact.analysis.efficiency.bottleneck import bottlenecks
from charact.analysis.memory.composition import is_memory_run
from charact.analysis.profile.case_summary import case_summary
from charact.analysis.training.stages import inference_summary
from charact.record.reader import Run
from charact.studies.published import published_cases, trainings
from charact.studies.study import Study
from charact.views.html.elements.blocks import Block, Body
from charact.views.html.elements.bricks import bars_by_name
from charact.views.sections.operations import operations
from charact.views.sections.profile import _memory_tables as memory_tables
from charact.views.tables import format as fmt
from charact.views.tables import palette
from charact.views.tables.model import Column, table

_SETUPS = ("aalto-1", "aalto-2", "aalto-3", "aalto-4")
_NUM_SAMPLES, _NUM_PREDICTED = 60_000, 10_000


def chapter(runs: Sequence[Run]) -> Body:
    """Build the chapter in the order of the study."""
    return Body(blocks=[*_training(runs), *_inference(runs), *_rates(runs), *_memory(runs), *_operations(runs)])


def _published(mode: str, *keys: str) -> tuple[pd.DataFrame, list[Column]]:
    """Return a row per case with the published times, and the columns that show them."""
    frame = published_cases(_SETUPS).query("mode == @mode")
    setups = frame.drop_duplicates("reference")[["reference", "machine"]]
    wide = frame.pivot_table(index=list(keys), columns="reference", values="total_s", sort=False)
    columns = [Column(f"setup_{row.reference[-1]}", f"{row.machine} (setup {row.reference[-1]})", fmt.duration,
                      "published") for row in fmt.rows(setups)]
    wide = wide[setups["reference"]]
    wide.columns = pd.Index([column.name for column in columns])
    return wide.reset_index(), columns


def _training(runs: Sequence[Run]) -> list[Block]:
    rows, columns = _published("train", "workload", "data", "num_epochs")
    shown = trainings(runs, rows.assign(num_samples=_NUM_SAMPLES))
    drawn = shown.dropna(subset=["modelled_s"]).assign(name=lambda frame: frame["workload"] + ", " + frame["data"])
    figures = [bars_by_name("Total execution time here, modelled", drawn, "modelled_s", "s",
                            "all epochs of 60,000 samples", lambda row: palette.CASES[0])] if len(drawn) else []
    found = table(shown, "Total execution time", [
        Column("workload", "Workload"), Column("data", "Data"), Column("num_epochs", "Epochs", fmt.number), *columns,
        Column("modelled_s", "Here", fmt.duration, "modelled from the measured samples/s: training alone", _not_run),
        Column("measured_s", "Measured", fmt.duration, "total execution time of what was run", _not_run),
        Column("source", "Of", None, "the data that were read", unbroken=True)])
    return [Block(title="Total execution time", table=found, figures=figures,
                  note="The published time includes validating after each epoch; the modelled one does not.")]


def _not_run(row: object) -> str:
    return "not run"


def _inference(runs: Sequence[Run]) -> list[Block]:
    frames = [inference_summary(run).merge(run.cases[["case", "workload"]], on="case") for run in runs]
    frames = [frame for frame in frames if len(frame)]
    rows, columns = _published("infer", "workload")
    ours = pd.concat(frames) if frames else pd.DataFrame(
        columns=["workload", "total_cold_s", "total_warm_s", "load_warm_s", "samples_per_s"])
    shown = rows.merge(ours.drop(columns=["data"], errors="ignore"), on="workload", how="left")
    predicted_s = _NUM_PREDICTED / shown["samples_per_s"].astype(float)
    shown = shown.assign(modelled_s=shown["load_warm_s"].astype(float) + predicted_s)
    return [Block(title="Total inference time: load and predict", table=table(
        shown, "Total inference time: load and predict", [
            Column("workload", "Workload"), *columns,
            Column("modelled_s", "Here", fmt.duration, "modelled: warm load + 10,000 images at the measured samples/s",
                   _not_run),
            Column("total_warm_s", "Measured, warm", fmt.duration, "warm load + what was predicted",
                   _not_run),
            Column("total_cold_s", "Measured, cold", fmt.duration, "cold load + what was predicted",
                   lambda row: "not run, or the file could not be dropped from the page cache"),
            Column("samples_per_s", "Samples/s", fmt.number, "", _not_run)]))]


def _rates(runs: Sequence[Run]) -> list[Block]:
    """Return FLOP/s and what limits each model."""
    found = []
    for run in runs:
        summary = case_summary(run)
        found.append(summary[summary["kind"] == "profile"].merge(bottlenecks(run), on="case",
                                                                suffixes=("", "_verdict")))
    rows = pd.concat(found, ignore_index=True) if found else pd.DataFrame()
    rows = rows[rows["median_s"].notna()] if len(rows) else rows
    if rows.empty:
        return []
    verdicts = {number: fmt.verdict(row) for number, row in enumerate(fmt.rows(rows)) if pd.notna(row.verdict)}
    shown = rows.reset_index(drop=True).assign(verdict=pd.Series(verdicts, dtype="str"))
    return [Block(title="FLOPS, and what limits an iteration", table=table(
        shown, "FLOPS, and what limits an iteration", [
            Column("workload", "Workload"), Column("median_s", "Iteration", fmt.seconds, "median wall time"),
            Column("flop", "FLOP", fmt.num_flop, "counted, per iteration"),
            Column("flop_per_s", "FLOP/s", fmt.flop_rate, "counted FLOP / median iteration time"),
            Column("verdict", "Bottleneck", None, "", lambda row: row.reason_verdict, wide=True),
            Column("evidence", "Evidence", None, "", lambda row: "no verdict", wide=True)]),
        note="The study's own FLOPS and bottleneck shares have no unit and no definition: they are not shown.")]


def _memory(runs: Sequence[Run]) -> list[Block]:
    shown = [memory_tables.fits(run) for run in runs if is_memory_run(run)]
    return [Block(title="Out of memory: the largest batch that fits" if not number else "", table=each)
            for number, each in enumerate(each for each in shown if each is not None)]


def _operations(runs: Sequence[Run]) -> list[Block]:
    """Return the basic operations with their times and rates, and the published sums."""
    published = published_cases(_SETUPS).dropna(subset=["set"])
    columns = [Column("machine", "Machine"), Column("set", "Operations"),
               Column("total_s", "Time", fmt.duration, "of all problems of the set, published")]
    blocks = [block for run in runs if (case_summary(run)["kind"] == "operation").any()
              for block in operations(run).blocks]
    return [*blocks, Block(title="Basic operations, published", folded=True, table=table(
        published, "Basic operations, published: float64 on the machine's CPU", columns),
        note="The published times include the generation of random numbers: they compare with one another alone.")]


STUDY = Study(
    "aalto", "Aalto: hardware benchmark", "Vo: Deep Learning Hardware Benchmark, Aalto University", chapter,
    {"quick": ("4 batches of one epoch are run: the time of all epochs is modelled from samples/s.",
               "4 batches are predicted, not 10,000 images.",
               "Convolve2D trains in fp32, not by autocast in fp16.",
               "Model A's frozen base has random weights, not ImageNet's."),
     "full": ("Model A's frozen base has random weights, not ImageNet's.",
              "Products are timed alone, without the generation of their numbers.")})
