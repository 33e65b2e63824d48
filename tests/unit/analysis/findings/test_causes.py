"""Findings about programs whose cause is known: the cause, its place, its remedy, and a range that holds the truth."""

from pathlib import Path
from typing import Any

import numpy as np
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


def inspected(**facts: Any) -> dict[str, Any]:
    return {"inspection": {"status": "ok", "reason": None, **facts}}


def first(run: Run) -> dict[str, Any]:
    rows = findings(run)
    assert len(rows), "nothing was found"
    facts: dict[str, Any] = rows.iloc[0].to_dict()
    return facts


def holds(finding: dict[str, Any], saved_s: float) -> bool:
    low_s, high_s = finding["recoverable_s"]
    return bool(low_s <= saved_s <= high_s)


def test_a_program_without_a_fault(tmp_path: Path) -> None:
    run = watched_program(tmp_path, TYPICAL, settings={
        "threads": THREADS, "optimizers": [ADAM | {"implementation": "fused"}], "models": [MODEL]})
    assert has_findings(run)
    assert findings(run).empty


def test_what_takes_the_most_time_without_a_fault(tmp_path: Path) -> None:
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


def test_a_workload_of_charact_has_none(tmp_path: Path) -> None:
    run = watched_program(tmp_path, TYPICAL)
    del run.manifest["options"]["script"]
    assert not has_findings(run)
    assert findings(run).empty
    assert program_time(run).empty


@pytest.mark.parametrize(("cause", "phases", "facts", "place", "words", "saved_s"), [
    ("optimizer_loop", {"update": 0.034}, {"settings": {"optimizers": [ADAM]}}, "train.py:9", "fused=True", 2.6),
    ("threads", {}, {"settings": {"threads": THREADS | {"intra_op": 16}}}, None, "set_num_threads(2)", 3.5),
    ("loader_workers", {"data": 0.03}, {"settings": {"loaders": [LOADER], "threads": THREADS}}, "train.py:5",
     "num_workers=0", 2.9),
    ("recomputation", {}, {"passes": inspected(recompute={"time_s": 0.02, "backward_s": 0.04, "layers": ["block"]})},
     None, "torch.utils.checkpoint", 2.0),
    ("unused_gradients", {}, {"passes": inspected(unused_gradients=[
        {"model": "generator", "optimizer": "critic", "time_s": 0.015, "backward_s": 0.04}])}, None, "detach", 1.5),
    ("denormals", {"update": 0.05}, {"passes": inspected(denormals=[
        {"optimizer": "optimizer", "state": "exp_avg_sq", "denormal_frac": 0.97, "num_elements": 10**6}])}, None,
     "set_flush_denormal", 3.0),
    ("denormals", {}, {"passes": inspected(denormals=[
        {"layer": "body.2", "denormal_frac": 0.4, "num_elements": 9_216}])}, None, "set_flush_denormal", 5.0),
    ("small_calls", {}, {"settings": {"num_backwards": 25_600}}, None, "vmap", 3.5),
    ("compilation", {}, {"columns": {"compile_s": [0.02] * 50 + [None] * 50}, "settings": {"compile": {
        "num_graphs": 8, "num_recompilations": 8, "reasons": [
            "self.calls == 1        # self.calls += 1  # src/net.py:27 in forward (HINT: ...)"]}}}, "src/net.py:27",
     "do not change self.calls inside", 0.9),
    ("line", {"forward": 0.04}, {"passes": sampled("forward", "net.py:9", "forward", 70,
                                                   text="mask = torch.full((n, n), -1e9).triu(1)")}, "net.py:9",
     "register_buffer", 2.5),
    ("line", {"forward": 0.04}, {"passes": sampled("forward", "net.py:9", "forward", 4, of=8, in_loop=True,
                                                   text="x = torch.cat([x, new], 1)")}, "net.py:9", "list", 1.8),
    ("line", {"loss": 0.04}, {"passes": sampled(
        "loss", "policy.py:9", "<module>", 70, in_loop=True, text="total += Categorical(logits=row).entropy()",
        library="torch.distributions.categorical.Categorical.entropy")}, "policy.py:9", "whole tensors", 2.5),
    ("attention_weights", {}, {"passes": inspected(attention_weights=[
        {"layer": "encoder.attention", "layer_type": "MultiheadAttention", "num_calls": 1, "time_s": 0.012}])}, None,
     "need_weights=False", 1.8),
    ("dense_embedding", {}, {"passes": inspected(embeddings=[
        {"layer": "words", "num_rows": 400_000, "num_used_rows": 160, "gradient_bytes": 160e6, "sparse": False}])},
     None, "sparse=True", 4.0),
    ("padding", {}, {"passes": inspected(padding=[{"name": "attention_mask", "padding_frac": 0.83}])}, None, "length",
     4.0),
    ("small_calls", {}, {"passes": inspected(layer_calls=[
        {"layer": "cell", "layer_type": "LSTMCell", "num_calls": 120, "time_s": 0.02}])}, None, "nn.LSTM", 5.0),
    ("anomaly_detection", {}, {"settings": {"anomaly_frac": 1.0}, "operators": [
        operator("backward", "aten::isnan", 0.01), operator("forward", "aten::mm", 0.02, num_calls=100.0)]}, None,
     "set_detect_anomaly", 2.0),
    ("float64", {}, {"operators": [operator("forward", "aten::mm", 0.018, dtype="float64", layer="head")]}, None,
     "float32", 1.0),
    ("line", {"other": 0.03}, {"passes": sampled("other", "train.py:7", "log", 98, waiting_frac=0.98,
                                                 text="time.sleep(0.03)")}, "train.py:7", "background", 2.9),
    ("line", {}, {"passes": sampled("between", "train.py:30", "main", 90, text="torch.save(state, path)")},
     "train.py:30", "save less often", 0.9),  # after the iterations is 1 s
    ("data_loading", {"data": 0.06}, {"passes": sampled("data", "data.py:4", "decode", 90, text="np.load(path)"),
                                      "settings": {"threads": THREADS}}, "data.py:4", "num_workers", 3.0),
])
def test_a_cause(tmp_path: Path, cause: str, phases: dict[str, float], facts: dict[str, Any], place: str | None,
                 words: str, saved_s: float) -> None:
    finding = first(watched_program(tmp_path, TYPICAL | phases, **facts))
    assert finding["finding"] == cause
    if place is not None:
        assert f"{finding['file']}:{finding['line']}" == place
    assert words in finding["remedy"]
    assert holds(finding, saved_s), finding["recoverable_s"]
    assert finding["evidence"]


