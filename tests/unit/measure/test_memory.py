"""The memory pass against a network whose bytes are worked out by hand."""

from collections import defaultdict
from contextlib import nullcontext
from typing import Any

import pytest
from support.small import WIDTH, small_case

from charact.measure.loop import Loop
from charact.measure.memory import memory_pass
from charact.schema import MEMORY_CATEGORIES, PHASES

BATCH, FEATURES, CLASSES = 64, 512, 10
WEIGHTS = 4 * (FEATURES * WIDTH + WIDTH * CLASSES)
INPUT = 4 * BATCH * FEATURES + 8 * BATCH  # features and int64 labels


def measured(mode: str, num_workers: int = 0) -> tuple[dict[tuple[str, str], dict[str, float]], dict[str, Any]]:
    loop = Loop(small_case(mode, batch_size=BATCH, num_workers=num_workers))
    for _ in range(2):
        loop.iteration(lambda _: nullcontext())
    rows, facts = memory_pass(loop)
    loop.close()
    moments: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    timeline: dict[float, float] = defaultdict(float)
    for row in rows:
        assert row["phase"] in PHASES or row["kind"] == "timeline"  # frees between phases have none
        assert row["method"] == "measured"
        if row["kind"] == "timeline":
            timeline[row["time_s"]] += row["bytes"]
        else:
            assert row["time_s"] is None
            moments[row["kind"], row["phase"]][row["category"]] = row["bytes"]
    assert min(timeline) == 0
    assert max(timeline.values()) == facts["peak_bytes"]  # thinned out, but not at the peak
    return moments, facts


def test_training() -> None:
    moments, facts = measured("train")
    for categories in moments.values():
        assert set(categories) == set(MEMORY_CATEGORIES)
        assert categories["weights"] == categories["optimizer_state"] == WEIGHTS
        assert all(held >= 0 for held in categories.values())
    assert moments["phase_peak", "data"]["input"] in (0, INPUT)
    forward = moments["phase_peak", "forward"]
    # Most is held while ReLU runs: its input, and its output, which alone is kept for the backward pass.
    assert forward["activations"] == 4 * BATCH * 2 * WIDTH
    assert forward["input"] == INPUT
    assert forward["gradients"] == 0
    assert moments["phase_peak", "update"]["gradients"] == WEIGHTS
    assert moments["phase_peak", "update"]["activations"] == 4 * BATCH * CLASSES + 4  # the outputs and the loss
    (peak,) = (sum(categories.values()) for (kind, _), categories in moments.items() if kind == "peak")
    assert peak == facts["peak_bytes"] == max(sum(categories.values()) for categories in moments.values())
    assert facts["allocator_peak_bytes"] is None
    assert facts["process_peak_bytes"] > peak


def test_inference_keeps_nothing_for_a_backward_pass() -> None:
    moments, _ = measured("infer")
    assert {phase for _, phase in moments} == {"data", "forward"}
    peak = next(categories for (kind, _), categories in moments.items() if kind == "peak")
    assert peak["weights"] == WEIGHTS
    assert peak["gradients"] == peak["optimizer_state"] == peak["unknown"] == 0
    assert peak["activations"] == 4 * BATCH * 2 * WIDTH  # a layer's input and output


def test_a_batch_from_a_worker_is_counted_though_it_comes_in_shared_memory() -> None:
    moments, _ = measured("train", num_workers=1)
    assert moments["phase_peak", "forward"]["input"] == pytest.approx(INPUT, rel=0.05)
