"""Aalto's hardware benchmark: Models A and B, their inference, rates, limits and memory, and basic operations."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import geometric_mean
from typing import cast

import pandas as pd

from charact.analysis.efficiency.bottleneck import bottlenecks
from charact.analysis.memory.composition import is_memory_run
from charact.analysis.operations.timings import operation_times
from charact.analysis.profile.case_summary import case_summary
from charact.analysis.training.stages import inference_summary, rate_intervals
from charact.record.reader import Run
from charact.studies.analysis.hardware import (
    SETS,
    convolution_over_sparse,
    flop_of_models,
    largest_batch,
    operation_sums,
    sparse_over_dense,
)
from charact.studies.claims import Value, claims_block
from charact.studies.published import (
    INTERVAL_MEANING,
    NUM_SAMPLES,
    claims_of,
    interval_text,
    published_cases,
    ratio_of_trainings,
    trainings,
)
from charact.studies.study import Study
from charact.studies.views.figures import times
from charact.views.document import Block, Body
from charact.views.sections.profile import _memory_tables as memory_tables
from charact.views.tables import format as fmt
from charact.views.tables.model import Column, table
from charact.views.tables.operation_tables import notes, problems

_SETUPS = ("aalto-1", "aalto-2", "aalto-3", "aalto-4")
_NUM_PREDICTED = 10_000


def chapter(runs: Sequence[Run]) -> Body:
    """Build the chapter in the order of the study."""
    return Body(blocks=[_claims(runs), *_training(runs), *_inference(runs), *_rates(runs), *_memory(runs),
                        *_operations(runs)])


def _published(mode: str, *keys: str) -> tuple[pd.DataFrame, list[Column]]:
    return _by_setup(published_cases(_SETUPS).query("mode == @mode"), *keys)


def _by_setup(frame: pd.DataFrame, *keys: str) -> tuple[pd.DataFrame, list[Column]]:
    """Return a row per key with a column of published times per setup, and the columns that show them."""
    setups = frame.drop_duplicates("reference")[["reference", "machine"]]
    wide = frame.pivot_table(index=list(keys), columns="reference", values="total_s", sort=False)
    names = setups["machine"].str.removeprefix("GeForce ")
    columns = [Column(f"setup_{reference[-1]}", f"{name} (setup {reference[-1]})", fmt.duration, "published")
               for reference, name in zip(setups["reference"], names, strict=True)]
    wide = wide[setups["reference"]]
    wide.columns = pd.Index([column.name for column in columns])
    return wide.reset_index(), columns


def _training(runs: Sequence[Run]) -> list[Block]:
    rows, columns = _published("train", "workload", "data", "num_epochs")
    shown = trainings(runs, rows.assign(num_samples=rows["data"].map(NUM_SAMPLES)))
    shown = shown.assign(name=shown["workload"] + ", " + shown["data"])
    figures, legend = times("Total execution time", shown, _setups(columns), "all epochs", "h")
    return [Block(title="Total execution time", figures=figures, legend=legend,
                  table=table(shown, "Total execution time", [
        Column("workload", "Workload"), Column("data", "Data"), Column("num_epochs", "Epochs", fmt.number),
        Column("modelled_s", "Here", fmt.duration, "modelled from the measured samples/s: training alone", _not_run),
        Column("modelled_interval", "95 % interval", None, INTERVAL_MEANING, _not_run, unbroken=True),
        *columns,
        Column("measured_s", "Measured", fmt.duration, "total execution time of what was run", _not_run),
        Column("source", "Of", None, "the data that were read", unbroken=True)]),
                  note="The published time includes validating after each epoch; the modelled one does not.")]


def _setups(columns: Sequence[Column]) -> dict[str, str]:
    """Return the names of the setups by their columns."""
    return {column.name: column.title for column in columns}


def _claims(runs: Sequence[Run]) -> Block:
    """Return the claims' table; published ratios are geometric means over the setups."""
    rows, columns = _published("train", "workload", "data", "num_epochs")
    ours = trainings(runs, rows.assign(num_samples=rows["data"].map(NUM_SAMPLES)))
    setups = [column.name for column in columns]
    published_s = rows.set_index(["workload", "data"])[setups]
    predicted = _predicted(runs).set_index("workload")
    a, b = (cast("pd.Series[float]", predicted.loc[name]) for name in ("model_a", "model_b"))
    of_a, of_fashion, of_b = (cast("pd.Series[float]", published_s.loc[key]) for key in (
        ("model_a", "mnist"), ("model_a", "fashion_mnist"), ("model_b", "mnist")))
    sets, _ = _by_setup(published_cases(_SETUPS).dropna(subset=["set"]), "set")
    of_dense, of_sparse = (cast("pd.Series[float]", sets.set_index("set").loc[name]) for name in ("dmm", "smm"))
    of_convolution = cast("pd.Series[float]", published_s.loc[("convolve2d", "fashion_mnist")])
    ratios = {"training": of_b / of_a, "data": of_fashion / of_a, "inference": b[setups] / a[setups],
              "sparse": of_sparse / of_dense, "convolution": of_convolution / of_sparse}
    published = {name: geometric_mean(ratio.astype(float).dropna()) for name, ratio in ratios.items()}
    sums = operation_sums(runs)
    inference = float(b["modelled_s"]) / float(a["modelled_s"])
    return claims_block(claims_of("aalto", published), {
        "training": ratio_of_trainings(ours, ("model_b", "mnist"), ("model_a", "mnist")),
        "data": ratio_of_trainings(ours, ("model_a", "fashion_mnist"), ("model_a", "mnist")),
        "inference": Value() if fmt.absent(inference) else Value(inference),
        "flop": flop_of_models(runs), "batch": largest_batch(runs),
        "rates": Value(reason="the study's FLOPS has no unit and no definition"),
        "bottleneck": Value(reason="the study's bottleneck share has no definition"),
        "sparse": sparse_over_dense(sums), "convolution": convolution_over_sparse(sums, ours)})