@pytest.mark.parametrize("library", ["torch._tensor.Tensor.split", "net.Block.forward"])
def test_a_loop_over_layers_is_no_cause(tmp_path: Path, library: str) -> None:
    passes = sampled("forward", "net.py:9", "forward", 70, in_loop=True, text="x = layer(x)", library=library)
    run = watched_program(tmp_path, TYPICAL | {"forward": 0.04}, passes=passes)
    assert "line" not in list(findings(run)["finding"])


def test_workers_that_start_in_every_epoch(tmp_path: Path) -> None:
    starts = [int(number % 20 == 0) for number in range(100)]
    run = watched_program(tmp_path, TYPICAL | {"data": [0.4 if each else 0.002 for each in starts]},
                          settings={"loaders": [LOADER | {"worker_fetch_s": 0.2}]}, columns={"first_of_epoch": starts})
    finding = first(run)
    assert (finding["finding"], finding["setting"]) == ("epoch_start", "persistent_workers=False")
    assert "persistent_workers=True" in finding["remedy"]
    assert holds(finding, 4 * 0.398)


GROWING = TYPICAL | {"forward": list(np.linspace(0.005, 0.013, 400))}


@pytest.mark.parametrize(("what", "remedy"), [("hooks", "once"), ("modules", "replace")])
def test_a_phase_that_grows_with_hooks_or_modules(tmp_path: Path, what: str, remedy: str) -> None:
    model = MODEL | {f"num_{what}_first": 1, f"num_{what}_last": 400}
    finding = first(watched_program(tmp_path, GROWING, num=400, settings={"models": [model]}))
    assert (finding["finding"], finding["phase"], finding["layer"]) == ("time_trend", "forward", "model")
    assert remedy in finding["remedy"]
    assert holds(finding, 400 * 0.004)


def test_a_slower_machine_and_larger_inputs_are_no_trend(tmp_path: Path) -> None:
    slower = np.where(np.arange(400) < 250, 1.0, 1.8)
    runs = [watched_program(tmp_path / "a", {name: list(time_s * slower) for name, time_s in TYPICAL.items()}, num=400),
            watched_program(tmp_path / "b", GROWING, num=400,
                            columns={"input_shapes": [f"[[8,{100 + number}]]" for number in range(400)]})]
    for run in runs:
        assert "time_trend" not in list(findings(run)["finding"])


