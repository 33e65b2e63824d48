"""A contract over every workload and mode: all passes succeed at the smallest size, and the report shows them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.notes import Notes
from support.relatives import DEEPER

from charact import load_run
from charact.datasets._common.request import DataRequest
from charact.execution.case import Case
from charact.execution.interrupt import Interrupt
from charact.measure.passes.runner import run_cases
from charact.measure.passes.timing import StopRule
from charact.record.writer import RunWriter
from charact.views.html.report import sections
from charact.workload.registry import all_workloads

ALIKE = {"resnet34", "resnet50", "resnet50v2", "vgg11_bn", "convolve2d", "model_b"}
"""Others with a near relative that is quicker."""
SLOW_TRAINING = {"aoa_reader", "model_a", "transformer", "transformer_lm", "vgg11", "googlenet", "xception",
                 "rnn_lm", "vit", "dit"}
SLOW_INFERENCE = {"resnet18", "seq2seq", "transformer", "rnn_lm", "xception", "aoa_reader", "googlenet",
                  "vgg11", "model_a", "unet", "dlrm"}
"""Those that the other mode or another network shows quicker."""
CHOSEN_VARIANTS = {"transformer": "small", "transformer_lm": "small"}


def cases() -> Iterator[Any]:
    """Names and modes; the long ones are marked."""
    slow = {"train": DEEPER | ALIKE | SLOW_TRAINING, "infer": DEEPER | ALIKE | SLOW_INFERENCE}
    for name in sorted(all_workloads()):
        for mode, names in slow.items():
            yield pytest.param(name, mode, marks=[pytest.mark.slow] if name in names else [], id=f"{name}-{mode}")


@pytest.mark.slow_variants
@pytest.mark.parametrize(("name", "mode"), list(cases()))
def test_it_runs_is_measured_and_shown(name: str, mode: str, tmp_path: Path) -> None:
    workload = all_workloads()[name].prepare(CHOSEN_VARIANTS.get(name))
    case = Case(workload, workload.smallest_input_size, 2, mode, "fp32", torch.device("cpu"), DataRequest())
    case.check()
    writer = RunWriter(tmp_path, name, {"machine": {}, "software": {}, "options": {}})
    with Interrupt() as interrupt:
        run_cases([case], StopRule(max_iterations=2, max_seconds=0.0), writer, Notes(), interrupt)
    writer.close("complete")
    run = load_run(writer.publish())
    (entry,) = run.entries
    assert (entry.status, entry.reason) == ("ok", None)
    assert {each: facts.status for each, facts in entry.passes.items()} == {
        "timing": "ok", "operators": "ok", "kernels": "skipped", "memory": "ok", "flop": "ok",
        "counters": "skipped"}
    phases = {"data", "forward", "other"} | ({"loss", "backward", "update"} if mode == "train" else set())
    assert set(run.iterations["phase"]) == phases
    assert (run.iterations["host_s"] >= 0).all()
    assert entry.passes.flop.uncounted == []
    assert run.flop[run.flop["phase"] == "forward"]["flop"].sum() > 0
    assert run.operators["flop"].sum() == pytest.approx(run.flop["flop"].sum())
    operators = run.operators
    unknown_s = operators[operators["operator_type"] == "other"]["self_host_s"].sum()
    assert unknown_s <= 0.02 * operators["self_host_s"].sum()
    peak = run.memory[run.memory["kind"] == "peak"]
    assert peak["bytes"].sum() == entry.passes.memory.peak_bytes > 0
    assert all(case.id in section.html for section in sections(run) if section.id in ("summary", "phases", "memory"))