def _not_run(row: object) -> str:
    return "not run"


def _predicted(runs: Sequence[Run]) -> pd.DataFrame:
    """Return the published and the modelled total inference time of each workload."""
    frames = []
    for run in runs:
        found = inference_summary(run).merge(run.cases[["case", "workload"]], on="case")
        frames.append(found.assign(interval_frac=found["case"].map(rate_intervals(run, "prediction")).astype(float)))
    frames = [frame for frame in frames if len(frame)]
    rows, _ = _published("infer", "workload")
    ours = pd.concat(frames) if frames else pd.DataFrame(
        columns=["workload", "total_cold_s", "total_warm_s", "load_warm_s", "samples_per_s", "interval_frac"])
    shown = rows.merge(ours.drop(columns=["data"], errors="ignore"), on="workload", how="left")
    predicted_s = _NUM_PREDICTED / shown["samples_per_s"].astype(float)
    return shown.assign(modelled_s=shown["load_warm_s"].astype(float) + predicted_s)


def _inference(runs: Sequence[Run]) -> list[Block]:
    shown, (_, columns) = _predicted(runs), _published("infer", "workload")
    shown["modelled_interval"] = pd.Series([
        interval_text(row.modelled_s, row.interval_frac, row.load_warm_s) for row in fmt.rows(shown)],
        shown.index, dtype="object")
    figures, legend = times("Total inference time", shown.assign(name=shown["workload"]), _setups(columns),
                            "load, 10,000 images", "s")
    return [Block(title="Total inference time: load and predict", figures=figures, legend=legend, table=table(
        shown, "Total inference time: load and predict", [
            Column("workload", "Workload"),
            Column("modelled_s", "Here", fmt.duration, "modelled: warm load + 10,000 images at the measured samples/s",
                   _not_run),
            Column("modelled_interval", "95 % interval", None, INTERVAL_MEANING, _not_run, unbroken=True),
            *columns,
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
        note="The study's own FLOPS and bottleneck shares have no unit and no definition: the claims have their ratios "
             "alone.")]


def _memory(runs: Sequence[Run]) -> list[Block]:
    shown = [found for run in runs if is_memory_run(run) and (found := memory_tables.fits(run)) is not None]
    if not shown:
        return []
    return [Block(folded=True, table=replace(shown[0], caption="Out of memory: the largest batch that fits",
                                             rows=[row for each in shown for row in each.rows]))]


def _operations(runs: Sequence[Run]) -> list[Block]:
    """Return the time of each set of basic operations next to the published sums, and every operation."""
    wide, columns = _by_setup(published_cases(_SETUPS).dropna(subset=["set"]), "set")
    rows = wide.merge(operation_sums(runs), on="set", how="outer")
    rows = rows.sort_values("set", key=lambda names: names.map(list(SETS).index), ignore_index=True)
    rows = rows.assign(name=rows["set"].map(SETS), num_problems=rows["num_problems"].fillna(0))
    sums = Block(title="Basic operations: time by set", table=table(rows, "Basic operations: time by set", [
        Column("name", "Set", unbroken=True),
        Column("here_s", "Here", fmt.seconds, "sum of the medians of one call, forward", _not_run),
        *(replace(column, reason=lambda row: "published as a training" if row.set == "convolve2d" else "not published")
          for column in columns),
        Column("num_problems", "Operations", fmt.number, "operations in the sum here")]),
        note="The published sums are of float64 on the machine's CPU, of 5 dense and 4 sparse products, with the "
             "generation of random numbers. The times here are of the operations alone, in fp32: they are not a ratio.")
    timed = [found for run in runs if len(found := operation_times(run))]
    if not timed:
        return [sums]
    every = pd.concat(timed, ignore_index=True)
    details = replace(problems("", every), caption="Every basic operation", note=notes(every))
    return [sums, Block(folded=True, table=details)]


STUDY = Study(
    "aalto", "Aalto: hardware benchmark", "Vo: Deep Learning Hardware Benchmark, Aalto University", chapter,
    {"quick": ("4 batches of one epoch are run: the time of all epochs is modelled from samples/s.",
               "4 batches are predicted, not 10,000 images.",
               "Convolve2D trains in fp32, not by autocast in fp16.",
               "Model A's frozen base has random weights, not ImageNet's.",
               "Products are in fp32, not float64, and timed alone, without the generation of their numbers."),
     "full": ("Model A's frozen base has random weights, not ImageNet's.",
              "Products are in fp32, not float64, and timed alone, without the generation of their numbers.")})