def test_generation_without_a_cache(tmp_path: Path) -> None:
    lengths = [10 + number % 50 for number in range(200)]
    run = watched_program(tmp_path, {"forward": [0.0002 * each for each in lengths]}, num=200, mode="infer",
                          columns={"input_shapes": [f"[[1,{each}]]" for each in lengths]})
    finding = first(run)
    assert finding["finding"] == "repeated_inputs"
    assert "use_cache=True" in finding["remedy"]
    assert holds(finding, sum(0.0002 * each for each in lengths) - 200 * 0.002)  # with a cache, all take as the first
    assert set(findings(run)["finding"]) == {"repeated_inputs"}


def test_memory_that_grows_and_what_holds_it(tmp_path: Path) -> None:
    held = {"shape": [128, 2000], "num_tensors": 150, "bytes": 150 * 2**20, "has_graph": True, "variable": "outputs",
            "function": "AddmmBackward0", "file": "train.py", "line": 12, "text": "outputs.append(logits)"}
    run = watched_program(tmp_path, TYPICAL, num=150, passes=inspected(held_tensors=[held], iterations=[149]),
                          columns={"rss_bytes": [300e6 + number * 2**20 for number in range(150)]})
    finding = first(run)
    assert finding["finding"] == "memory_growth"
    assert (finding["file"], finding["line"], finding["text"]) == ("train.py", 12, "outputs.append(logits)")
    assert finding["recoverable_s"] is None
    assert finding["recoverable_bytes"] == pytest.approx(147 * 2**20, rel=0.05)
    assert "outputs" in finding["cause"]


def test_forced_garbage_collections_are_named_once(tmp_path: Path) -> None:
    spent = sampled("other", "train.py:30", "main", 60, of=60, text="gc.collect()")
    run = watched_program(tmp_path, TYPICAL | {"other": 0.1}, passes=spent, columns={"gc_s": [0.09] * 100})
    assert [(each["finding"], each["line"]) for _, each in findings(run).iterrows()] == [("garbage_collection", 30)]


def test_data_wider_than_needed(tmp_path: Path) -> None:
    data = {"variable": "memory.frames", "shape": [5000, 84, 84], "dtype": "float32", "num_tensors": 1,
            "bytes": 400 * 2**20, "narrower": "uint8", "scale": 255, "file": "train.py", "line": 7,
            "text": "self.frames = images / 255"}
    held = [data, data | {"variable": "labels", "bytes": 20 * 2**20}, data | {"variable": "noise", "narrower": None}]
    run = watched_program(tmp_path, TYPICAL, passes=inspected(held_data=held, iterations=[20]),
                          columns={"rss_bytes": [900e6] * 100})
    wide = [each for _, each in findings(run).iterrows() if each["finding"] == "wide_data"]
    assert [(each["file"], each["line"], each["recoverable_bytes"]) for each in wide] == [("train.py", 7, 300 * 2**20)]
    assert "float32 values in memory.frames fit uint8" in wide[0]["cause"]
    assert "batch.to(torch.float32) / 255" in wide[0]["remedy"]


def test_rows_that_are_computed_several_times(tmp_path: Path) -> None:
    layers = [{"layer": "encoder", "num_rows": 48, "num_repeated": 40}, {"layer": "head", "num_rows": 48,
                                                                         "num_repeated": 1}]
    run = watched_program(tmp_path, {"forward": 0.02, "other": 0.002}, passes=inspected(repeated_rows=layers),
                          mode="infer", operators=[operator("forward", "aten::lstm", 0.015, layer="encoder.0"),
                                                   operator("forward", "aten::addmm", 0.004, layer="head")])
    finding = first(run)
    assert (finding["finding"], finding["layer"]) == ("repeated_rows", "encoder")
    assert holds(finding, 40 / 48 * 0.015 * 100)
    assert "83.3 % of the 48 rows" in finding["evidence"][0]


def test_logits_that_the_loss_ignores(tmp_path: Path) -> None:
    layers = [{"layer": "lm_head", "num_rows": 4000, "num_used_rows": 600},
              {"layer": "blocks.3.mlp", "num_rows": 4000, "num_used_rows": 3900}]
    run = watched_program(tmp_path, TYPICAL, passes=inspected(unused_outputs=layers), operators=[
        operator("forward", "aten::addmm", 0.01, layer="lm_head"),
        operator("backward", "aten::mm", 0.02, layer="lm_head"),
        operator("forward", "aten::addmm", 0.005, layer="blocks.3.mlp"),
        operator("backward", "aten::_log_softmax_backward_data", 0.01, input_shapes="[[4000,900],[4000,900]]")])
    finding = first(run)
    assert finding["recoverable_s"][1] == pytest.approx(0.85 * (0.03 + 0.002 + 0.01) * 100, rel=0.03)
    assert (finding["finding"], finding["layer"], finding["phase"]) == ("unused_outputs", "lm_head", "forward")
    assert holds(finding, 0.85 * 0.03 * 100)
    assert "85.0 % of the 4,000 outputs of lm_head" in finding["evidence"][0]


