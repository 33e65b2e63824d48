"""Steps of inference servers in traces: how they are found, their kinds, and their time on the device."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.serving_reader import CAUSES, ServedTrace
from support.serving_traces import LAYER, ServerTrace, decoding
from support.traces import TraceMaker, training

from charact.record.manifest import CaseEntry
from charact.record.schema import Rows
from charact.traces.cases import trace_case
from charact.traces.reader import read_trace
from charact.traces.serving.step_names import step_of_name

DECODE, PREFILL = "execute_context_0(0)_generation_8(8)", "execute_context_2(1024)_generation_0(0)"
MIXED = "execute_context_2(1024)_generation_30(30)"


def case_of(made: TraceMaker, tmp_path: Path, name: str = "made.json") -> tuple[CaseEntry, dict[str, Rows]]:
    return trace_case(read_trace(made.write(tmp_path / name)), "made")


def steps_of(made: TraceMaker, tmp_path: Path, name: str = "made.json") -> Rows:
    return case_of(made, tmp_path, name)[1].get("serving_steps", [])


def left_out(entry: CaseEntry) -> dict[str, int]:
    return {each.reason: each.num_dropped for each in entry.passes.timing.dropped if each.what == "serving steps"}


@pytest.mark.parametrize(("name", "kind", "requests", "context", "tokens"), [
    ("execute_context_2(1024)_generation_30(30)", "mixed", 32, 2, 1054),
    ("execute_32_context_0_generation_32", "decode", 32, 0, 32),
    ("execute_context_1024_generation_0", "prefill", 1024, 1024, None),
    ("execute_6147_context_2(sq6144sk7144sqsq20sqsk23)_generation_3(sq3sk6144sqsq3sqsk6144)", "mixed", 5, 2, 6147),
    ("execute_0_context_0(sq0sk0sqsq0sqsk0)_generation_2(sq2sk400sqsq2sqsk2)", "decode", 2, 0, None),
    ("execute_new_4_cached_0", "prefill", 4, 4, None),
    ("execute_new_0_cached_7", None, 7, None, None),
    ("execute_new_1_cached_7", None, 8, None, None),
    ("step[EXTEND bs=2 toks=14721]", "prefill", 2, 2, 14721),
    ("step[DECODE bs=64]", "decode", 64, 0, None),
    ("step[DECODE bs=64 g_sq=64 g_sk=9000]", "decode", 64, 0, None),
    ("step[MIXED bs=2]", "mixed", 2, None, None),
    ("step[TARGET_VERIFY bs=3]", "decode", 3, 0, None),
    ("[Executor] _forward_step 60000: 0 ctx reqs, 0 ctx tokens, 32 gen reqs", "decode", 32, 0, None),
    ("[Executor] _forward_step: 3 ctx reqs, 5 gen reqs", "mixed", 8, 3, None),
])  # fmt: skip
def test_facts_in_annotations(name: str, kind: str | None, requests: int, context: int | None,
                              tokens: int | None) -> None:
    found = step_of_name(name)
    assert found is not None
    assert (found.kind, found.num_requests, found.num_context_requests, found.num_tokens) == (
        kind, requests, context, tokens)


@pytest.mark.parametrize("name", ["step[IDLE bs=0]", "step[DRAFT_EXTEND bs=4]", "execute_context_0(0)_generation_0(0)",
                                  "execute_new_0_cached_0"])
def test_steps_of_no_kind_have_a_reason(name: str) -> None:
    found = step_of_name(name)
    assert found is not None
    assert found.kind is None
    assert found.reason


@pytest.mark.parametrize("name", [
    "execute_context_menu", "execute_context_3", "execute_new_password_request", "execute_generation_3", "step[3/10]",
    "step[decode bs=4]", "step[DECODE]", "step[DECODE bs=4", "xstep[DECODE bs=4]",
    "_forward_step: 3 ctx reqs, 5 gen reqs",
    "execute_context_-1(3)_generation_2(2)", "execute_context_1(x)_generation_2(2)", "ProfilerStep#3", "",
    "execute_context_1(1)_generation_2(2)" + "0" * 500, f"step[DECODE bs={10**12}]", "step[DECODE bs=٣]",
])  # fmt: skip
def test_annotations_of_other_forms(name: str) -> None:
    assert step_of_name(name) is None


@pytest.mark.parametrize("hip", [False, True])
def test_steps_by_annotation(tmp_path: Path, hip: bool) -> None:
    entry, tables = case_of(decoding([DECODE, MIXED, PREFILL], hip=hip), tmp_path)
    steps = tables["serving_steps"]
    assert [row["kind"] for row in steps] == ["decode", "mixed", "prefill"]
    assert [row["start_s"] for row in steps] == pytest.approx([0, 1e-3, 2e-3])
    assert [row["host_s"] for row in steps] == pytest.approx([600e-6] * 3)
    assert [row["device_s"] for row in steps] == pytest.approx([415e-6] * 3)
    assert [row["num_tokens"] for row in steps] == [8, 1054, 1024]
    assert {row["evidence"] for row in steps} == {"annotation"}
    assert {row["graph"] for row in steps} == {"graph 1, 16 kernels"}
    # The copy ends at 535, its call returns at 545; the step ends at 600; the next is launched at 1,100, runs at 1,120.
    assert [steps[1][f"gap_{cause}_s"] for cause in CAUSES] == pytest.approx(
        [(600 - 545 + 100) / 1e6, 20e-6, 10e-6, 400e-6, 0])
    assert (steps[0]["gap_launch_s"], steps[0]["gap_queue_s"]) == pytest.approx((100e-6, 20e-6))
    assert left_out(entry) == {}


def test_a_copy_that_the_first_step_waits_for(tmp_path: Path) -> None:
    made = ServerTrace()
    made.mark("step[EXTEND bs=4]", 0, 900)
    made.copy(50, 700, 5, returned=710)
    made.eager(720, 730, LAYER)
    (step,) = steps_of(made, tmp_path)
    assert [step[f"gap_{cause}_s"] for cause in CAUSES] == pytest.approx([50e-6, 0, 650e-6, 0, 0])
    assert (step["device_s"], step["idle_s"]) == pytest.approx((130e-6, 25e-6))


def test_a_training_has_no_steps(tmp_path: Path) -> None:
    assert steps_of(training(), tmp_path) == []
    made = training()
    made.mark(DECODE, 100, 300)
    assert steps_of(made, tmp_path) == []


def test_parts_of_steps_without_annotation_of_requests(tmp_path: Path) -> None:
    made = ServerTrace()
    for at in (0, 1000):
        for part, start, length in (("preprocess", 0, 90), ("forward", 90, 200), ("sample", 300, 100)):
            made.mark(f"gpu_model_runner: {part}", at + start, length)
        made.replay(at + 100, at + 120, LAYER)
    steps = steps_of(made, tmp_path)
    assert [row["host_s"] for row in steps] == pytest.approx([400e-6] * 2)
    assert [row["kind"] for row in steps] == ["decode"] * 2
    assert steps[0]["evidence"] == "annotations of a step’s parts; kind from replay of a whole model’s graph"


def test_a_step_whose_first_part_is_cut(tmp_path: Path) -> None:
    made = ServerTrace()
    for at in (0, 1000, 2000):
        for part, start, length in (("preprocess", 0, 90), ("forward", 90, 200)):
            if at or part == "forward":
                made.mark(f"gpu_model_runner: {part}", at + start, length)
        made.replay(at + 100, at + 120, LAYER)
    entry, tables = case_of(made, tmp_path)
    assert [row["start_s"] for row in tables["serving_steps"]] == pytest.approx([910e-6, 1910e-6])
    assert left_out(entry) == {"cut at an end of the trace": 1}


def test_graphs_of_parts_do_not_make_a_decode(tmp_path: Path) -> None:
    made = ServerTrace()
    for at in (0, 1000):
        made.mark("gpu_model_runner: forward", at, 500)
        end = made.replay(at + 10, at + 20, LAYER[:2])
        end = made.eager(at + 30, end, LAYER[2:])
        made.replay(at + 40, end, LAYER[:2])
    steps = steps_of(made, tmp_path)
    assert [row["kind"] for row in steps] == [None, None]
    assert [row["num_replays"] for row in steps] == [2, 2]
    assert all(row["kind_reason"] for row in steps)
    made.events = [event for event in made.events if event["cat"] != "user_annotation"]
    assert steps_of(made, tmp_path) == []  # neither are they steps


def test_calls_of_a_batch_in_a_file_of_a_stage(tmp_path: Path) -> None:
    made = ServerTrace()
    for at in (0, 1000):
        made.event("python_function", "sglang/srt/managers/scheduler.py(2200): run_batch", at, 500)
        made.event("python_function", "other/scheduler.py(2200): run_batch", at + 600, 100)
        made.eager(at + 10, at + 50, LAYER)
    for name, kind in (("1700-TP-0-EXTEND.trace.json", "prefill"), ("1700-TP-0-DECODE.trace.json", "decode"),
                       ("1700-TP-0.trace.json", None)):
        assert [row["kind"] for row in steps_of(made, tmp_path, name)] == [kind] * 2


def test_steps_by_replay(tmp_path: Path) -> None:
    made = ServerTrace()
    for number, layers in enumerate([2, 3, 2, 2]):
        made.replay(1000 * number, 1000 * number + 20, [*LAYER] * layers)
    steps = steps_of(made, tmp_path)
    assert [row["kind"] for row in steps] == ["decode"] * 4
    assert [row["graph"] for row in steps] == [f"graph {graph} kernels" for graph in ("1, 8", "2, 12", "1, 8", "1, 8")]
    assert [row["host_s"] for row in steps] == [None] * 4
    assert steps[1]["gap_launch_s"] == pytest.approx(780e-6)
    assert steps[1]["gap_host_s"] == 0


def test_prefills_between_replays(tmp_path: Path) -> None:
    """A server without annotations: the model is called for prefills, and graphs are replayed for decodes."""
    made = ServerTrace()
    for number in range(4):
        at = 1000.0 * number
        if number == 1:
            made.module("LlamaForCausalLM_0", at, 300)
            made.operator("aten::embedding", at + 2, 5, **{"Input Dims": [[32000, 64], [2, 128]]})
            end = made.eager(at + 10, at + 50, LAYER)
        else:
            end = made.replay(at, at + 20, LAYER)
        made.module("Sampler_0", at + 350, 100)
        made.eager(at + 360, end + 300, [("sampling_kernel", 10)])
    steps = steps_of(made, tmp_path)
    assert [row["kind"] for row in steps] == ["decode", "prefill", "decode", "decode"]
    assert [row["num_kernels"] for row in steps] == [4] * 4
    assert [row["host_s"] for row in steps] == [None, pytest.approx(300e-6), None, None]
    # The host's time is from 120 to 420, when the kernel of the sampler runs, and from 430 to the call at 1,000.
    assert [steps[1][f"gap_{cause}_s"] for cause in CAUSES] == pytest.approx(
        [10e-6, 40e-6, 0, (300 + 570) / 1e6, 10e-6])
    assert steps[2]["gap_host_s"] == 0


def test_graphs_by_grid(tmp_path: Path) -> None:
    made = ServerTrace()
    for number, grid in enumerate([8, 16, 8]):
        made.replay(1000 * number, 1000 * number + 20, LAYER, grid=grid)
    assert [row["graph"] for row in steps_of(made, tmp_path)] == [f"graph {graph}, 4 kernels" for graph in (1, 2, 1)]


def test_a_replay_for_each_marked_iteration_is_no_server(tmp_path: Path) -> None:
    made = ServerTrace()
    for number in range(3):
        made.mark(f"ProfilerStep#{number}", 1000 * number, 1000)
        made.replay(1000 * number + 5, 1000 * number + 20, LAYER)
    assert steps_of(made, tmp_path) == []


def test_replays_without_signs_of_generation_have_no_kind(tmp_path: Path) -> None:
    made = ServerTrace()
    for number in range(3):
        made.replay(1000 * number, 1000 * number + 20, [("gemm", 10), ("layer_norm", 10)])
    assert {row["kind"] for row in steps_of(made, tmp_path)} == {None}


def generating(tokens: list[list[int]], rows: list[int] | None = None) -> ServerTrace:
    """Return calls of a model with an embedding of 32,000 x 64; `rows` are those of the product with the vocabulary."""
    made = ServerTrace()
    for number, index in enumerate(tokens):
        at = 1000.0 * number
        made.module("LlamaForCausalLM_0", at, 500)
        made.module("Embedding_0", at + 10, 50)
        made.operator("aten::embedding", at + 20, 10, **{"Input Dims": [[32000, 64], index, [], [], []]})
        by = made.operator("aten::mm", at + 100, 20, **{"Input Dims": [[8, 64], [64, 64]]})
        made.eager(at + 105, at + 150, [("gemm", 20)], by=by)
        if rows is not None:
            made.operator("aten::linear", at + 200, 20, **{"Input Dims": [[rows[number], 64], [32000, 64]]})
    return made


def test_kinds_by_shapes_of_calls_of_the_model(tmp_path: Path) -> None:
    steps = steps_of(generating([[4, 128], [4, 1], [4, 1]]), tmp_path)
    assert [row["kind"] for row in steps] == ["prefill", "decode", "decode"]
    assert steps[0]["evidence"] == "call of the model; kind from input shapes"


def test_kinds_by_shapes_without_padding(tmp_path: Path) -> None:
    assert [row["kind"] for row in steps_of(generating([[512], [8]], [4, 8]), tmp_path)] == ["prefill", "decode"]
    assert steps_of(generating([[512], [8]]), tmp_path) == []  # nothing shows that tokens are generated
    made = generating([[512], [8]])
    made.event("python_function", "/lib/transformers/generation/utils.py(2100): generate", 0, 2000)
    assert [row["kind"] for row in steps_of(made, tmp_path)] == [None, None]


def test_the_largest_embedding_and_the_last_product_decide(tmp_path: Path) -> None:
    made = generating([[4, 1], [4, 1]])
    for at in (0, 1000):
        made.operator("aten::embedding", at + 12, 5, **{"Input Dims": [[512, 64], [1, 9]]})  # of positions
    assert [row["kind"] for row in steps_of(made, tmp_path)] == ["decode"] * 2
    made = generating([[512], [8]])
    for at, rows in ((0, 4), (1000, 8)):  # a product with the transposed matrix
        made.operator("aten::mm", at + 200, 20, **{"Input Dims": [[rows, 64], [64, 32000]]})
    assert [row["kind"] for row in steps_of(made, tmp_path)] == ["prefill", "decode"]


def test_calls_of_a_model_that_generates_nothing(tmp_path: Path) -> None:
    assert steps_of(generating([[4, 128], [4, 128]]), tmp_path) == []


def test_overlapping_steps_are_counted_and_annotations_in_a_step_are_not(tmp_path: Path) -> None:
    made = decoding([DECODE, DECODE])
    made.mark("execute_context_0(0)_generation_1(1)", 200, 100)
    made.event("user_annotation", DECODE, 500, 600, 300)
    entry, tables = case_of(made, tmp_path)
    assert [row["start_s"] for row in tables["serving_steps"]] == pytest.approx([0, 1e-3])
    assert left_out(entry) == {"overlapping an earlier one": 1}


def cut_launch(made: ServerTrace) -> None:
    made.mark(DECODE, 2000, 600)
    made.eager(2010, 2050, LAYER)
    made.launch("LaunchKernel", 2100)


def cut_replay(made: ServerTrace) -> None:
    made.mark(DECODE, 2000, 600)
    made.replay(2100, 2120, [*LAYER] * 3)


def without_work(made: ServerTrace) -> None:
    made.mark(DECODE, 2000, 600)


def test_replays_of_parts_at_the_end_are_whole(tmp_path: Path) -> None:
    """The last graph of a model in parts may be the beginning of the others."""
    made = ServerTrace()
    made.mark(MIXED, 0, 900)
    end = 20.0
    for place in range(4):
        end = made.replay(10 + 10 * place, end, LAYER[:2] if place < 3 else LAYER[:1])
        end = made.eager(15 + 10 * place, end, LAYER[2:])
    entry, tables = case_of(made, tmp_path)
    assert [row["num_replays"] for row in tables["serving_steps"]] == [4]
    assert left_out(entry) == {}


@pytest.mark.parametrize("cut", [cut_launch, cut_replay, without_work])
def test_steps_cut_at_the_end_are_left_out(tmp_path: Path, cut: Callable[[ServerTrace], None]) -> None:
    made = decoding([DECODE, DECODE], tail=False)
    cut(made)
    entry, tables = case_of(made, tmp_path)
    assert len(tables["serving_steps"]) == 2
    assert left_out(entry) == {"cut at an end of the trace": 1}


def test_a_launch_without_work_in_the_middle_cuts_nothing(tmp_path: Path) -> None:
    made = decoding([DECODE, DECODE], tail=False)
    made.launch("LaunchKernel", 1050)
    entry, tables = case_of(made, tmp_path)
    assert len(tables["serving_steps"]) == 2
    assert left_out(entry) == {}


def test_work_from_before_the_trace_is_of_a_cut_step(tmp_path: Path) -> None:
    made = decoding([DECODE, DECODE])
    made.work(77_777, "gemm", -50, 30)
    entry, tables = case_of(made, tmp_path)
    assert len(tables["serving_steps"]) == 2
    assert left_out(entry) == {"cut at an end of the trace": 1}
    assert [row["num_kernels"] for row in tables["serving_kernels"] if not row["in_step"]] == [1]


def test_a_draft_graph_at_the_end_is_whole(tmp_path: Path) -> None:
    """Speculative steps: the draft's kernels are the beginning of the model's, but occur in each step."""
    made = ServerTrace()
    for at in (0, 1000):
        made.mark(DECODE, at, 600)
        end = made.replay(at + 10, at + 20, [*LAYER] * 4)
        made.replay(at + 20, end, LAYER)
    entry, tables = case_of(made, tmp_path)
    assert [row["num_replays"] for row in tables["serving_steps"]] == [2, 2]
    assert left_out(entry) == {}
    assert [row["graph"] for row in tables["serving_steps"]] == [None, None]


def test_a_step_without_a_length(tmp_path: Path) -> None:
    made = decoding([DECODE, DECODE])
    made.mark(DECODE, -10, 0)
    assert [row["num_kernels"] for row in steps_of(made, tmp_path)] == [0, 17, 17]


def test_steps_on_a_cpu_alone(tmp_path: Path) -> None:
    made = TraceMaker()
    for at in (0, 1000):
        made.mark(DECODE, at, 600)
        made.operator("aten::mm", at + 10, 500)
    steps = steps_of(made, tmp_path)
    assert [row["device_s"] for row in steps] == [None, None]
    assert (steps[1]["gap_s"], steps[1]["gap_host_s"]) == pytest.approx((400e-6, 400e-6))


NAMES = {"sm90_gemm_bf16": "GEMM", "flash_fwd_kernel": "attention", "vllm::rms_norm_kernel": "normalization",
         "ncclDevKernel_AllReduce": "communication", "reshape_and_cache_kernel": "copy", "sampling_kernel": "other",
         "Memcpy DtoH (Device -> Pinned)": "copy"}
MARK = "step[DECODE"


@st.composite
def served(draw: st.DrawFn) -> tuple[ServerTrace, bool]:
    """Return a trace of steps with work on two streams, work outside of them, and copies; and whether it has marks."""
    made, with_marks = ServerTrace(), draw(st.booleans())
    kernels = st.lists(st.tuples(st.sampled_from(sorted(NAMES)[1:]), st.integers(1, 12)), min_size=1, max_size=3)
    at = 0
    for _ in range(draw(st.integers(2, 5))):
        length = draw(st.integers(10, 40))
        if with_marks:
            made.mark(f"{MARK} bs={draw(st.integers(1, 9))}]", at, length)
        for place in range(draw(st.integers(1, 2))):
            launched = at + 6 * place + draw(st.integers(0, 5))
            start, stream = launched + draw(st.integers(0, 60)), draw(st.sampled_from([7, 9]))
            if draw(st.booleans()) or not with_marks:
                made.replay(launched, start, draw(kernels), stream=stream)
            else:
                made.eager(launched, start, draw(kernels), stream=stream)
        if draw(st.booleans()):
            launched = at + draw(st.integers(0, 60))
            start = launched + draw(st.integers(0, 30))
            length_us = draw(st.integers(1, 10))
            returned = start + length_us + draw(st.integers(0, 15)) if draw(st.booleans()) else None
            made.copy(launched, start, length_us, returned=returned, tid=draw(st.sampled_from([100, 300])))
        if draw(st.booleans()):
            made.eager(at + 45, at + draw(st.integers(45, 80)), draw(kernels), tid=300)
        at += length + draw(st.integers(0, 60))
    return made, with_marks


@settings(max_examples=150, deadline=None)
@given(served())
def test_an_independent_reader_agrees(tmp_path_factory: pytest.TempPathFactory,
                                      made: tuple[ServerTrace, bool]) -> None:
    trace, with_marks = made
    folder = tmp_path_factory.mktemp("served")
    entry, tables = case_of(trace, folder)
    steps, kernels = tables.get("serving_steps", []), tables.get("serving_kernels", [])
    if not steps:  # replays of parts, or one alone
        return
    read = ServedTrace(folder / "made.json", MARK if with_marks else None)
    assert len(steps) == len(read.work) - left_out(entry).get("cut at an end of the trace", 0)
    assert sum(row["device_s"] for row in kernels) * 1e6 == pytest.approx(sum(event["dur"] for event in read.device))
    if len(steps) < len(read.work):
        return
    for row, kernel_us, cycle in zip(steps, read.kernel_us(), read.cycles(), strict=True):
        assert row["kernel_s"] * 1e6 == pytest.approx(kernel_us)
        assert (cycle is None) == (row["device_s"] is None)
        if cycle is None:
            continue
        assert row["cycle_s"] * 1e6 == pytest.approx(cycle["total"] if cycle["total"] > 0 else 0)
        assert row["busy_s"] * 1e6 == pytest.approx(cycle.get("busy", 0))
        assert row["idle_s"] * 1e6 == pytest.approx(cycle.get("idle", 0))
        assert row["idle_copy_s"] * 1e6 == pytest.approx(cycle.get("idle copy", 0))
        if row["gap_s"] is not None:
            parts = {cause: row[f"gap_{cause}_s"] * 1e6 for cause in CAUSES}
            assert parts == pytest.approx({cause: cycle.get(cause, 0) for cause in CAUSES}, abs=1e-6)
            assert sum(parts.values()) == pytest.approx(row["gap_s"] * 1e6, abs=1e-6)
    found: dict[Any, float] = {}
    for row in kernels:
        key = bool(row["in_step"]), row["graph"] is not None, row["kernel_kind"]
        found[key] = found.get(key, 0) + row["device_s"] * 1e6
    assert found == pytest.approx(read.us_by(NAMES))


def test_kinds_of_work_with_and_without_operators(tmp_path: Path) -> None:
    made = decoding([DECODE, DECODE])
    by = made.operator("aten::mm", 30, 30)
    made.eager(35, 50, [("strange_kernel", 7)], by=by)
    rows = case_of(made, tmp_path)[1]["serving_kernels"]
    assert [(row["kernel_kind"], row["device_s"], row["in_step"]) for row in rows if row["has_operator"]] == [
        ("GEMM", pytest.approx(7e-6), 1)]
    of_graph = {row["kernel_kind"]: round(row["device_s"] * 1e6) for row in rows if row["graph"]}
    assert of_graph == {"normalization": 80, "GEMM": 400, "attention": 240, "copy": 80}
    assert [row["largest"] for row in rows if row["kernel_kind"] == "attention"] == ["flash_fwd_splitkv_kernel"]


def test_the_operator_that_replays_a_graph_does_not_decide_its_kernels(tmp_path: Path) -> None:
    made = decoding([DECODE, DECODE], tail=False)
    for at in (0, 1000):
        made.operator("aten::mm", at + 95, 20)
    rows = case_of(made, tmp_path)[1]["serving_kernels"]
    assert {row["kernel_kind"] for row in rows} == {"normalization", "GEMM", "attention", "copy"}
    assert {row["has_operator"] for row in rows} == {1}


def test_names_are_cleaned(tmp_path: Path) -> None:
    made = decoding([DECODE, DECODE])
    made.eager(30, 50, [("<b>\x1b[31m", 7)])
    names = [row["largest"] for row in case_of(made, tmp_path)[1]["serving_kernels"]]
    assert any("<b>" in name for name in names)
    assert not any(re.search("[\x00-\x1f]", name) for name in names)
