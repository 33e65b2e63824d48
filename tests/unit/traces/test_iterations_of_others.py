"""Iterations and phases of traces of other programs: partial steps, optimizers' marks, named phases, serving."""

import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.trace_reader import ReadTrace, innermost_us
from support.traces import ENGINE, TraceMaker

from charact.record.manifest import CaseEntry
from charact.traces.cases import trace_case
from charact.traces.named_phases import phase_of_name
from charact.traces.reader import read_trace

Case = tuple[CaseEntry, dict[str, pd.DataFrame]]
BACKWARD = "autograd::engine::evaluate_function: AddmmBackward0"


def case_of(made: TraceMaker, tmp_path: Path) -> Case:
    entry, tables = trace_case(read_trace(made.write(tmp_path / "made.json")), "made")
    return entry, {name: pd.DataFrame(rows) for name, rows in tables.items()}


def host_us(case: Case) -> dict[str, float]:
    rows = case[1]["iterations"].groupby("phase")["host_s"].sum()
    return {str(phase): round(spent * 1e6, 3) for phase, spent in rows.items() if spent}


def device_us(case: Case) -> dict[str, float]:
    rows = case[1]["iterations"].groupby("phase")["device_s"].sum()
    return {str(phase): round(spent * 1e6, 3) for phase, spent in rows.items() if spent}


def lengths_us(case: Case) -> list[float]:
    return [round(float(length) * 1e6, 3) for length in case[1]["iterations"].groupby("iteration")["host_s"].sum()]


class TestPartial:
    """A mark at an edge of the trace that is no iteration."""

    def step(self, made: TraceMaker, number: int, at: float, length: float, work: float) -> None:
        made.mark(f"ProfilerStep#{number}", at, length)
        if work:
            made.kernel("gemm", at + 20, at + 50, work, by=made.operator("aten::linear", at + 10, work))

    @pytest.mark.parametrize("number", [1, 2, 5])
    @pytest.mark.parametrize(("length", "work"), [(40, 0), (40, 5), (30_000, 0), (2000, 100)])
    def test_a_trailing_step_without_work_is_left_out(self, tmp_path: Path, number: int, length: float,
                                                      work: float) -> None:
        made = TraceMaker()
        for place in range(number):
            self.step(made, place, 10_000 * place, 10_000, 6000)
        self.step(made, number, 10_000 * number, length, work)
        entry, tables = case = case_of(made, tmp_path)
        assert lengths_us(case) == [10_000] * number
        assert entry.passes.timing.num_iterations == number
        operators = tables["operators"].set_index("operator")
        assert operators.loc["aten::linear", ["num_calls", "device_s"]].tolist() == pytest.approx([1, 6e-3])
        dropped = {each.what: each.num_dropped for each in entry.passes.timing.dropped}
        assert dropped == {"partial iterations": 1}
        # An independent reader counts the steps in which an operator starts and that last for more than a tenth.
        read = ReadTrace(tmp_path / "made.json")
        starts = [event["ts"] for event in read.events if event["cat"] == "cpu_op"]
        longest = max(step["dur"] for step in read.steps())
        assert number == sum(any(step["ts"] <= at < step["ts"] + step["dur"] for at in starts)
                             and step["dur"] > longest / 4 for step in read.steps())

    def test_a_leading_step_without_work_is_left_out(self, tmp_path: Path) -> None:
        made = TraceMaker()
        self.step(made, 0, 9000, 1000, 20)
        for place in range(1, 4):
            self.step(made, place, 10_000 * place, 10_000, 6000)
        assert lengths_us(case_of(made, tmp_path)) == [10_000] * 3

    @pytest.mark.parametrize(("length", "work"), [(10_000, 500), (3000, 2000), (5000, 600)])
    def test_a_short_or_a_light_step_is_an_iteration(self, tmp_path: Path, length: float, work: float) -> None:
        made = TraceMaker()
        for place in range(3):
            self.step(made, place, 10_000 * place, 10_000, 6000)
        self.step(made, 3, 30_000, length, work)
        self.step(made, 4, 40_000, 10_000, 6000)
        assert len(lengths_us(case_of(made, tmp_path))) == 5
        made.events = [event for event in made.events if event["ts"] < 40_000]
        expected = 4 if work >= 600 or length == 10_000 else 3
        assert len(lengths_us(case_of(made, tmp_path))) == expected

    def test_steps_of_which_none_has_work_remain(self, tmp_path: Path) -> None:
        made = TraceMaker()
        made.mark("ProfilerStep#0", 0, 100)
        made.mark("ProfilerStep#1", 100, 5)
        made.operator("aten::linear", 200, 50)
        assert lengths_us(case_of(made, tmp_path)) == [100, 5]


