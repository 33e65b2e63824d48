"""Findings about programs whose cause is known: the cause, its place, its remedy, and a range that holds the truth."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.watched_programs import operator, sampled, watched_program

from charact.analysis.findings import LargestPart, findings, has_findings, largest_part, program_time
from charact.analysis.findings._watched_case import WatchedCase
from charact.record.reader import Run
from charact.views.tables import finding_text

TYPICAL = {"data": 0.002, "forward": 0.02, "loss": 0.002, "backward": 0.04, "update": 0.006, "other": 0.0}
ADAM = {"name": "optimizer", "class": "Adam", "implementation": "for-loop", "num_tensors": 600,
        "num_parameters": 45_000, "device": "cpu", "file": "train.py", "line": 9, "models": ["model"]}
THREADS = {"intra_op": 2, "inter_op": 1, "num_usable_cores": 2}
LOADER = {"class": "DataLoader", "dataset": "Images", "in_memory": False, "num_items": 1000, "batch_size": 8,
          "num_workers": 2, "persistent_workers": False, "num_iterators": 5, "num_batches": 100, "wait_s": 3.0,
          "worker_fetch_s": 0.1, "file": "train.py", "line": 5}
MODEL = {"name": "model", "class": "Net", "num_parameters": 1000, "dtypes": {"float32": 1000}, "num_hooks_first": 0,
         "num_hooks_last": 0, "calls": 100, "inference_with_grad": 0}
MIB = 2**20


def inspected(**facts: Any) -> dict[str, Any]:
    return {"inspection": {"status": "ok", "reason": None, **facts}}


def first(run: Run) -> dict[str, Any]:
    rows = findings(run)
    assert len(rows), "nothing was found"
    facts: dict[str, Any] = rows.iloc[0].to_dict()
    return facts


def named(run: Run, finding: str) -> list[dict[str, Any]]:
    return findings(run).query("finding == @finding").to_dict("records")


def holds(finding: dict[str, Any], saved_s: float) -> bool:
    low_s, high_s = finding["recoverable_s"]
    return bool(low_s <= saved_s <= high_s)


def test_a_program_without_a_fault(tmp_path: Path) -> None:
    run = watched_program(tmp_path, TYPICAL, settings={
        "threads": THREADS, "optimizers": [ADAM | {"implementation": "fused"}], "models": [MODEL]})
    assert has_findings(run)
    assert findings(run).empty
    run = watched_program(tmp_path, TYPICAL)
    del run.manifest["options"]["script"]  # a workload of charact
    assert not has_findings(run)
    assert findings(run).empty
    assert program_time(run).empty
    times = {"forward": 0.06, "backward": 0.03, "other": 0.01}
    operators = [operator("forward", "aten::mm", 0.024, operator_type="GEMM"),
                 operator("forward", "own::scan", 0.03, operator_type="other")]  # says nothing
    run = watched_program(tmp_path, times, operators=operators,
                          passes=sampled("forward", "net.py:9", "forward", 60, of=80))
    assert findings(run).empty
    assert largest_part(run) == LargestPart("train.py-train", "forward", pytest.approx(0.6), "GEMM",
                                            pytest.approx(0.4, abs=0.01), "net.py:9", pytest.approx(0.75))
    assert finding_text.nothing(largest_part(run)).endswith(
        "60.0 % of an iteration is forward: 39.9 % of it GEMM, 75.0 % of it at net.py:9")
    assert finding_text.nothing(None).endswith("was recognized")


NET_LINE = {"passes": sampled("forward", "net.py:9", "forward", 70, text="mask = torch.full((n, n), -1e9).triu(1)")}
LSTM = operator("forward", "aten::lstm", 0.015, layer="encoder.0")
LOGITS = [operator("forward", "aten::addmm", 0.01, layer="lm_head"),
          operator("backward", "aten::mm", 0.02, layer="lm_head"),
          operator("forward", "aten::addmm", 0.005, layer="blocks.3.mlp"),
          operator("backward", "aten::_log_softmax_backward_data", 0.01, input_shapes="[[4000,900],[4000,900]]"),
          operator("backward", "aten::mul", 0.01, input_shapes="[[40,900]]")]


@pytest.mark.parametrize(("cause", "phases", "facts", "place", "words", "saved_s", "range_s"), [
    ("optimizer_loop", {"update": 0.034}, {"settings": {"optimizers": [ADAM]}}, "train.py:9", "fused=True", 2.6,
     (0.4 * 3.4, 0.93 * 3.4)),
    ("optimizer_loop", {"update": 0.02}, {"settings": {"optimizers": [ADAM | {"class": "SGD", "num_tensors": 3000}]}},
     "train.py:9", "fused=True", 1.5, (0.6, 1.6)),
    ("optimizer_loop", {"update": 0.02}, {"settings": {"optimizers": [
        ADAM | {"implementation": "foreach", "num_groups": 200}]}}, "train.py:9", "into one group", 1.5, (0.5, 1.8)),
    ("threads", {}, {"settings": {"threads": THREADS | {"intra_op": 16}}}, None, "set_num_threads(2)", 3.5,
     (0.1 * 6.8, 14 / 16 * 6.8)),
    ("loader_workers", {"data": 0.03}, {"settings": {"loaders": [LOADER], "threads": THREADS}}, "train.py:5",
     "num_workers=0", 2.9, (0.7 * 2.9, 3 - 0.06 + 0.1)),  # a worker makes a batch in 1 ms
    ("loader_workers", {"data": 0.03}, {"settings": {"loaders": [LOADER | {"in_memory": True}], "threads": THREADS}},
     "train.py:5", "images[indices]", 2.9, (0.7 * 2.9, 3.04 + 0.5 * 6.8)),
    ("recomputation", {}, {"passes": inspected(recompute={"time_s": 0.02, "backward_s": 0.04, "layers": ["block"]})},
     None, "torch.utils.checkpoint", 2.0, (0.6 * 2, 1.15 * 2)),
    ("unused_gradients", {}, {"passes": inspected(unused_gradients=[
        {"model": "generator", "optimizer": "critic", "time_s": 0.03, "backward_s": 0.08}])}, None, "detach", 1.5,
     (0.75, 2.25)),
    ("denormals", {"update": 0.05}, {"passes": inspected(denormals=[
        {"optimizer": "optimizer", "state": "exp_avg_sq", "denormal_frac": 0.97, "num_elements": 10**6}])}, None,
     "set_flush_denormal", 3.0, (0.3 * 5, 0.97 * 5)),
    ("denormals", {}, {"passes": inspected(denormals=[
        {"layer": "body.2", "denormal_frac": 0.4, "num_elements": 9_216}])}, None, "set_flush_denormal", 5.0,
     (0.3 * 6, 0.97 * 6)),
    ("small_calls", {}, {"settings": {"num_backwards": 25_600}}, None, "vmap", 3.5, (0.4 * 4, 0.97 * 4)),
    ("small_calls", {}, {"passes": inspected(layer_calls=[
        {"layer": "cell", "layer_type": "LSTMCell", "num_calls": 120, "time_s": 0.02}])}, None, "nn.LSTM", 5.0,
     (0.4 * 6, 0.95 * 6)),
    ("small_calls", {}, {"passes": inspected(layer_calls=[
        {"layer": "cell", "layer_type": "GRUCell", "num_calls": 50, "time_s": 0.02}])}, None, "nn.GRU", 5.0,
     (0.4 * 6, 0.95 * 6)),
    ("small_calls", {}, {"passes": inspected(layer_calls=[  # 400 and 200 µs a call
        {"layer": "head", "layer_type": "Linear", "num_calls": 50, "time_s": 0.02},
        {"layer": "body", "layer_type": "Linear", "num_calls": 50, "time_s": 0.01}])}, None, "torch.stack", 2.0,
     (0.4 * 3, 0.95 * 3)),
    ("compilation", {}, {"columns": {"compile_s": [0.02] * 50 + [None] * 50}, "settings": {"compile": {
        "num_graphs": 8, "num_recompilations": 8, "events": [{
            "kind": "recompilation", "reason": "self.calls == 1", "file": "src/net.py", "line": 27,
            "text": "self.calls += 1"}]}}}, "src/net.py:27",
     "do not change self.calls inside", 0.9, (0.5 * 0.5, 1.0)),
    ("line", {"forward": 0.04}, NET_LINE, "net.py:9", "register_buffer", 2.5, (0.4 * 2.8, 2.8 + 0.7 * 4)),
    ("line", {"forward": 0.04}, {"passes": sampled("forward", "net.py:9", "forward", 4, of=8, in_loop=True,
                                                   text="x = torch.cat([x, new], 1)")}, "net.py:9", "list", 1.8,
     (0.4 * 2, 2 + 0.5 * 4)),
    ("line", {"loss": 0.04}, {"passes": sampled(
        "loss", "policy.py:9", "<module>", 70, in_loop=True, text="total += Categorical(logits=row).entropy()",
        library="torch.distributions.categorical.Categorical.entropy")}, "policy.py:9", "whole tensors", 2.5,
     (0.4 * 2.8, 2.8 + 0.5 * 4)),
    ("line", {"other": 0.03}, {"passes": sampled("other", "train.py:7", "log", 98, waiting_frac=0.98,
                                                 text="time.sleep(0.03)")}, "train.py:7", "background", 2.9,
     (0.4 * 2.94, 2.94)),
    ("line", {}, {"passes": sampled("between", "train.py:30", "main", 90, text="torch.save(state, path)")},
     "train.py:30", "save less often", 0.9, (0.4 * 0.9, 0.9)),  # after the iterations is 1 s
    ("attention_weights", {}, {"passes": inspected(attention_weights=[
        {"layer": "encoder.attention", "layer_type": "MultiheadAttention", "num_calls": 1, "time_s": 0.012}])}, None,
     "need_weights=False", 1.8, (0.1 * 0.6 * 6, 0.7 * 0.6 * 6)),
    ("dense_embedding", {}, {"passes": inspected(embeddings=[
        {"layer": "words", "num_rows": 400_000, "num_used_rows": 160, "gradient_bytes": 160e6, "sparse": False}])},
     None, "sparse=True", 4.0, (0.5 * 4.6, 4.6)),
    ("padding", {}, {"passes": inspected(padding=[{"name": "attention_mask", "padding_frac": 0.83}])}, None, "length",
     4.0, (0.4 * 0.83 * 6.2, (1 - 0.17**2) * 6.2)),
    ("anomaly_detection", {}, {"settings": {"anomaly_frac": 1.0}, "operators": [
        operator("backward", "aten::isnan", 0.01), operator("forward", "aten::mm", 0.02, num_calls=100.0)]}, None,
     "set_detect_anomaly", 2.0, (1.0, 1 + 100 * 150e-6 * 100)),
    ("float64", {}, {"operators": [operator("forward", "aten::mm", 0.018, dtype="float64", layer="head")]}, None,
     "float32", 1.0, (0.3 * 1.8, 0.75 * 1.8)),
    ("data_loading", {"data": 0.06}, {"passes": sampled("data", "data.py:4", "decode", 90, text="np.load(path)"),
                                      "settings": {"threads": THREADS}}, "data.py:4", "num_workers=1", 3.0,
     (0.2 * 6, 0.95 * 6)),
    ("data_loading", {"data": 0.06}, {"passes": sampled("data", "data.py:4", "fetch", 90, waiting_frac=0.9),
                                      "settings": {"threads": THREADS}}, "data.py:4", "shorten the wait at", 3.5,
     (0.5 * 6, 0.98 * 6)),
    ("data_loading", {"data": 0.06}, {"settings": {"loaders": [LOADER | {"worker_fetch_s": None, "num_workers": 1}],
                                                   "threads": THREADS | {"num_usable_cores": 4}}},
     "train.py:5", "pass num_workers=2 to", 3.0, (0.2 * 6, 6.0)),
    ("data_loading", {"data": 0.06}, {"settings": {"loaders": [LOADER | {"worker_fetch_s": None}],
                                                   "threads": THREADS}}, "train.py:5", "2 workers use all 2 cores",
     3.0, (0.2 * 6, 6.0)),
    ("unused_outputs", {}, {"operators": LOGITS, "passes": inspected(unused_outputs=[
        {"layer": "lm_head", "num_rows": 4000, "num_used_rows": 600},
        {"layer": "blocks.3.mlp", "num_rows": 4000, "num_used_rows": 3900}])}, None, "labels != ignore_index",
     0.85 * 3, (0.7 * 0.85 * 3, 0.85 * (3 + 0.2 + 1))),
    ("repeated_rows", {}, {"operators": [LSTM, operator("forward", "aten::addmm", 0.004, layer="head")],
                           "passes": inspected(repeated_rows=[
                               {"layer": "encoder", "num_rows": 48, "num_repeated": 40},
                               {"layer": "head", "num_rows": 48, "num_repeated": 1}])}, None, "call encoder once",
     40 / 48 * 1.5, (0.5 * 40 / 48 * 1.5, 40 / 48 * 1.5)),
    ("hooks", {}, {"settings": {"models": [MODEL | {"num_hooks_last": 30}]}}, None, "before the loop", 0.5, (0, 1.0)),
    ("epoch_start", {"data": [0.002 + 0.398 * (number % 20 == 0) for number in range(100)]},
     {"settings": {"loaders": [LOADER | {"worker_fetch_s": 0.2}]},
      "columns": {"first_of_epoch": [int(number % 20 == 0) for number in range(100)]}}, "train.py:5",
     "persistent_workers=True", 4 * 0.398, (5 * 0.398 * 0.8 * 0.8, 5 * 0.398)),
    ("garbage_collection", {"other": 0.1}, {"passes": sampled("other", "train.py:30", "main", 60, of=60,
                                                              text="gc.collect()"), "columns": {"gc_s": [0.09] * 100}},
     "train.py:30", "gc.freeze()", 8.5, (0.7 * 9, 9)),
    ("periodic_work", {"other": [0.3 if number % 10 == 9 else 0.001 for number in range(100)]}, {}, None,
     "do this less often, or in a background thread", 2.5, (1.5, 3.0)),
    ("long_inputs", {"forward": [0.2 if number in (7, 31, 50, 51, 77) else 0.02 for number in range(100)]},
     {"columns": {"input_shapes": [f"[[8,{900 if number in (7, 31, 50, 51, 77) else 100 + number % 7}]]"
                                   for number in range(100)]}}, None, "bucket the others", 0.5, (0.27, 0.9)),
    ("new_input_shapes", {"forward": [0.5 if number in (0, 40, 80) else 0.02 for number in range(100)]},
     {"columns": {"input_shapes": [f"[[8,{100 + number // 40}]]" for number in range(100)]}}, None,
     "use few fixed shapes", 1.2, (0.72, 1.44)),
])
def test_a_cause(tmp_path: Path, cause: str, phases: dict[str, Any], facts: dict[str, Any], place: str | None,
                 words: str, saved_s: float, range_s: tuple[float, float]) -> None:
    run = watched_program(tmp_path, TYPICAL | phases, **facts)
    finding = first(run)
    assert finding["finding"] == cause
    if place is not None:
        assert f"{finding['file']}:{finding['line']:.0f}" == place
    assert words in finding["remedy"]
    assert holds(finding, saved_s), finding["recoverable_s"]
    assert finding["recoverable_s"] == pytest.approx(list(range_s), rel=0.03)
    assert finding["evidence"]
    assert findings(run)["finding"].is_unique


@pytest.mark.parametrize(("finding", "phases", "facts"), [
    ("line", {"forward": 0.04}, {"passes": sampled("forward", "net.py:9", "forward", 70, in_loop=True,
                                                   text="x = layer(x)", library=library)})
    for library in ("torch._tensor.Tensor.split", "net.Block.forward")
] + [
    ("frozen_outputs", {}, {"parts": {"forward": "vae.encode"}, "settings": {"models": [
        {"name": "vae", "num_frozen_rows": 800, "num_repeated_rows": rows}]}}) for rows in (0, None)
] + [
    ("time_trend", {name: list(time_s * np.where(np.arange(400) < 250, 1.0, 1.8)) for name, time_s in TYPICAL.items()},
     {"num": 400}),  # a slower machine
    ("time_trend", {name: list(time_s * np.linspace(1, 2.6 if name == "forward" else 2.0, 400))
                    for name, time_s in TYPICAL.items()}, {"num": 400}),  # forward hardly more than the others
    ("time_trend", {"forward": list(np.linspace(0.005, 0.013, 400))},
     {"num": 400, "columns": {"input_shapes": [f"[[8,{100 + number}]]" for number in range(400)]}}),
    ("memory_growth", {}, {"num": 150, "columns": {"rss_bytes": [  # freed again and again
        300e6 + (number % 9) * 30e6 + number * 3e5 for number in range(150)]}}),
    ("memory_growth", {}, {"num": 150, "columns": {"rss_bytes": [  # caches that fill
        300e6 + 100e6 * (1 - 0.96**number) for number in range(150)]}}),
])
def test_no_cause(tmp_path: Path, finding: str, phases: dict[str, Any], facts: dict[str, Any]) -> None:
    assert not named(watched_program(tmp_path, TYPICAL | phases, **facts), finding)


@pytest.mark.parametrize(("what", "remedy"), [("hooks", "once"), ("modules", "replace"), (None, "size of lists")])
def test_a_phase_that_grows(tmp_path: Path, what: str | None, remedy: str) -> None:
    models = [MODEL | {f"num_{what}_first": 1, f"num_{what}_last": 400}] if what else []
    finding = first(watched_program(tmp_path, TYPICAL | {"forward": list(np.linspace(0.005, 0.013, 400))}, num=400,
                                    settings={"models": models}))
    assert (finding["finding"], finding["phase"], finding["layer"]) == ("time_trend", "forward", what and "model")
    assert remedy in finding["remedy"]
    assert finding["recoverable_s"] == pytest.approx([0.5 * 1.6, 1.1 * 1.6], rel=0.05)  # 4 ms in the mean


def test_generation_without_a_cache(tmp_path: Path) -> None:
    lengths = [10 + number % 50 for number in range(200)]
    run = watched_program(tmp_path, {"forward": [0.0002 * each for each in lengths]}, num=200, mode="infer",
                          columns={"input_shapes": [f"[[1,{each}]]" for each in lengths]})
    finding = first(run)
    assert "use_cache=True" in finding["remedy"]
    assert holds(finding, sum(0.0002 * each for each in lengths) - 200 * 0.002)  # with a cache, all take as the first
    assert set(findings(run)["finding"]) == {"repeated_inputs"}


HELD = {"shape": [128, 2000], "num_tensors": 150, "bytes": 150 * MIB, "has_graph": True, "variable": "outputs",
        "function": "AddmmBackward0", "file": "train.py", "line": 12, "text": "outputs.append(logits)"}


@pytest.mark.parametrize(("facts", "growth", "place", "words"), [
    ({"passes": inspected(held_tensors=[HELD], iterations=[149])}, range(150), ("train.py", 12), "in outputs, with"),
    ({"passes": inspected(held_graphs=[{"variable": "hidden", "num_nodes": 9000, "age_frac": 0.9, "file": "train.py",
                                          "line": 3}],
                          iterations=[149])}, range(150), ("train.py", 3), "hidden keeps the autograd graph"),
    ({"settings": {"create_graph": {"file": "critic.py", "line": 17}}}, range(150), ("critic.py", 17), "create_graph"),
    # Growth that ends has a holder.
    ({"passes": inspected(held_tensors=[HELD | {"num_tensors": 60, "bytes": 60 * MIB}], iterations=[59])},
     [min(number, 120) for number in range(150)], ("train.py", 12), "shape [128, 2000]"),
])
def test_memory_that_grows_and_what_holds_it(tmp_path: Path, facts: dict[str, Any], growth: Any,
                                             place: tuple[str, int], words: str) -> None:
    finding = first(watched_program(tmp_path, TYPICAL, num=150, **facts, columns={
        "rss_bytes": [300e6 + number * MIB for number in growth]}))
    assert (finding["finding"], finding["file"], finding["line"]) == ("memory_growth", *place)
    assert finding["recoverable_s"] is None
    if isinstance(growth, range):
        assert finding["recoverable_bytes"] == pytest.approx(147 * MIB, rel=0.05)
    assert words in finding["cause"]


@pytest.mark.parametrize(("mib_a_batch", "num_found"), [(8, 1), (0.1, 0)])
def test_memory_that_grows_in_each_evaluation(mib_a_batch: float, num_found: int, tmp_path: Path,
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WatchedCase, "trainings", {"train"})
    columns = {"index": [number + number // 20 * 30 for number in range(60)],
               "rss_bytes": [300e6 + number % 20 * mib_a_batch * MIB for number in range(60)]}
    line = sampled("other", "eval.py:31", "evaluate", 2, of=30, text="all_logits.append(logits)")
    run = watched_program(tmp_path, {"forward": 0.02, "other": 0.002}, num=60, columns=columns, mode="infer",
                          passes=line)
    grown = named(run, "memory_growth")
    assert len(grown) == num_found
    for each in grown:
        assert each["recoverable_bytes"] == 19 * 8 * MIB
        assert (each["file"], each["line"]) == ("eval.py", 31)
        assert "8.00 MiB a batch in each evaluation" in each["cause"]


def test_inference_that_records_a_graph(tmp_path: Path) -> None:
    sizes = [300e6 + number * MIB for number in range(100)]
    run = watched_program(tmp_path, {"forward": 0.02}, mode="infer", columns={"rss_bytes": sizes},
                          settings={"models": [MODEL | {"inference_with_grad": 100}]})
    (finding,) = named(run, "inference_graph")
    assert finding["recoverable_bytes"] == 99 * MIB
    assert finding["recoverable_s"] == pytest.approx([0, 0.3 * 2], rel=0.02)


DATA = {"variable": "memory.frames", "shape": [5000, 84, 84], "dtype": "float32", "num_tensors": 1, "bytes": 400 * MIB,
        "narrower": "uint8", "scale": 255, "file": "train.py", "line": 7, "text": "self.frames = images / 255"}


@pytest.mark.parametrize(("cause", "held", "freed", "words"), [
    ("wide_data", [DATA, DATA | {"variable": "labels", "bytes": 20 * MIB}, DATA | {"variable": "noise",
                                                                                 "narrower": None}], 300,
     ("float32 values in memory.frames fit uint8", "batch.to(torch.float32) / 255")),
    ("overlapping_windows", [DATA | {"bytes": 200 * MIB, "shape": [35_000, 100, 16], "overlaps": True}], 198,
     ("100 times", "series.unfold(0, 100, 1)")),
])
def test_data_that_holds_much_memory(tmp_path: Path, cause: str, held: list[dict[str, Any]], freed: int,
                                     words: tuple[str, str]) -> None:
    run = watched_program(tmp_path, TYPICAL, passes=inspected(held_data=held, iterations=[20]),
                          columns={"rss_bytes": [900e6] * 100})
    (finding,) = findings(run).to_dict("records")
    assert (finding["finding"], finding["file"], finding["line"]) == (cause, "train.py", 7)
    assert finding["recoverable_bytes"] == freed * MIB
    assert words[0] in finding["cause"]
    assert words[1] in finding["remedy"]


def test_a_frozen_model_that_gets_the_same_inputs_again(tmp_path: Path) -> None:
    model = {"name": "vae", "num_frozen_rows": 800, "num_repeated_rows": 700}
    run = watched_program(tmp_path, TYPICAL, settings={"models": [{"name": "net"}, model]},
                          parts={"forward": "vae.encode"})
    (finding,) = named(run, "frozen_outputs")
    assert (finding["layer"], finding["phase"]) == ("vae", "forward")
    saved_s = 7 / 8 * TYPICAL["forward"] * 100
    assert finding["recoverable_s"] == pytest.approx([0.7 * saved_s, saved_s], rel=0.02)


@pytest.mark.parametrize(("mode", "batch", "num_found"), [("infer", 8, 1), ("infer", 1024, 0), ("train", 8, 0)])
def test_weights_that_each_call_of_an_inference_computes(mode: str, batch: int, num_found: int, tmp_path: Path) -> None:
    run = watched_program(tmp_path, {"forward": 0.05}, mode=mode, operators=[
        operator("forward", "aten::sub", 0.01, layer="out", operator_type="elementwise",
                 input_shapes="[[512,1024],[512,1]]"),
        operator("forward", "aten::var_mean", 0.02, layer="out", operator_type="reduction",
                 input_shapes="[[512,1024]]"),
        operator("forward", "aten::gelu", 0.01, layer="out", operator_type="activation", input_shapes="[[512,1024]]"),
        operator("forward", "aten::addmm", 0.01, layer="out", operator_type="GEMM",
                 input_shapes=f"[[512],[{batch if batch < 1024 else 512},1024],[1024,512]]")])
    rows = named(run, "weights_each_call")
    assert len(rows) == num_found
    for finding in rows:
        assert finding["layer"] == "out"
        assert finding["recoverable_s"] == pytest.approx([0.7 * 3, 3], rel=0.02)


PAIRS = "[[512,1024,128]]"


@pytest.mark.parametrize(("later", "num_found"), [
    ([("aten::pow", "elementwise", PAIRS), ("aten::sum", "reduction", PAIRS)], 1),
    ([("aten::sum", "reduction", PAIRS)], 1),
    ([("aten::pow", "elementwise", PAIRS)], 0),  # the pairs are the result
    ([("aten::tanh", "activation", PAIRS), ("aten::sum", "reduction", PAIRS)], 0),  # no matrix product computes it
    ([("aten::pow", "elementwise", PAIRS), ("aten::amax", "reduction", PAIRS)], 0)])
def test_pairs_that_are_expanded_and_reduced(later: list[tuple[str, str, str]], num_found: int, tmp_path: Path) -> None:
    run = watched_program(tmp_path, {"forward": 0.02, "loss": 0.05}, operators=[
        operator("loss", "aten::sub", 0.01, operator_type="elementwise", input_shapes="[[512,1,128],[1,1024,128]]"),
        *(operator("loss", name, 0.01, operator_type=kind, input_shapes=shapes) for name, kind, shapes in later)])
    rows = named(run, "expanded_pairs")
    assert len(rows) == num_found
    for finding in rows:
        assert "512 × 1,024 × 128" in finding["cause"]
        spent_s = 0.01 * (1 + len(later)) * 100
        assert finding["recoverable_s"] == pytest.approx([0.5 * spent_s, 1.15 * spent_s], rel=0.02)


@pytest.mark.parametrize(("shapes", "num_found"), [
    ("[[512,1,16],[1,1024,16]]", 1), ("[[512,1024,16],[1,1024,16]]", 0), ("[[512,1],[1,1024]]", 0),
    ("[[32,1,16],[1,64,16]]", 0), ("[[16],[512,1024,16]]", 0)])
def test_only_large_expansions_of_rows_are_pairs(shapes: str, num_found: int, tmp_path: Path) -> None:
    run = watched_program(tmp_path, {"forward": 0.05}, operators=[
        operator("forward", "aten::mul", 0.02, operator_type="elementwise", input_shapes=shapes),
        operator("forward", "aten::sum", 0.02, operator_type="reduction", input_shapes="[[512,1024,16]]")])
    assert len(named(run, "expanded_pairs")) == num_found


@pytest.mark.parametrize(("words", "indices", "product", "num_found"), [
    (6000, "[32,48,1]", "[1536,6000],[6000,128]", 1), (6000, "[32,48,1]", "[1536,128],[128,6000]", 0),
    (16, "[32,48,1]", "[1536,16],[16,128]", 0), (6000, "[32,48,6000]", "[1536,6000],[6000,128]", 0)])
def test_one_hot_rows_times_a_matrix(words: int, indices: str, product: str, num_found: int, tmp_path: Path) -> None:
    run = watched_program(tmp_path, {"forward": 0.05, "backward": 0.05}, operators=[
        operator("forward", "aten::scatter_", 0.001, operator_type="data movement",
                 input_shapes=f"[[32,48,{words}],{indices}]"),
        operator("forward", "aten::copy_", 0.009, operator_type="data movement", input_shapes=f"[[32,48,{words}]]"),
        operator("forward", "aten::mm", 0.01, operator_type="GEMM", layer="project", input_shapes=f"[{product}]"),
        operator("backward", "aten::mm", 0.01, operator_type="GEMM", layer="project",
                 input_shapes=f"[[128,1536],[1536,{words}]]")])
    rows = named(run, "one_hot_product")
    assert [row["layer"] for row in rows] == ["project"] * num_found
    for finding in rows:
        assert finding["recoverable_s"] == pytest.approx([0.6 * 3, 1.25 * 3], rel=0.02)
        assert "nn.Embedding" in finding["remedy"]


@pytest.mark.parametrize(("name", "spent_s", "what"), [
    ("aten::_linalg_svd", 0.02, "singular value decomposition of a matrix of 256 × 256"),
    ("aten::_linalg_eigh", 0.02, "eigendecomposition"), ("aten::_linalg_svd", 0.0005, None),
    ("aten::linalg_cholesky_ex", 0.02, None)])
def test_matrices_that_are_decomposed(name: str, spent_s: float, what: str | None, tmp_path: Path) -> None:
    run = watched_program(tmp_path, {"forward": 0.05}, operators=[
        operator("forward", name, spent_s, layer="0", operator_type="other", input_shapes="[[256,256]]")])
    rows = named(run, "decomposition")
    assert len(rows) == (what is not None)
    for finding in rows:
        assert what in finding["cause"]
        assert ("spectral_norm" in finding["remedy"]) == ("svd" in name)
        assert finding["recoverable_s"] == pytest.approx([50 * spent_s, 100 * spent_s], rel=0.02)


@pytest.mark.parametrize(("reads", "num_used"), [
    ([("aten::index", "[[4,16000],[5]]")], 4),
    ([("aten::index", "[[4,16000],[5]]"), ("aten::view", "[[32,16000]]")], 4),  # a view reads nothing
    ([("aten::index", "[[4,16000],[5]]"), ("aten::index", "[[900,16000]]")], 4),  # of another tensor
    ([("aten::index", "[[4,160,16000],[5]]")], None), ([("aten::index", "[[4,160,128]]")], None),
    ([("aten::index", "[[4,16000],[5]]"), ("aten::sum", "[[640,16000]]")], None)])
def test_logits_of_which_an_inference_reads_few(reads: list[tuple[str, str]], num_used: int | None, tmp_path: Path
                                                ) -> None:
    run = watched_program(tmp_path, {"forward": 0.05}, mode="infer", operators=[
        operator("forward", "aten::mm", 0.02, layer="mlp", input_shapes="[[640,128],[128,128]]"),
        operator("forward", "aten::mm", 0.02, layer="lm_head", input_shapes="[[640,128],[128,16000]]"),
        operator("other", "aten::slice", 1e-6, input_shapes="[[4,160,16000]]"),
        *(operator("other", name, 1e-3, input_shapes=shapes) for name, shapes in reads)])
    rows = named(run, "unused_outputs")
    assert [row["layer"] for row in rows] == ([] if num_used is None else ["lm_head"])
    if num_used is not None:
        saved_s = (1 - num_used / 640) * 0.02 * 100
        assert rows[0]["recoverable_s"] == pytest.approx([0.7 * saved_s, saved_s], rel=0.01)


def test_the_larger_saving_comes_first(tmp_path: Path) -> None:
    run = watched_program(tmp_path, TYPICAL | {"update": 0.012, "other": 0.06}, settings={"optimizers": [ADAM]},
                          passes=sampled("other", "train.py:7", "log", 98, text="sleep(1)"))
    assert list(findings(run)["finding"]) == ["line", "optimizer_loop"]
    run = watched_program(tmp_path, TYPICAL | {"other": 0.006}, columns={"rss_bytes": [900e6] * 100},
                          passes=sampled("other", "train.py:7", "log", 98, text="sleep(1)")
                          | inspected(held_data=[DATA], iterations=[20]))
    assert list(findings(run)["finding"]) == ["wide_data", "line"]  # half of a third of the memory, 5 % of the time


def disturbed(run: Run, others_s: float) -> Run:
    run.manifest["cases"][0]["passes"]["timing"]["core_use"] = {
        "length_s": 10.0, "num_usable_cores": 2, "processor_s": 8.0, "others_s": others_s, "waiting_s": 8.0}
    return run


def test_what_other_programs_can_cause_is_withheld_on_a_busy_machine(tmp_path: Path) -> None:
    slow = TYPICAL | {"other": [0.5 if number in (11, 30, 31, 77) else 0.001 for number in range(100)]}
    assert list(findings(watched_program(tmp_path, slow))["finding"]) == ["slow_iterations"]
    assert findings(disturbed(watched_program(tmp_path, slow), 10.0)).empty


@pytest.mark.parametrize(("num_threads", "others_s", "num_found"), [(2, 10.0, 1), (1, 10.0, 0), (2, 0.5, 0)])
def test_threads_that_other_programs_leave_no_core(num_threads: int, others_s: float, num_found: int, tmp_path: Path
                                                   ) -> None:
    run = watched_program(tmp_path, TYPICAL, settings={"threads": THREADS | {"intra_op": num_threads}})
    rows = findings(disturbed(run, others_s)).to_dict("records")
    assert [row["finding"] for row in rows] == ["contention"] * num_found
    for finding in rows:
        assert "other programs hold 1.0" in finding["cause"]
        assert "set_num_threads(1)" in finding["remedy"]


def test_the_parts_of_the_program_sum_to_its_wall_time(tmp_path: Path) -> None:
    starts = [int(number % 20 == 0) for number in range(100)]
    run = watched_program(tmp_path, TYPICAL | {"data": [0.4 if each else 0.002 for each in starts]},
                          columns={"first_of_epoch": starts})
    program = run.manifest["cases"][0]["passes"]["timing"]["program"]
    rows = program_time(run)
    parts: pd.Series[float] = rows.set_index("part")["time_s"]
    assert parts.sum() == pytest.approx(program["duration_s"] + 0.5)
    assert rows["share_frac"].sum() == pytest.approx(1)
    assert parts["first batches of epochs"] == pytest.approx(5 * 0.398, rel=0.05)
    assert parts["training"] == pytest.approx(program["duration_s"] - 2 - 5 * 0.398, rel=0.05)
    assert parts["start"] == 1.0
    assert parts["charact"] == pytest.approx(0.5)