@pytest.mark.parametrize(("num_repeated", "num_found"), [(700, 1), (0, 0), (None, 0)])
def test_a_frozen_model_that_gets_the_same_inputs_again(num_repeated: int | None, num_found: int, tmp_path: Path
                                                        ) -> None:
    model = {"name": "vae", "num_frozen_rows": 800, "num_repeated_rows": num_repeated}
    run = watched_program(tmp_path, TYPICAL, settings={"models": [{"name": "net"}, model]},
                          parts={"forward": "vae.encode"})
    found = findings(run).query("finding == 'frozen_outputs'")
    assert len(found) == num_found
    for _, finding in found.iterrows():
        assert (finding["layer"], finding["phase"]) == ("vae", "forward")
        assert holds(dict(finding), 7 / 8 * TYPICAL["forward"] * 100)


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
    found = findings(run).query("finding == 'weights_each_call'")
    assert len(found) == num_found
    for _, finding in found.iterrows():
        assert finding["layer"] == "out"
        assert holds(dict(finding), 0.03 * 100)


@pytest.mark.parametrize(("reader", "unused_frac"), [
    ("[[4,16000],[5]]", 1 - 4 / 640), ("[[4,160,16000],[5]]", None), ("[[4,160,128]]", None)])
def test_logits_of_which_an_inference_reads_few(reader: str, unused_frac: float | None, tmp_path: Path) -> None:
    run = watched_program(tmp_path, {"forward": 0.05}, mode="infer", operators=[
        operator("forward", "aten::mm", 0.02, layer="mlp", input_shapes="[[640,128],[128,128]]"),
        operator("forward", "aten::mm", 0.02, layer="lm_head", input_shapes="[[640,128],[128,16000]]"),
        operator("other", "aten::slice", 1e-6, input_shapes="[[4,160,16000]]"),
        operator("other", "aten::index", 1e-3, input_shapes=reader)])
    found = findings(run)
    if unused_frac is None:
        assert "unused_outputs" not in set(found["finding"])
    else:
        finding = first(run)
        assert (finding["finding"], finding["layer"]) == ("unused_outputs", "lm_head")
        assert holds(finding, unused_frac * 0.02 * 100)


def test_windows_that_overlap(tmp_path: Path) -> None:
    data = {"variable": "dataset.inputs", "shape": [35_000, 100, 16], "dtype": "float32", "num_tensors": 1,
            "bytes": 200 * 2**20, "narrower": "int16", "overlaps": True, "file": "train.py", "line": 7,
            "text": "self.inputs = np.stack(windows)"}
    run = watched_program(tmp_path, TYPICAL, passes=inspected(held_data=[data]), columns={"rss_bytes": [900e6] * 100})
    (finding,) = (each for _, each in findings(run).iterrows() if each["recoverable_bytes"] > 0)
    assert (finding["finding"], finding["line"]) == ("overlapping_windows", 7)
    assert finding["recoverable_bytes"] == pytest.approx(198 * 2**20)
    assert "100 times" in finding["cause"]
    assert "series.unfold(0, 100, 1)" in finding["remedy"]


def test_growth_that_ends_has_a_holder(tmp_path: Path) -> None:
    held = {"shape": [16, 3, 64, 64], "num_tensors": 60, "bytes": 60 * 2**20, "has_graph": False}
    sizes = [300e6 + min(number, 120) * 2**20 for number in range(150)]
    with_holder, without = (watched_program(
        tmp_path / name, TYPICAL, num=150, passes=inspected(held_tensors=tensors, iterations=[59]),
        columns={"rss_bytes": sizes}) for name, tensors in (("with", [held]), ("without", [])))
    assert first(with_holder)["finding"] == "memory_growth"
    assert "memory_growth" not in set(findings(without)["finding"])


