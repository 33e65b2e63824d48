"""Timing of a whole model with the settings of bricks."""

import itertools
import time
from dataclasses import replace
from typing import Any

import torch

from charact.bricks.capture.recording import Source
from charact.bricks.timing.suite_run import brick_settings
from charact.execution.loop import Loop
from charact.execution.out_of_memory import host_memory_guard
from charact.measure.passes.timing import StopRule, Timing, timing_pass


def time_end_to_end(source: Source, rule: StopRule, device: torch.device | None = None) -> Timing:
    """Time iterations of a model: forward, and in training loss, backward and update.

    Bricks do not include data loading, so all iterations use one batch prepared in advance, and fetching it counts as
    `other`. The fact `on_core_frac` is the share of the time in which the calling thread was on a core; on a CPU it is
    near 1 unless other programs interfere.
    """
    case = source.case if device is None else replace(source.case, device=device)
    with host_memory_guard(case.device), brick_settings(case.precision):
        loop = Loop(case)
        try:
            batch = loop.next_batch()
        finally:
            loop.close()  # workers of a loader would compete with the model
        loop.feed(itertools.repeat(batch))
        begun, ran = time.perf_counter(), time.thread_time()
        timing = timing_pass(loop, rule, lambda num_iterations, median_s: None)
        on_core_frac = (time.thread_time() - ran) / (time.perf_counter() - begun)
    timing.facts.on_core_frac = on_core_frac
    return replace(timing, rows=_without_data(timing.rows))


def _without_data(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of the table `iterations` with the data phase merged into `other`."""
    data = {row["iteration"]: row for row in rows if row["phase"] == "data"}
    kept = []
    for row in rows:
        if row["phase"] == "other":
            fetched = data[row["iteration"]]
            row = row | {column: None if row[column] is None else row[column] + fetched[column]
                         for column in ("host_s", "device_s")}
        if row["phase"] != "data":
            kept.append(row)
    return kept