class TestOptimizer:
    """Iterations of traces without steps, from the optimizer's marks."""

    def iteration(self, made: TraceMaker, at: float, optimizers: tuple[str, ...] = ("SGD",), *, zero: bool = True,
                  accumulate: int = 1) -> None:
        if zero:
            made.mark("Optimizer.zero_grad#SGD.zero_grad", at + 50, 40)
        for place in range(accumulate):
            made.operator("aten::linear", at + 100 + 100 * place, 50)
            made.operator(BACKWARD, at + 150 + 100 * place, 40, ENGINE)
        for place, optimizer in enumerate(optimizers):
            made.mark(f"Optimizer.step#{optimizer}.step", at + 900 + 20 * place, 20)
            made.operator("aten::_foreach_add_", at + 905 + 20 * place, 10)

    @pytest.mark.parametrize("zero", [True, False])
    @pytest.mark.parametrize("accumulate", [1, 4])
    @pytest.mark.parametrize("optimizers", [("SGD",), ("SGD", "Adam"), ("Adam", "Adam")])
    def test_each_ends_before_the_work_after_a_step(self, tmp_path: Path, zero: bool, accumulate: int,
                                                    optimizers: tuple[str, ...]) -> None:
        made = TraceMaker()
        for number in range(40):
            self.iteration(made, 1000 * number, optimizers, zero=zero, accumulate=accumulate)
        made.operator("aten::linear", 40_500, 400)  # such as an evaluation
        entry, tables = case = case_of(made, tmp_path)
        assert len(lengths_us(case)) == 40
        assert lengths_us(case)[1:-1] == [1000] * 38
        assert entry.passes.timing.median_s == pytest.approx(1e-3)
        assert any("inferred to end with a step of the optimizer" in spot for spot in entry.passes.timing.blind_spots)
        calls = tables["operators"].groupby("operator")["num_calls"].sum()
        assert calls["aten::_foreach_add_"] == len(optimizers)
        # An independent reader: the distances of the last steps of each iteration.
        read = ReadTrace(tmp_path / "made.json")
        steps = [event["ts"] for event in read.events if event["name"].startswith("Optimizer.step")]
        last = steps[len(optimizers) - 1::len(optimizers)]
        assert {float(after - before) for before, after in pairwise(last)} == {1000}

    def test_alternating_optimizers_are_one_iteration(self, tmp_path: Path) -> None:
        made = TraceMaker()
        for number in range(6):
            self.iteration(made, 1000 * number, ("SGD" if number % 2 == 0 else "Adam",), zero=False)
        assert len(lengths_us(case_of(made, tmp_path))) == 3

    def test_one_step_is_no_iteration(self, tmp_path: Path) -> None:
        made = TraceMaker()
        self.iteration(made, 0)
        entry, _ = case_of(made, tmp_path)
        assert entry.passes.timing.num_iterations == 1
        assert "marks no iterations, so that all of it is one" in entry.passes.timing.blind_spots[0]

    def test_marked_steps_decide(self, tmp_path: Path) -> None:
        made = TraceMaker()
        made.mark("ProfilerStep#1", 0, 3000)
        for number in range(3):
            self.iteration(made, 1000 * number)
        assert lengths_us(case_of(made, tmp_path)) == [3000]