@pytest.mark.parametrize(("mib_a_batch", "num_found"), [(8, 1), (0.1, 0)])
def test_memory_that_grows_in_each_evaluation(mib_a_batch: float, num_found: int, tmp_path: Path,
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WatchedCase, "trainings", {"train"})
    columns = {"index": [number + number // 20 * 30 for number in range(60)],
               "rss_bytes": [300e6 + number % 20 * mib_a_batch * 2**20 for number in range(60)]}
    line = sampled("other", "eval.py:31", "evaluate", 2, of=30, text="all_logits.append(logits)")
    run = watched_program(tmp_path, {"forward": 0.02, "other": 0.002}, num=60, columns=columns, mode="infer",
                          passes=line)
    grown = [each for _, each in findings(run).iterrows() if each["finding"] == "memory_growth"]
    assert len(grown) == num_found
    for each in grown:
        assert each["recoverable_bytes"] == 19 * 8 * 2**20
        assert (each["file"], each["line"]) == ("eval.py", 31)
        assert "8.00 MiB a batch in each evaluation" in each["cause"]


def test_memory_that_create_graph_keeps(tmp_path: Path) -> None:
    run = watched_program(tmp_path, TYPICAL, num=150, settings={"create_graph": {"file": "critic.py", "line": 17}},
                          columns={"rss_bytes": [300e6 + number * 2**20 for number in range(150)]})
    finding = first(run)
    assert (finding["finding"], finding["file"], finding["line"]) == ("memory_growth", "critic.py", 17)
    assert "torch.autograd.grad" in finding["remedy"]


@pytest.mark.parametrize("sizes", [
    [300e6 + (number % 9) * 30e6 + number * 3e5 for number in range(150)],  # freed again and again
    [300e6 + 100e6 * (1 - 0.96**number) for number in range(150)],  # caches that fill
], ids=["sawtooth", "saturation"])
def test_memory_that_does_not_grow_until_the_end_is_no_growth(tmp_path: Path, sizes: list[float]) -> None:
    run = watched_program(tmp_path, TYPICAL, num=150, columns={"rss_bytes": sizes})
    assert "memory_growth" not in list(findings(run)["finding"])


def test_the_larger_saving_comes_first(tmp_path: Path) -> None:
    run = watched_program(tmp_path, TYPICAL | {"update": 0.012, "other": 0.06}, settings={"optimizers": [ADAM]},
                          passes=sampled("other", "train.py:7", "log", 98, text="sleep(1)"))
    assert list(findings(run)["finding"]) == ["line", "optimizer_loop"]


def test_what_other_programs_can_cause_is_withheld_on_a_busy_machine(tmp_path: Path) -> None:
    slow = TYPICAL | {"other": [0.5 if number in (11, 30, 31, 77) else 0.001 for number in range(100)]}
    run = watched_program(tmp_path, slow)
    assert list(findings(run)["finding"]) == ["slow_iterations"]
    run = watched_program(tmp_path, slow)
    run.manifest["cases"][0]["passes"]["timing"]["core_use"] = {
        "length_s": 10.0, "num_usable_cores": 2, "processor_s": 8.0, "others_s": 10.0, "waiting_s": 8.0}
    assert findings(run).empty


@pytest.mark.parametrize(("num_threads", "others_s", "num_found"), [(2, 10.0, 1), (1, 10.0, 0), (2, 0.5, 0)])
def test_threads_that_other_programs_leave_no_core(num_threads: int, others_s: float, num_found: int, tmp_path: Path
                                                   ) -> None:
    run = watched_program(tmp_path, TYPICAL, settings={"threads": THREADS | {"intra_op": num_threads}})
    run.manifest["cases"][0]["passes"]["timing"]["core_use"] = {
        "length_s": 10.0, "num_usable_cores": 2, "processor_s": 8.0, "others_s": others_s, "waiting_s": 8.0}
    found = findings(run)
    assert list(found["finding"]) == ["contention"] * num_found
    for _, finding in found.iterrows():
        assert "other programs hold 1.0" in finding["cause"]
        assert "set_num_threads(1)" in finding["remedy"]


def test_the_parts_of_the_program_sum_to_its_wall_time(tmp_path: Path) -> None:
    starts = [int(number % 20 == 0) for number in range(100)]
    run = watched_program(tmp_path, TYPICAL | {"data": [0.4 if each else 0.002 for each in starts]},
                          columns={"first_of_epoch": starts})
    program = run.manifest["cases"][0]["passes"]["timing"]["program"]
    parts = program_time(run).set_index("part")["time_s"]
    assert parts.sum() == pytest.approx(program["duration_s"] + 0.5)
    assert parts["first batches of epochs"] == pytest.approx(5 * 0.398, rel=0.05)
    assert parts["start"] == 1.0
    assert parts["charact"] == pytest.approx(0.5)
