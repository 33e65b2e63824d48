"""Aalto's hardware benchmark: Models A and B, their inference, rates, limits and memory, and basic operations."""

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from charact.analysis.efficiency.bottleneck import bottlenecks
from charact.analysis.memory.composition import is_memory_run
from charact.analysis.operations.timings import operation_times
from charact.analysis.profile.case_summary import case_summary
from charact.record.reader import Run
from charact.studies.analysis.hardware import (
    SETS,
    convolution_over_sparse,
    flop_of_models,
    largest_batch,
    operation_sums,
    sparse_over_dense,
)
from charact.studies.analysis.setups import (
    execution_times,
    inference_ratio,
    inference_times,
    published_ratios,
    set_times,
    setup_names,
)
from charact.studies.claims import Value, claims_block
from charact.studies.published import INTERVAL_MEANING, claims_of, ratio_of_trainings
from charact.studies.study import Study
from charact.studies.views.figures import times
from charact.views.document import Block, Body
from charact.views.sections.profile import _memory_tables as memory_tables
from charact.views.tables import format as fmt
from charact.views.tables.model import Column, table
from charact.views.tables.operation_tables import notes, problems


def chapter(runs: Sequence[Run]) -> Body:
    """Build the chapter in the order of the study."""
    return Body(blocks=[_claims(runs), *_training(runs), *_inference(runs), *_rates(runs), *_memory(runs),
                        *_operations(runs)])


def _setup_columns() -> list[Column]:
    return [Column(column, name, fmt.duration, "published") for column, name in setup_names().items()]


def _training(runs: Sequence[Run]) -> list[Block]:
    shown = execution_times(runs)
    shown = shown.assign(name=shown["workload"] + ", " + shown["data"])
    figures, legend = times("Total execution time", shown, setup_names(), "all epochs", "h")
    return [Block(title="Total execution time", figures=figures, legend=legend,
                  table=table(shown, "Total execution time", [
        Column("workload", "Workload"), Column("data", "Data"), Column("num_epochs", "Epochs", fmt.number),
        Column("modelled_s", "Here", fmt.duration, "modelled from the measured samples/s: training alone", _not_run),
        Column("modelled_interval", "95 % interval", None, INTERVAL_MEANING, _not_run, unbroken=True),
        *_setup_columns(),
        Column("measured_s", "Measured", fmt.duration, "total execution time of what was run", _not_run),
        Column("source", "Of", None, "the data that were read", unbroken=True)]),
                  note="The published time includes validating after each epoch; the modelled one does not.")]


def _claims(runs: Sequence[Run]) -> Block:
    """Return the claims' table."""
    ours, sums = execution_times(runs), operation_sums(runs)
    return claims_block(claims_of("aalto", published_ratios()), {
        "training": ratio_of_trainings(ours, ("model_b", "mnist"), ("model_a", "mnist")),
        "data": ratio_of_trainings(ours, ("model_a", "fashion_mnist"), ("model_a", "mnist")),
        "inference": inference_ratio(inference_times(runs)),
        "flop": flop_of_models(runs), "batch": largest_batch(runs),
        "rates": Value(reason="the study's FLOPS has no unit and no definition"),
        "bottleneck": Value(reason="the study's bottleneck share has no definition"),
        "sparse": sparse_over_dense(sums), "convolution": convolution_over_sparse(sums, ours)})


def _not_run(row: object) -> str:
    return "not run"


def _inference(runs: Sequence[Run]) -> list[Block]:
    shown = inference_times(runs)
    figures, legend = times("Total inference time", shown.assign(name=shown["workload"]), setup_names(),
                            "load, 10,000 images", "s")
    return [Block(title="Total inference time: load and predict", figures=figures, legend=legend, table=table(
        shown, "Total inference time: load and predict", [
            Column("workload", "Workload"),
            Column("modelled_s", "Here", fmt.duration, "modelled: warm load + 10,000 images at the measured samples/s",
                   _not_run),
            Column("modelled_interval", "95 % interval", None, INTERVAL_MEANING, _not_run, unbroken=True),
            *_setup_columns(),
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
    rows = set_times(runs)
    rows = rows.sort_values("set", key=lambda names: names.map(list(SETS).index), ignore_index=True)
    rows = rows.assign(name=rows["set"].map(SETS), num_problems=rows["num_problems"].fillna(0))
    sums = Block(title="Basic operations: time by set", table=table(rows, "Basic operations: time by set", [
        Column("name", "Set", unbroken=True),
        Column("here_s", "Here", fmt.seconds, "sum of the medians of one call, forward", _not_run),
        *(replace(column, reason=lambda row: "published as a training" if row.set == "convolve2d" else "not published")
          for column in _setup_columns()),
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