class TestNamed:
    """Phases that the program names."""

    @pytest.mark.parametrize(("forward", "backward", "update"), [
        ("## forward ##", "## backward ##", "## optimizer ##"), ("forward", "backward", "optimizer"),
        ("forward_pass", "backward_pass", "optimizer_step"), ("Forward-Compute", "LossBackward", "weight update"),
        ("model_inference", "bwd", "optim.step")])
    @pytest.mark.parametrize("category", ["user_annotation", "cpu_op"])
    def test_they_are_taken_as_they_are(self, tmp_path: Path, forward: str, backward: str, update: str,
                                        category: str) -> None:
        made = TraceMaker()
        made.mark("ProfilerStep#9", 0, 60_000)
        made.event(category, forward, 1000, 19_000)
        made.mark("DistributedDataParallel.forward", 3000, 5000)
        made.operator("aten::linear", 3100, 4800)
        made.operator("aten::bmm", 9000, 9000)
        made.operator("aten::binary_cross_entropy_with_logits", 19_000, 500)
        made.event(category, backward, 21_000, 34_000)
        made.operator("aten::add_", 52_000, 300)
        made.operator("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 54_000, 20)
        made.event(category, update, 56_000, 3000)
        made.mark("Optimizer.step#FusedAdam.step", 56_100, 2800)
        made.operator("aten::_fused_adam_", 56_200, 2500)
        entry, tables = case = case_of(made, tmp_path)
        assert host_us(case) == {"forward": 19_000, "backward": 34_000, "update": 3000, "other": 4000}
        assert entry.passes.timing.evidence["forward"] == ["the program’s annotation"]
        assert entry.passes.timing.inferred_frac == pytest.approx(2800 / 60_000)
        assert not {forward, backward, update} & set(tables["operators"]["operator"])
        phases = tables["operators"].set_index("operator")["phase"]
        assert phases[["aten::bmm", "aten::add_", "aten::_fused_adam_"]].tolist() == ["forward", "backward", "update"]

    def test_the_innermost_counts_and_recomputation_is_backward(self, tmp_path: Path) -> None:
        made = TraceMaker()
        made.mark("ProfilerStep#9", 0, 1000)
        for name, at, length in (("forward", 0, 400), ("loss", 300, 50), ("backward", 400, 300), ("forward", 450, 100),
                                 ("optimizer", 700, 200), ("dataloader", 900, 100)):
            made.mark(name, at, length)
        made.operator("aten::linear", 10, 50)
        assert host_us(case_of(made, tmp_path)) == {"forward": 350, "loss": 50, "backward": 300, "update": 200,
                                                    "data": 100}

    def test_one_that_another_does_not_contain_continues_after_it(self, tmp_path: Path) -> None:
        made = TraceMaker()
        made.mark("ProfilerStep#9", 0, 1000)
        made.operator("aten::linear", 2000, 50)
        made.mark("forward", 0, 400)
        made.mark("loss", 300, 200)
        made.mark("optimizer", 600, 100)
        assert host_us(case_of(made, tmp_path)) == {"forward": 300, "loss": 200, "update": 100, "other": 400}

    def test_phases_without_a_name_are_inferred(self, tmp_path: Path) -> None:
        made = TraceMaker()
        made.mark("ProfilerStep#9", 0, 1000)
        made.mark("forward", 100, 300)
        made.operator("aten::linear", 110, 50)
        made.operator("aten::mse_loss", 410, 20)
        made.operator(BACKWARD, 500, 200, ENGINE)
        made.mark("Optimizer.step#SGD.step", 800, 100)
        made.mark("## sparse_data_dist ##", 440, 50)
        made.operator("aten::copy_", 450, 30)
        assert host_us(case_of(made, tmp_path)) == {"forward": 300, "loss": 20, "backward": 200, "update": 100,
                                                    "other": 380}
        made = TraceMaker()
        made.mark("ProfilerStep#9", 0, 1000)
        made.operator("aten::linear", 110, 50)
        made.mark("loss", 200, 100)
        made.operator("aten::mse_loss", 210, 20)
        made.mark("backward", 400, 300)
        made.operator(BACKWARD, 500, 100, ENGINE)
        assert host_us(case_of(made, tmp_path)) == {"forward": 50, "loss": 100, "backward": 300, "other": 550}

    def test_a_wrapper_around_a_part_is_not_the_whole_forward(self, tmp_path: Path) -> None:
        made = TraceMaker()
        made.mark("ProfilerStep#9", 0, 1000)
        made.operator("aten::embedding_bag", 50, 50)
        made.mark("DistributedDataParallel.forward", 150, 100)
        made.operator("aten::linear", 160, 80)
        made.operator("aten::bmm", 300, 90)
        made.operator("aten::binary_cross_entropy_with_logits", 400, 20)
        made.operator(BACKWARD, 500, 300, ENGINE)
        assert host_us(case_of(made, tmp_path)) == {"data": 50, "forward": 340, "loss": 110, "backward": 300,
                                                    "other": 200}

    @pytest.mark.parametrize(("name", "phase"), [
        ("## forward ##", "forward"), ("forward_pass", "forward"), ("Forward", "forward"), ("model forward", "forward"),
        ("train/forward", "forward"), ("microbatch 3 fwd", "forward"), ("ForwardPass", "forward"), ("fwd", "forward"),
        ("forward-compute", "forward"), ("model_inference", "forward"), ("## Backward ##", "backward"),
        ("loss.backward()", "backward"), ("bwd_step_2", "backward"), ("optimizer", "update"), ("## opt ##", "update"),
        ("optimizer.zero_grad", "update"), ("zero_grad", "update"), ("weight_update", "update"), ("loss", "loss"),
        ("compute_loss", "loss"), ("cross_entropy_loss", "loss"), ("criterion", "loss"), ("dataloader", "data"),
        ("data loading", "data"), ("## copy_batch_to_gpu ##", "data"), ("## wait_for_batch ##", "data"),
        ("h2d", "data"), ("get_batch", "data"), ("next batch", "data"), ("load_data", "data"), ("fetch", "data"),
        ("forward_backward", None), ("fwd/bwd", None), ("encoder.forward", None), ("attention forward", None),
        ("MyModel.forward", None), ("step", None), ("train", None), ("training_step", None), ("", None), ("####", None),
        ("load_model", None), ("aten::forward", None), ("DistributedDataParallel.forward", None),
        ("sparse_data_dist", None),
        ("optimizer step 3", "update"), ("execute_32_context_0_generation_32", None), ("step[DECODE bs=32]", None),
        ("update metrics", None), ("copy", None), ("forward" * 20, None), ("nccl:all_reduce", None), ("batch", None),
    ])
    def test_names(self, name: str, phase: str | None) -> None:
        assert phase_of_name(name) == phase


NAMES = {"## forward ##": "forward", "loss": "loss", "backward_pass": "backward", "optimizer": "update",
         "fetch": "data"}
TREES = st.recursive(st.just([]), lambda inner: st.lists(
    st.tuples(st.sampled_from(sorted(NAMES)), st.integers(1, 20), inner), max_size=3), max_leaves=8)


def placed(tree: list[Any], at: int) -> tuple[list[tuple[str, int, int]], int]:
    """Return nested spans of a tree from a time on, and when they end."""
    spans: list[tuple[str, int, int]] = []
    for name, apart, inner in tree:
        begin = at + apart
        below, until = placed(inner, begin)
        at = until + apart
        spans += [(name, begin, at), *below]
    return spans, at


@given(TREES)
@settings(deadline=None)
def test_nested_phases_are_those_of_an_independent_reader(tree: list[Any]) -> None:
    made = TraceMaker()
    spans, end = placed(tree, 100)
    made.mark("ProfilerStep#1", 100, end - 100 + 10)
    made.operator("aten::linear", 0, 50)
    for name, begin, until in spans:
        made.mark(name, begin, until - begin)
    with tempfile.TemporaryDirectory() as directory:
        found = host_us(case_of(made, Path(directory)))
        read = ReadTrace(Path(directory) / "made.json")
    marks = [((event["ts"], event["ts"] + event["dur"]), NAMES[event["name"]]) for event in read.events
             if event["name"] in NAMES]
    step = read.steps()[0]
    assert found == pytest.approx(innermost_us(marks, step["ts"], step["ts"] + step["dur"]))


class TestServing:
    """Traces of servers: graph replays, waits and the scheduler are no data loading."""

    @pytest.mark.parametrize("vendor", ["cuda", "hip"])
    @pytest.mark.parametrize("has_upload", [True, False])
    @pytest.mark.parametrize("has_module", [True, False])
    def test_a_replayed_graph_is_no_data(self, tmp_path: Path, vendor: str, has_upload: bool, has_module: bool) -> None:
        made = TraceMaker()
        made.mark("execute_32_context_0_generation_32", 0, 20_600)
        if has_upload:
            for at in (500, 21_000):
                made.kernel("Memcpy HtoD (Host -> Device)", at + 5, max(at + 30, 21_400 if at > 500 else 0), 3,
                            by=made.operator("aten::copy_", at, 20), cat="gpu_memcpy")
        made.event("cuda_runtime", f"{vendor}GraphLaunch", 1500, 300, correlation=9000)
        for place in range(40):
            made.event("kernel", "decode_gemm", 1900 + 490 * place, 480, 7, device=0, stream=7, correlation=9000)
        if has_module:
            made.module("Sampler_0", 21_500, 200)
        made.kernel("argmax", 21_520, 21_600, 20, by=made.operator("aten::argmax", 21_510, 50))
        case = case_of(made, tmp_path)
        assert host_us(case).get("data", 0) <= (40 if has_upload else 0)
        assert device_us(case).get("data", 0) <= (450 if has_upload else 0)

    @pytest.mark.parametrize("blocking", [True, False])
    def test_a_copy_that_waits_is_no_data_while_it_waits(self, tmp_path: Path, blocking: bool) -> None:
        made = TraceMaker()
        made.mark("step[EXTEND bs=4]", 0, 60_000)
        copy = made.operator("aten::to", 150, 40_050 if blocking else 40)
        made.kernel("Memcpy HtoD (Host -> Device)", 165, 40_170, 5, by=copy, cat="gpu_memcpy")
        made.module("Model_0", 41_000, 5000)
        made.kernel("gemm", 41_020, 41_100, 15_000, by=made.operator("aten::mm", 41_010, 100))
        case = case_of(made, tmp_path)
        assert host_us(case).get("data", 0) == (30 if blocking else 0)
        assert device_us(case).get("data", 0) == (25 if blocking else 0)
        assert host_us(case)["forward"] == 5000

    def test_what_a_training_does_before_its_first_operator_is_data(self, tmp_path: Path) -> None:
        made = TraceMaker()
        made.mark("ProfilerStep#1", 0, 1000)
        copies = [made.operator("aten::to", at, 20) for at in (300, 340)]
        for at, copy in zip((300, 340), copies, strict=True):
            made.kernel("Memcpy HtoD (Pageable -> Device)", at + 5, at + 10, 3, by=copy, cat="gpu_memcpy")
        made.kernel("gemm", 410, 420, 50, by=made.operator("aten::linear", 400, 100))
        made.operator(BACKWARD, 600, 100, ENGINE)
        assert host_us(case_of(made, tmp_path))["data"] == 360  # both copies, and the time between and before them
        made.event("cuda_runtime", "cudaGraphLaunch", 50, 10, correlation=8000)
        assert host_us(case_of(made, tmp_path))["data"] == 50 + 60
