"""Savings, numbers in texts, and thresholds of findings about cases with exact times."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest
from support.records import watched_entry
from support.watched_programs import operator

import charact.analysis.findings
from charact.analysis.findings import program_time
from charact.analysis.findings._finding import Finding, Saving
from charact.analysis.findings._line_text import advice_for
from charact.analysis.findings._series import SlowGroup
from charact.analysis.findings._watched_case import WatchedCase, watched_cases
from charact.analysis.profile.core_use import Disturbance
from charact.core.plugins import modules_in
from charact.record.manifest import typed_entry
from charact.record.manifest_program import ProgramFacts, ProgramSettings
from charact.record.reader import Run
from charact.record.schema import PHASES, SAMPLED_PHASES

FORWARD_S, BACKWARD_S, UPDATE_S, OTHER_S = 0.25, 0.5, 0.125, 0.125
PHASE_S = {"forward": FORWARD_S, "backward": BACKWARD_S, "update": UPDATE_S, "other": OTHER_S}
MIB = 2**20
Row = dict[str, Any]


def frame(place: str, num_samples: int, text: str = "", library: str | None = None, **facts: Any) -> Row:
    return {"place": place, "function": "work", "num_samples": num_samples, "text": text, "library": library} | facts


def case_of(phases: Row | None = None, *, mode: str = "train", device: str = "cpu", settings: Row | None = None,
            frames: Row | None = None, rows: Row | None = None, operators: list[Row] | None = None,
            passes: Row | None = None, machine: Row | None = None, tables: Row | None = None,
            num_parameters: int | None = None, facts: Row | None = None, **inspection: Any) -> WatchedCase:
    """Return a case of 100 iterations of 1 s: the shortest reported saving is 3 s.

    `frames` has the sampled lines by phase, of 100 samples; `facts` replaces properties of the case.
    """
    sampled = {}
    for phase, lines in (frames or {}).items():
        count, name = SAMPLED_PHASES[phase]
        sampled |= {count: 100, name: lines}
    entry = watched_entry("train.py", mode=mode, device=device, num_parameters=num_parameters)
    entry["passes"] = {"frames": {"status": "ok", "reason": None, **sampled},
                       "inspection": {"status": "ok", "reason": None, **inspection}, **(passes or {})}
    run = Run(Path("none"), {"cases": [entry], "machine": machine or {}}, _tables=tables or {})
    case = WatchedCase(run, typed_entry(entry))
    columns: Row = {"index": range(100), "kind": "timed", "wall_s": 1.0, "input_shapes": None, "compile_s": np.nan,
                    "gc_s": np.nan, "rss_bytes": np.nan, "allocated_bytes": np.nan, "workers_bytes": np.nan,
                    "position": range(100), **{f"{phase}_s": 0.0 for phase in PHASES}}
    phase_s = dict.fromkeys(PHASES, 0.0) | (PHASE_S if phases is None else phases)
    vars(case).update({
        "phase_s": phase_s, "num_iterations": 100, "program_s": 100.0, "loop_s": 100.0, "trainings": {case.name},
        "iterations": pd.DataFrame(columns | {f"{name}_s": time_s for name, time_s in phase_s.items()} | (rows or {})),
        "settings": msgspec.convert(settings or {}, ProgramSettings), "slow_groups": {}, "disturbance": None,
        "operators": pd.DataFrame(operators or [operator("forward", "aten::mm", 0.0)]).rename(
            columns={"self_host_s": "time_s"})} | (facts or {}))
    return case


def found(name: str, case: WatchedCase) -> list[Finding]:
    (find,) = (vars(module)[name] for module in modules_in(charact.analysis.findings.__name__)
               if getattr(vars(module).get(name), "__module__", None) == module.__name__)
    findings: Iterator[Finding] = find(case)
    return list(findings)


def layer(name: str = "a", time_s: float = 0.125, num_calls: int = 1, kind: str = "Linear") -> Row:
    return {"layer": name, "layer_type": kind, "num_calls": num_calls, "time_s": time_s}


def group(reason: str, indices: list[int], extra_s: float = 10.0, phase: str = "forward", period: int | None = None
          ) -> Row:
    return {"slow_groups": {reason: SlowGroup(indices, extra_s, 0.5, 2.5, phase, period)}}


ATTENTION = "torch.nn.modules.activation.MultiheadAttention.forward"
CORES = {"threads": {"intra_op": 4, "num_usable_cores": 4}}
TWO_CORES = {"threads": {"intra_op": 2, "num_usable_cores": 2}}
WORKERS = {"num_workers": 2, "num_batches": 100, "worker_fetch_s": 5.0, "file": "train.py", "line": 5}
SLOW_LINE = {"slow": [frame("net.py:9", 30, "data = open(path).read()")]}
HALF, QUARTERS = {"data": 0.5, "forward": 0.5}, {"data": 0.75, "forward": 0.25}
RECOMPUTE = {"time_s": 0.25, "backward_s": 0.5, "layers": list("abcd")}
OPTIMIZER = {"class": "Adam", "implementation": "for-loop", "num_tensors": 3000, "num_parameters": 45_000}
EMBEDDING = {"layer": "words", "num_rows": 1000, "num_used_rows": 100, "gradient_bytes": 4e9, "sparse": False}
NAN = [operator("backward", "aten::isnan", 0.125), operator("forward", "aten::isnan", 0.5, num_calls=200.0),
       operator("backward", "aten::mm", 0.5)]
LOGITS = {"layer": "head", "num_rows": 1000, "num_used_rows": 250}
HEAD = [operator("forward", "aten::addmm", 0.125, layer="head"),
        operator("backward", "aten::addmm", 0.0625, input_shapes="[[1000,90]]"),
        operator("backward", "aten::addmm", 0.125, input_shapes="[[1000,90]]", layer="body"),
        operator("forward", "aten::addmm", 0.125, input_shapes="[[1000,90]]")]
REPEATS = [{"layer": "body", "num_rows": 100, "num_repeated": 50}, {"layer": "a", "num_rows": 100, "num_repeated": 99}]
BODY = [operator("forward", "aten::mm", time_s, layer=name) for name, time_s in
        (("body.0", 0.125), ("body", 0.125), ("bodywork", 0.5), ("a", 0.01))]
DOUBLES = [operator("forward", "aten::mm", 0.0625, dtype="float64", layer="head"),
           operator("backward", "aten::mul", 0.125, dtype="float64"),
           operator("forward", "aten::add", 0.5, dtype="float32")]
COMPILED = {"compile_s": [0.2] * 100}
GROWING = [f"[[1,{10 + number}]]" if number <= 14 else "[[1,5]]" for number in range(20)]
GROWING_ROWS = {"index": range(20), "position": range(20), "wall_s": [1.0] + [0.5, 1.5] * 7 + [9.0] * 5,
                "input_shapes": GROWING}
GENERATING = {"iterations": case_of().iterations.iloc[:20].assign(**GROWING_ROWS)}
TRAINS = {"case": ["t"] * 2 + ["train.py-train"] * 5 + ["t"] * 3, "index": range(10),
          "wall_s": [1.0, 1, 2, 2, 2, 50, 2, 2, 2, 2],  # the iteration of a pass counts as the median one
          "kind": ["timed"] * 5 + ["pass"] + ["timed"] * 4}
EVALUATED = {"tables": {"program_iterations": pd.DataFrame(TRAINS)}, "facts": {"trainings": {"t"}}, "mode": "infer"}
PARTS = pd.DataFrame({"case": "train.py-train", "iteration": [0, 1, 0, 1, 0], "phase": ["forward"] * 4 + ["backward"],
                      "part": ["vae.encode", "vae", "vae2", None, "vae"], "host_s": [0.25, 0.25, 9.0, 9.0, 9.0]})
INDEX = np.arange(100)
GROWN = 2**30 + MIB * INDEX
HELD = {"shape": [2, 3], "num_tensors": 10, "bytes": 20 * MIB, "has_graph": True, "variable": "outputs",
        "function": "F", "file": "train.py", "line": 12}
DATA = {"variable": "x", "shape": [8, 2], "dtype": "float32", "narrower": "float16", "num_tensors": 1,
        "bytes": 64 * MIB, "file": "a.py", "line": 7}
BOTH_GROW = {"forward_s": 0.2 + 0.006 * INDEX, "backward_s": 0.2 + 0.004 * INDEX}  # more than the loss, if it counts
EVALUATIONS = {"mode": "infer", "facts": {"trainings": {"t"}}, "rows": {
    "index": INDEX + INDEX // 5, "rss_bytes": [MIB * size for size in (76, 82, 88, 94, 100)] * 2 + [np.nan] * 90}}
FROZEN = {"name": "vae", "num_frozen_rows": 1000, "num_repeated_rows": 300}


@pytest.mark.parametrize(("mode", "num_found"), [("decode", 1), ("prefill", 0)])
def test_all_cases_of_a_generation_are_one_evaluation(mode: str, num_found: int) -> None:
    own, other = "train.py-train", "train.py-other"
    prefill, decode = (other, own) if mode == "decode" else (own, other)
    names = ["t"] * 2 + [prefill] + [decode] * 4 + ["t"] * 3
    facts = EVALUATED | {"tables": {"program_iterations": pd.DataFrame(TRAINS | {"case": names})}, "mode": mode}
    findings = list(found("evaluation", case_of(**facts)))
    assert [each.cause for each in findings] == num_found * ["evaluation takes 10.0 % of the loop"]


@pytest.mark.parametrize(("name", "facts", "saving", "texts", "fields"), [
    ("attention_weights", {"attention_weights": [layer(time_s=0.0625), layer("b", 0.0625)], "frames": {"forward": [
        frame("net.py:8", 9, library="torch.matmul"), frame("net.py:9", 5, library=f"x, {ATTENTION}")]}},
     (3.75, 26.25), "a and 1 more layers|take 125 ms|37.5 % of", {"place": "net.py:9", "layer": "a"}),
    ("attention_weights", {"attention_weights": [layer(time_s=9.0)]}, (7.5, 52.5), "take 250 ms|75.0 % of|of a returns",
     {"place": None}),
    ("frozen_outputs", {"settings": {"models": [FROZEN | {"num_repeated_rows": 299}, FROZEN]}, "tables": {
        "iterations": PARTS}, "frames": {"forward": [frame("net.py:9", 1, "x = vae(y)")]}},
     (5.25, 7.5), "30.0 % of 1,000 rows", {"place": "net.py:9", "layer": "vae", "phase": "forward"}),
    ("padding", {"padding": [{"name": "ids", "padding_frac": 0.25}, {"name": "mask", "padding_frac": 0.5}]},
     (15, 37.5), "50.0 % of mask|50.0 % of the elements of mask|!collate_fn",
     {"place": None, "setting": "padding of mask"}),
    ("padding", {"padding": [{"name": "mask", "padding_frac": 0.5}], "operators": [
        operator("forward", "aten::sdpa", 0.1, operator_type="attention")]}, (15, 56.25), "50.0 % of mask", {}),
    ("padding", {"padding": [{"name": "mask", "padding_frac": 0.5}], "settings": {"loaders": [
        WORKERS | {"num_batches": 4, "line": 4}, WORKERS]}}, (15, 37.5), "collate_fn of the DataLoader",
     {"place": "train.py:5"}),
    ("recomputation", {"recompute": RECOMPUTE, "machine": {"memory_bytes": 1024, "memory_limit_bytes": 1000},
                       "passes": {"memory": {"status": "ok", "process_peak_bytes": 700}}}, (15, 28.75),
     "forward of a, b, c a second|250 ms, 25.0 %|700 B of 1,000 B", {"confidence": "high", "layer": "a"}),
    ("recomputation", {"recompute": RECOMPUTE | {"time_s": 2.0, "layers": []}, "machine": {"memory_bytes": 1000},
                       "passes": {"memory": {"status": "ok", "process_peak_bytes": 701}}}, (30, 57.5),
     "forward a second|500 ms", {"confidence": "low", "layer": None}),
    ("recomputation", {"recompute": RECOMPUTE, "machine": {"memory_bytes": 1000}, "device": "cuda", "passes": {
        "memory": {"status": "ok", "process_peak_bytes": 999}}}, (15, 28.75), "250 ms|!999 B", {"confidence": "high"}),
    ("repeated_rows", {"repeated_rows": REPEATS, "operators": BODY}, (6.25, 12.5), "50.0 % of the 100 rows",
     {"layer": "body"}),
    ("repeated_rows", {"repeated_rows": REPEATS[:1]}, (6.25, 12.5), "call body once", {"layer": "body"}),
    ("small_calls", {"layer_calls": [layer(num_calls=19), layer(time_s=0.001, num_calls=50), layer("b", 0.125, 500)]},
     (15, 35.625), "layer b (Linear) is called 500 times|125 ms of forward, 250 µs each|37.5 %|torch.stack",
     {"confidence": "medium", "layer": "b"}),
    ("small_calls", {"layer_calls": [layer(time_s=9.0, num_calls=20, kind="GRUCell")]}, (30, 71.25),
     "20 times|9.00 s of forward, 450 ms each|75.0 %|use nn.GRU,", {"confidence": "high"}),
    ("small_calls", {"layer_calls": [layer(time_s=0.03, num_calls=100, kind="ParametrizationList")]}, (3.6, 8.55),
     "parametrize.cached()|300 µs each", {}),
    ("small_calls", {"settings": {"num_backwards": 10_000}}, (20, 48.5), 
     "backward 100 times|take 500 ms, 5.00 ms each: 50.0 %", {"phase": "backward"}),
    ("small_calls", {"settings": {"num_backwards": 1600}, "phases": {"backward": 0.08}}, (3.2, 7.76),
     "16 backwards", {}),
    ("unused_gradients", {"unused_gradients": [{"model": "a", "optimizer": "b", "time_s": time_s, "backward_s": 1.0}
                                               for time_s in (0.0, 0.25)]}, (6.25, 18.75), "take 125 ms, 12.5 %", {}),
    ("unused_gradients", {"unused_gradients": [{"model": "a", "optimizer": "b", "time_s": 0.25, "backward_s": 0.25}]},
     (12.5, 37.5), "backward for b|gradients of a|250 ms", {"layer": "a"}),
    ("unused_gradients", {"unused_gradients": [{"model": "a", "optimizer": "b", "time_s": 0.25, "backward_s": 0.0}]},
     (12.5, 37.5), "250 ms", {}),
    ("unused_outputs", {"unused_outputs": [LOGITS, LOGITS | {"layer": "x"}], "operators": HEAD,
                        "phases": PHASE_S | {"loss": 0.0625}}, (0.7 * 9.375, 9.375 + 0.75 * 12.5),
     "75.0 % of the 1,000 outputs of head|and the loss for these", {"layer": "head"}),
    ("anomaly_detection", {"settings": {"anomaly_frac": 0.5}, "operators": NAN}, (6.25, 0.5 * (12.5 + 3)),
     "50.0 % of the backwards|takes 125 ms of each", {}),
    ("anomaly_detection", {"settings": {"anomaly_frac": 1.0}, "operators": NAN[1:]}, (0.3, 3), "100.0 %|!takes", {}),
    ("anomaly_detection", {"settings": {"anomaly_frac": 1.0}, "operators": NAN[2:]}, (6.375, 63.75), "100.0 %", {}),
    ("contention", {"settings": CORES, "facts": {"disturbance": Disturbance(1.5, 4, 0.25)}}, (26.25, 81.375),
     "with 4 threads|1.5 of 4 cores|set_num_threads(2)|NUM_THREADS=2|took 25.0 %", {"setting": "num_threads=4"}),
    ("contention", {"settings": CORES, "facts": {"disturbance": Disturbance(9.5, 4, 0.5)}}, (26.25, 81.375),
     "set_num_threads(1)", {}),
    ("denormals", {"denormals": [{"denormal_frac": 0.5, "num_elements": size, "layer": name}
                                 for name, size in (("a", 10), ("b", 30), ("c", 20))]}, (22.5, 72.75),
     "50.0 % of the weights of b and 2 more layers|forward and backward take 750 ms, 75.0 %|!fused",
     {"layer": "b", "phase": "forward"}),
    ("denormals", {"denormals": [{"denormal_frac": frac, "num_elements": 10, "optimizer": "o", "state": state}
                                 for state, frac in (("s", 0.09), ("t", 0.1))]}, (3.75, 12.125),
     "10.0 % of o's t are|update takes 125 ms|fused=True", {"layer": None, "phase": "update"}),
    ("dense_embedding", {"embeddings": [EMBEDDING], "num_parameters": 4 * 10**9}, (31.25, 62.5),
     "100 of 1,000 rows (10.0 %)|3.73 GiB", {"layer": "words"}),
    ("dense_embedding", {"embeddings": [EMBEDDING | {"gradient_bytes": 4e7}], "num_parameters": 10**9}, (0.8, 24),
     "38.1 MiB", {}),
    ("dense_embedding", {"embeddings": [EMBEDDING | {"gradient_bytes": 4e7}]}, (31.25, 62.5), "words", {}),
    ("dense_embedding", {"embeddings": [EMBEDDING | {"gradient_bytes": 4e7}], "num_parameters": 2 * 10**7},
     (0.5 * 31.25, 31.25), "words", {}),
    ("float64", {"operators": DOUBLES, "settings": {"models": [{"name": "m", "dtypes": {"float64": 2000}}, {}]}},
     (5.625, 14.0625), "take 188 ms, 18.8 %|longest is aten::mul|m has 2,000 float64",
     {"layer": None, "phase": "backward", "operator": "aten::mul"}),
    *[("half_precision", {"operators": [
        operator("forward", "aten::addmm", 0.25, dtype=dtype, layer="head", operator_type="GEMM", flop=0.7e9),
        operator("backward", "aten::mm", 0.125, dtype=dtype, operator_type="GEMM", flop=3e9),
        operator("backward", "aten::mm", 0.125, dtype="float32", operator_type="GEMM", flop=1e9)]}, (18.75, 37.5),
       "take 375 ms, 37.5 %|addmm in head computes 2.80 GFLOP/s|dtype=torch.float32", {
           "layer": "head", "setting": f"dtype={dtype}"}) for dtype in ("float16", "bfloat16")],
    ("float64", {"operators": DOUBLES[::2]}, (1.875, 4.6875), "aten::mm in head", {"layer": "head"}),
    ("hooks", {"settings": {"models": [{"name": "a", "num_hooks_first": 5, "num_hooks_last": 29},
                                       {"name": "m", "num_hooks_first": 5, "num_hooks_last": 30}]}}, (0, 12.5),
     "5 hooks at its first call, 30 at", {"layer": "m"}),
    ("hooks", {"settings": {"models": [{"num_hooks_last": 19}, {"name": "m", "num_hooks_last": 20}]},
               "facts": {"num_iterations": 40}}, (0, 5), "0 hooks at its first call, 20 at", {}),
    ("optimizer_loop", {"settings": {"optimizers": [OPTIMIZER | {"num_tensors": 20}, OPTIMIZER, OPTIMIZER | {
        "class": "RMSprop", "num_tensors": 9000}]}}, (5, 11.625), "3,000 tensors one by one|125 ms, 12.5 %|45,000",
     {"setting": "Adam(fused=False)"}),
    ("optimizer_loop", {"settings": {"optimizers": [OPTIMIZER | {"class": "SGD"}]}}, (0.6, 3.6),
     "pass fused=True to SGD", {}),
    ("optimizer_loop", {"settings": {"optimizers": [OPTIMIZER | {"class": "SGD", "num_tensors": 100_000}]}}, (10, 10),
     "100,000 tensors", {}),
    ("optimizer_loop", {"settings": {"optimizers": [OPTIMIZER | {
        "implementation": "foreach", "num_groups": groups, "num_tensors": tensors} for groups, tensors in
        ((15, 15), (16, 65), (16, 64))]}}, (3.125, 11.25), "16 parameter groups for 64|125 ms", {}),
    ("threads", {"settings": {"threads": {"intra_op": 4, "num_usable_cores": 2}}}, (8.75, 43.75),
     "4 threads on 2 cores|set_num_threads(2)|NUM_THREADS=2|is 4;", {"setting": "num_threads=4"}),
    ("threads", {"settings": {"threads": {"intra_op": 4, "num_usable_cores": 1}}}, (8.75, 65.625), "on 1 core:", {}),
    ("data_loading", {"phases": HALF, "settings": CORES}, (10, 47.5), "500 ms, 50.0 %|0 loader workers|num_workers=1,",
     {"confidence": "medium", "setting": None, "phase": "data", "place": None}),
    ("data_loading", {"phases": QUARTERS, "settings": TWO_CORES | {"loaders": [{}]}}, (10, 71.25), "num_workers=2,",
     {"setting": "num_workers=0"}),
    ("data_loading", {"phases": QUARTERS, "settings": CORES | {"loaders": [{"in_memory": True}]}}, (30, 71.25),
     "images[indices]", {}),
    ("data_loading", {"phases": QUARTERS, "settings": CORES, "frames": {"data": [
        frame("net.py:9", 60, "open(path)", waiting_frac=0.51)]}}, (12.5, 73.5),
     "60.0 % of it at net.py:9 in work|num_workers=3,|shorten the wait at net.py:9|work waits",
     {"confidence": "high", "place": "net.py:9"}),
    ("data_loading", {"phases": {"data": 1.0}, "settings": CORES, "frames": {"data": [
        frame("net.py:9", 60, "open(path)", waiting_frac=0.5)]}}, (15, 95),
     "num_workers=4,|work reads files|net.py:9: read", {"confidence": "high"}),
    ("data_loading", {"phases": {"data": 1.0}, "settings": CORES, "frames": {"data": [
        frame("net.py:9", 60, waiting_frac=1.0)]}}, (0, 98), "num_workers=16,", {}),
    ("data_loading", {"phases": QUARTERS, "settings": CORES | {"loaders": [{"wait_s": 9.0}, WORKERS | {
        "wait_s": 10.0}]}}, (15, 75), "with 2 loader workers|num_workers=4 to",
     {"confidence": "high", "place": "train.py:5"}),
    ("data_loading", {"phases": {"data": 0.25, "forward": 0.75}, "settings": CORES | {"loaders": [WORKERS | {
        "num_workers": 1}]}}, (5, 25), "with 1 loader worker\n|num_workers=2 to", {}),
    ("data_loading", {"phases": QUARTERS, "settings": TWO_CORES | {"loaders": [WORKERS]}}, (15, 75),
     "2 workers use all 2 cores", {}),
    ("loader_workers", {"phases": {"data": 0.25, "forward": 0.75}, "settings": TWO_CORES | {"loaders": [
        {}, WORKERS | {"num_batches": 0}, WORKERS | {"worker_fetch_s": None}, WORKERS]}}, (14, 27),
     "2 workers cost|waits 250 ms|in 50.0 ms|cheap to make|!images",
     {"setting": "num_workers=2", "place": "train.py:5"}),
    ("loader_workers", {"phases": {"data": 0.25, "forward": 0.75}, "settings": CORES | {"loaders": [WORKERS]}},
     (14, 22), "2 workers", {}),
    ("loader_workers", {"phases": {"data": 0.25, "forward": 0.75}, "device": "cuda", "settings": TWO_CORES | {
        "loaders": [WORKERS | {"in_memory": True}]}}, (14, 22 + 37.5), "images[indices]|already in memory", {}),
    ("loader_workers", {"phases": {"data": 0.25, "forward": 0.75}, "device": "cuda", "settings": TWO_CORES | {
        "loaders": [WORKERS | {"in_memory": True, "worker_fetch_s": 25.0}]}}, (7.5, 10 + 37.5), "in 250 ms", {}),
    ("compilation", {"rows": COMPILED, "settings": {"compile": {
        "num_recompilations": 3, "num_graphs": 1, "num_graph_breaks": 2, "events": [
            {"kind": "recompilation", "reason": reason} for reason in ("x == 1", "self.a.b == 3")]}}},
     (7.5, 20), "20.0 s; 1 graph, 2 graph breaks, 3 recomp|when self.a.b changes|recompilation: self.a.b == 3",
     {"confidence": "high", "place": None}),
    ("compilation", {"rows": COMPILED, "settings": {"compile": {"num_recompilations": 3, "events": [
        {"kind": "recompilation", "reason": "x", "file": "net.py", "line": 4}]}}},
     (7.5, 20), "0 graphs, 0 graph|time: it recompiles|at net.py:4: x|dynamic=True", {"place": "net.py:4"}),
    ("compilation", {"rows": COMPILED, "settings": {"compile": {"num_graph_breaks": 2, "num_graphs": 9, "events": [
        {"kind": "graph break", "reason": "print", "file": "net.py", "line": 5, "text": "print(x)"}]}}}, (0, 20),
     "9 graphs, 2|graph break at net.py:5: print|remove the calls", {"confidence": "medium", "place": "net.py:5"}),
    ("compilation", {"rows": COMPILED}, (0, 20), "program's time|!recompiles|CACHE_DIR", {"confidence": "medium"}),
    *[("epoch_start", {"facts": group("epoch_start", [0, 20, 40, 60, 80], phase=phase), "frames": SLOW_LINE,
                       "settings": {"loaders": [LOADER]}}, (6.4, 10), f"5 epochs take 2.50 s, the others 500 ms|{text}",
       {"confidence": "high", "place": place, "phase": phase})
      for persistent in ({"persistent_workers": False},) for LOADER, phase, text, place in (
          (WORKERS | persistent | {"num_iterators": 2}, "data", "its 2 worker processes", "train.py:5"),
          (WORKERS | persistent | {"num_iterators": 2}, "forward", "are at net.py:9 in work", "net.py:9"),
          (WORKERS | persistent | {"num_iterators": 1}, "data", "in data; most of their samples are", "net.py:9"),
          (WORKERS | persistent | {"num_iterators": 2, "num_workers": 0}, "data", "!worker", "net.py:9"),
          (WORKERS | {"persistent_workers": True, "num_iterators": 2}, "data", "!worker", "net.py:9"))],
    ("epoch_start", {"facts": group("epoch_start", [0, 20], phase="update"), "frames": SLOW_LINE}, (4, 10),
     "2 epochs|!samples", {"confidence": "medium", "place": None}),
    ("evaluation", EVALUATED | {"frames": {"other": [frame("net.py:9", 9)], "forward": [frame("net.py:8", 9)]}}, (4, 9),
     "takes 10.0 % of the loop|100 evaluation batches take 10.0 s of 100 s", {"place": "net.py:9"}),
    ("garbage_collection", {"rows": {"kind": ["warm-up"] * 50 + ["timed"] * 50, "gc_s": [0.125] * 82 + [np.nan] * 18},
                            "frames": {"other": [frame("a.py:1", 9), frame("net.py:9", 8, "gc.collect()")]}},
     (5.6, 8), "take 4.00 s, 8.0 % of|32 of 50 iterations", {"place": "net.py:9", "explains_line": True}),
    ("long_inputs", {"facts": group("long_inputs", [1, 2, 3, 4])}, (3, 10),
     "4 of 100 iterations (4.0 %)|take 2.50 s, the others 500 ms", {"phase": "forward"}),
    ("new_input_shapes", {"facts": group("new_input_shapes", [0, *range(40, 47)]), "frames": SLOW_LINE, "rows": {
        "input_shapes": ["[[1]]", "[[2]]", None, None] * 25}}, (5, 10),
     "2 different shapes; the 8 iter|40, 41, 42, 43, 44) take 2.50 s|at net.py:9 in work", {"place": "net.py:9"}),
    ("periodic_work", {"facts": group("periodic_work", list(range(9, 100, 10)), period=10), "frames": SLOW_LINE},
     (5, 10), "every 10th of 100 iterations takes 2.50 s instead of 500 ms|is 10.0 %|reads files at net.py:9|"
     "less often than every 10 iterations; or read", {"confidence": "high", "place": "net.py:9"}),
    ("periodic_work", {"facts": group("periodic_work", [9, 19], period=22)}, (5, 10),
     "22nd iteration does extra work in forward|!than every", {"confidence": "medium", "place": None}),
    ("repeated_inputs", {"facts": GENERATING, "mode": "infer", "frames": {"forward": [frame("net.py:9", 9)]}},
     (0.5 * 0.5 * 70, 0.95 * 70), "70.0 % of 20 inferences|take 500 ms, the mean is 1.00 s", {"place": "net.py:9"}),
    ("slow_iterations", {"facts": group("slow_iterations", [3, 9])}, (5, 10),
     "2 of 100 iterations take 2.50 s, the others 500 ms: 10.0 %|in forward", {"confidence": "low", "place": None}),
    ("slow_iterations", {"facts": group("slow_iterations", [3, 9], 3.0), "frames": SLOW_LINE}, (1.5, 3),
     "work reads files (net.py:9)|3.0 %", {"confidence": "medium", "place": "net.py:9"}),
    ("slow_iterations", {"facts": group("slow_iterations", [3, 9]), "frames": {"slow": [
        frame("net.py:9", 99, library="torch.nn.modules.conv.Conv2d.forward")]}}, (5, 10), "without a pattern", {}),
    *[("slow_iterations", {"facts": group("slow_iterations", [3, 9]), "frames": SLOW_LINE | {
        "forward": [frame(place, 9, SLOW_LINE["slow"][0]["text"]), frame("net.py:7", 5)]}}, (5, 10), text, {})
      for place, text in (("net.py:9", "without a pattern|!reads"), ("net.py:8", "reads files (net.py:9)"))],
    ("time_trend", {"rows": {"forward_s": 0.2 + 0.004 * INDEX, "update_s": 0.1 + 0.002 * INDEX}}, (10, 33),
     "forward grows by 4.00 ms (4.00 ms to 4.00 ms) an|from 200 ms to 600 ms over 100 iterations; so do update",
     {"phase": "forward", "layer": None}),
    ("time_trend", {"phases": {"loss": 0.021, "other": 0.1}, "rows": BOTH_GROW}, (15, 55),
     "from 200 ms to 800 ms over 100 iterations; so do backward", {}),
    *[("time_trend", {"rows": {f"{phase}_s": 0.5 + 0.01 * INDEX}, "frames": {phase: [frame("net.py:9", 9)]}}, (25, 55),
       f"{phase} gets longer with every iteration: {text}|!so do", {"place": "net.py:9"}) for phase, text in (
           ("forward", "it reads something that grows"), ("backward", "it goes through"), ("data", "each fetch"),
           ("update", "the optimizer gets"), ("loss", "iterations read"))],
    *[("time_trend", {"rows": {f"{phase}_s": 0.5 + 0.01 * INDEX}, "settings": {"models": [
        {"name": "a", **first, f"num_{what}_last": 12}, {"name": "m", **first, f"num_{what}_last": last}]}}, (25, 55),
       text, {"layer": grown}) for phase, what, first, last, text, grown in (
           ("data", "hooks", {"num_hooks_first": 1}, 13, "m had 1 hooks at its first call and has 13|register", "m"),
           ("update", "modules", {"num_modules_first": 1}, 11, "a had 1 modules|has 12 at the end|wrapping", "a"),
           ("forward", "modules", {"num_modules_first": 2}, 12, "!modules|!hooks", None),
           ("data", "modules", {"num_modules_first": 1}, 13, "!modules", None))],
    ("memory_growth", {"rows": {"rss_bytes": GROWN}}, None,
     "1.00 MiB an iteration over 97 iterations, by 97.0 MiB in all, to 1.10 GiB|loss.item()|process",
     {"memory_bytes": 97 * MIB, "memory_frac": 97 / 1123, "confidence": "medium", "place": None}),
    ("memory_growth", {"rows": {"rss_bytes": GROWN + 200 * MIB * (INDEX >= 50), "position": INDEX + 9 * (INDEX >= 50)},
                       "mode": "infer"}, None,
     "over 97 iterations, by 9|MiB in all, to 1.29 GiB|output[:, 0].clone()", {}),
    *[("memory_growth", {"facts": {"iterations": case_of(rows={"rss_bytes": 1e8 + 9 * MIB * INDEX}).iterations[:num]}},
       None, f"over {num_used} iterations", {}) for num, num_used in ((12, 10), (17, 15), (18, 15))],
    ("memory_growth", {"rows": {"workers_bytes": np.where(INDEX % 20 == 4, GROWN, np.nan)}, "settings": {"loaders": [
        {}, WORKERS]}}, None, "loader's workers|one NumPy array", {"confidence": "high", "place": "train.py:5"}),
    ("memory_growth", {"rows": {"rss_bytes": GROWN}, "iterations": [3, 39], "held_tensors": [
        HELD | {"variable": None, "bytes": 90 * MIB}, HELD, HELD | {"num_tensors": 9, "bytes": 80 * MIB}]}, None,
     "[2, 3] accumulate in outputs, with|after 40 iterations, 10 tensors of shape [2, 3] held 20.0 MiB (grad_fn F)",
     {"confidence": "high", "place": "train.py:12"}),
    *[("memory_growth", {"rows": {"rss_bytes": GROWN}, "iterations": [39], "held_graphs": [
        {"variable": "h", "num_nodes": nodes, "age_frac": age_frac, "file": "a.py", "line": 3}]}, None, text,
       {"place": place}) for nodes, age_frac, text, place in (
           (400, 1.0, "!h keeps", None), (401, 1.0, "h keeps|after 40|had 401 nodes", "a.py:3"),
           (401, 0.25, "h keeps", "a.py:3"), (900, 0.24, "!h keeps", None), (900, None, "!h keeps", None))],
    *[("memory_growth", {"rows": {"rss_bytes": GROWN}, "iterations": [7], "held_graphs": [
        {"variable": "h", "num_nodes": 168, "age_frac": age_frac}]}, None, text, {})
      for age_frac, text in ((0.49, "!h keeps"), (0.5, "h keeps"))],
    ("memory_growth", EVALUATIONS | {"frames": {"forward": [frame("net.py:9", 1, "x.append(y)")]}}, None,
     "by 6.00 MiB a batch|in 2 evaluations, it grows by 24.0 MiB each, to 100 MiB",
     {"memory_bytes": 24 * MIB, "memory_frac": 0.24, "place": "net.py:9"}),
    ("inference_graph", {"mode": "infer", "tables": {"program_iterations": pd.DataFrame({
        "case": ["train.py-train"] * 3 + ["t"] * 2 + ["train.py-train"] * 3, "start_s": range(8),
        "rss_bytes": [MIB * size for size in (100, 110, 120, 300, 400, 150, 160, 200)]})}, "settings": {"models": [
            {"name": "a", "inference_with_grad": 2}, {"name": "m", "inference_with_grad": 3}, {}]},
                         "frames": {"other": [frame("net.py:9", 9)]}}, (0, 7.5),
     "m was called 3 times|grew by 50.0 MiB", {"memory_bytes": 50 * MIB, "memory_frac": 0.125, "place": "net.py:9"}),
    ("overlapping_windows", {"held_data": [DATA | {"overlaps": True}], "rows": {"rss_bytes": 320.0 * MIB}}, None,
     "series 2 times|[index:index + 2]|unfold(0, 2, 1)|takes 64.0 MiB", {"memory_bytes": 32 * MIB, "memory_frac": 0.1}),
    ("wide_data", {"held_data": [DATA | {"overlaps": True}, DATA | {"narrower": "x"}, DATA], "rows": {
        "rss_bytes": 16.0 * MIB}}, None, "x, of shape [8, 2], takes 64.0 MiB|at fit float16|torch.float32)|!times|! / ",
     {"memory_bytes": 32 * MIB, "memory_frac": 1.0, "place": "a.py:7"}),
    ("wide_data", {"held_data": [DATA | {"dtype": "float64", "narrower": "uint8", "scale": 2, "num_tensors": 2}]},
     None, "x, 2 of shape|at, times 2, fit uint8|torch.float64) / 2", {"memory_bytes": 56 * MIB}),
    ("line", {"frames": {"forward": [frame("net.py:9", 50, "sleep(1)"), frame("net.py:8", 10, "y = x + 1"),
                                     frame("net.py:7", 9, "z = f(x)", "net.f"), frame("b.py:8", 10, "y = x + 1")]},
              "rows": {"forward_s": [0.5] * 99 + [90.0], "wall_s": [1.0] * 99 + [90.0]}}, (5, 25 + 2.5 + 0.6 * 50),
     "line 9 in work|takes 125 ms, 12.5 % of a typical iteration, in forward: 50 samples at net.py:9|!more",
     {"phase": "forward", "confidence": "medium"}),
    *[("line", {"frames": {"other": [frame(f"net.py:{number}", 30 - number, waiting_frac=0.4, function="<module>")
                                     for number in range(count)]}}, (0.4 * spent_s, spent_s), text,
       {"confidence": "high"})
      for count, spent_s, text in ((1, 3.75, "line 0 in net.py computes|30 samples at net.py:0|!more"), (
          2, 7.375, "59 samples at net.py:0 and 1 more line\n"), (3, 10.875, "87 samples|and 2 more lines"))],
    ("line", {"frames": {"other": [frame("net.py:9", 30, function="f"), frame("net.py:8", 20, function="g"),
                                   frame("net.py:7", 20, function="f.<locals>.<lambda>")]}}, (0.4 * 6.25, 6.25),
     "50 samples at net.py:9 and 1 more line\n", {}),
    *[("line", {"phases": {"loss": 0.25, "backward": 0.75}, "frames": {"loss": [frame("net.py:9", 50, "x = y")]},
                "operators": operators}, (5, 12.5 + more_s), "125 ms", {}) for operators, more_s in (
          ([], 37.5), ([operator("backward", "aten::mm", 0.5, layer="a"), operator("backward", "aten::mm", 0.1),
                        operator("forward", "aten::mm", 0.125, layer="a")], 25))],
    ("line", {"frames": {"between": [frame("net.py:9", 50, "x.save(y)")]}, "facts": {
        "program": ProgramFacts(between_s=6.0, after_s=4.0)}}, (2, 5), "5.00 s, 5.0 % of the program|50 samples",
     {"phase": None}),
    ("line", {"frames": {"update": [frame("net.py:9", 81, "x = y")]}}, (0.4 * 10.125, 10.125), "in update", {}),
])
def test_the_saving_and_the_numbers_of_a_finding(name: str, facts: Row, saving: tuple[float, float] | None, texts: str,
                                                 fields: Row) -> None:
    (finding,) = found(name, case_of(**facts))
    if finding.saving is None:
        assert saving is None or saving[1] < 3
    else:
        assert (finding.saving.low_s, finding.saving.high_s) == pytest.approx(saving)
    written = "\n".join([finding.cause, *finding.evidence, finding.remedy])
    for text in texts.split("|"):
        assert (text.removeprefix("!") in written) != text.startswith("!"), (text, written)
    place = {"place": finding.place and str(finding.place)}
    assert {field: (place | vars(finding) | place)[field] for field in fields} == fields


@pytest.mark.parametrize(("name", "facts"), [
    ("attention_weights", {"attention_weights": [layer()], "phases": {"backward": 1.0}}),
    ("attention_weights", {}),
    ("frozen_outputs", {"settings": {"models": [FROZEN, FROZEN]}, "tables": {"iterations": PARTS}, "mode": "infer"}),
    ("padding", {"padding": [{"name": "mask", "padding_frac": 0.29}]}), ("padding", {}),
    *[("recomputation", {"recompute": RECOMPUTE | change}) for change in ({"time_s": 0.0}, {"backward_s": 0.0})],
    ("repeated_rows", {"repeated_rows": [{"layer": "body", "num_rows": 100, "num_repeated": 30}]}),
    ("small_calls", {"layer_calls": [layer(time_s=0.125, num_calls=416)]}),  # 300.5 µs each
    ("small_calls", {"layer_calls": [layer(num_calls=500)], "phases": {"backward": 1.0}}),
    *[("small_calls", {"settings": {"num_backwards": 1599}, "phases": {"backward": 0.05}} | change)
      for change in ({}, {"settings": {"num_backwards": 1600}, "mode": "infer"},
                     {"settings": {"num_backwards": 1600}, "phases": {"backward": 0.081}})],
    ("unused_outputs", {"unused_outputs": [LOGITS | {"num_used_rows": 701}], "operators": HEAD}),
    ("unused_outputs", {"unused_outputs": [LOGITS], "operators": [operator("forward", "x", 0.13, layer="head")]}),
    ("anomaly_detection", {"settings": {"anomaly_frac": 0.049}, "operators": NAN}),
    *[("contention", {"settings": {"threads": {"intra_op": threads, "num_usable_cores": cores}}, "device": device,
                      "facts": {"disturbance": Disturbance(1.5, 4, lost_frac)}})
      for threads, cores, device, lost_frac in (
          (2, 4, "cpu", 0.5), (5, 4, "cpu", 0.5), (4, 4, "cuda", 0.5), (4, 4, "cpu", 0.24),
          (None, 4, "cpu", 0.5), (4, None, "cpu", 0.5))],
    ("contention", {"settings": CORES}),
    ("denormals", {"denormals": [{"denormal_frac": 1.0, "num_elements": 10, "layer": "a"}], "device": "cuda"}),
    *[("dense_embedding", {"embeddings": [EMBEDDING | change]}) for change in (
        {"num_used_rows": 101}, {"sparse": True})],
    ("float64", {"operators": [operator("forward", "aten::mm", 0.0399, dtype="float64")]}), ("float64", {}),
    *[("half_precision", {"device": device, "operators": [operator(
        "forward", "aten::addmm", 0.25, dtype=dtype, operator_type="GEMM", flop=flop, num_calls=num_calls)]})
      for device, dtype, flop, num_calls in (
          ("cpu", "float16", 0.8e9, 1), ("cpu", "float32", 0.7e9, 1), ("cpu", "float16", 0.7e9, 2501),
          ("cpu", "float16", None, 1), ("cuda:0", "float16", 0.7e9, 1))],
    *[("optimizer_loop", {"settings": {"optimizers": [OPTIMIZER | change]}, "mode": mode}) for change, mode in
      (({"class": "RMSprop"}, "train"), ({"implementation": "fused"}, "train"), ({}, "infer"),
       ({"num_groups": 3000, "class": "RMSprop"}, "train"))],
    *[("threads", {"settings": {"threads": {"intra_op": threads, "num_usable_cores": cores}}, "device": device})
      for threads, cores, device in ((2, 2, "cpu"), (4, 2, "cuda"), (4, None, "cpu"), (None, 2, "cpu"))],
    *[("loader_workers", {"phases": {"data": 0.25, "forward": 0.75}, "settings": CORES | {"loaders": [
        WORKERS | change]}}) for change in ({"worker_fetch_s": 25.0}, {"num_workers": 0}, {"num_batches": None})],
    ("new_input_shapes", {"facts": group("new_input_shapes", [0, 40])}),
    ("garbage_collection", {"rows": {"gc_s": [0.9, 0.9] + [np.nan] * 98}}),
    *[(name, {}) for name in ("epoch_start", "garbage_collection", "long_inputs", "new_input_shapes", "periodic_work",
                              "slow_iterations", "time_trend")],
    ("evaluation", EVALUATED | {"facts": {"trainings": {"t"}, "loop_s": 101.0}}),
    ("evaluation", EVALUATED | {"facts": {"trainings": set[str]()}}), ("evaluation", EVALUATED | {"mode": "train"}),
    ("evaluation", EVALUATED | {"tables": {"program_iterations": pd.DataFrame(  # before each fourth of the training's
        TRAINS | {"case": ["t"] + ["train.py-train"] * 6 + ["t"] * 3, "wall_s": 9.0})}}),
    *[("repeated_inputs", {"mode": mode, "facts": {"iterations": GENERATING["iterations"].drop(index=list(drop)).assign(
        **shapes)}}) for mode, drop, shapes in (("train", (), {}), ("infer", (19,), {}), ("infer", (), {
            "input_shapes": [*GROWING[:14], *GROWING[15:], "[[1,5]]"]}))],
    ("slow_iterations", {"facts": group("slow_iterations", [3, 9], 9.9)}),
    ("slow_iterations", {"facts": group("slow_iterations", [3, 9], 2.9), "frames": SLOW_LINE}),
    *[("memory_growth", {"rows": {"rss_bytes": grown}}) for grown in (
        2**30 + MIB * 0.24 * INDEX, 2**30 + 0.5 * MIB * INDEX, GROWN - 1.4 * MIB * (INDEX % 2) * INDEX,
        GROWN - MIB * (INDEX - 76) * (INDEX > 76), np.where(INDEX % 20, np.nan, GROWN))],
    *[("memory_growth", EVALUATIONS | change) for change in (
        {"mode": "train"}, {"facts": {"trainings": set[str]()}}, *({"rows": {"index": INDEX + INDEX // 5, "rss_bytes": [
            MIB * size for size in sizes] + [np.nan] * (100 - len(sizes))}} for sizes in (
                (76, 82, 88, 94, 100), (76, 82, 88, 94, 99.9) * 2, (76, 82, 81, 94, 100) * 2,
                (142, 148, 154, 160, 166) * 2)))],
    *[("inference_graph", {"mode": "infer", "settings": {"models": [{"inference_with_grad": number}]}})
      for number in (1, None)],
    *[(name, {"held_data": [DATA | {"overlaps": name != "wide_data"} | change], "rows": {"rss_bytes": rss}})
      for name in ("wide_data", "overlapping_windows") for change, rss in (
          ({"bytes": 64 * MIB - 2}, 320.0 * MIB), ({}, 321.0 * MIB))],
    *[("time_trend", {"rows": rows, "phases": PHASE_S | {"loss": 0.02}}) for rows in (
        {"forward_s": 1.0 + 0.0049 * INDEX}, {"forward_s": 0.01 + 0.00029 * INDEX},
        {"forward_s": 0.2 + 0.3 * (INDEX >= 40) + 1e-4 * INDEX})],  # two levels, such as of a slower machine
    ("time_trend", {"phases": {"loss": 0.02, "other": 0.1}, "rows": BOTH_GROW}),
    *[("line", {"frames": {phase: [frame("net.py:9", num_samples, text, library)]}})
      for phase, num_samples, text, library in (
          ("update", 80, "x = y", None), ("update", 99, "x = y", "torch.x"), ("forward", 99, "x = y", None),
          ("other", 4, "x = y", None), ("other", 23, "x = y", None), ("loss", 99, "x = y", "torch.x"))],
])
def test_no_finding_below_a_threshold_or_without_a_cause(name: str, facts: Row) -> None:
    assert found(name, case_of(**facts)) == []


@pytest.mark.parametrize(("text", "does", "remedy"), [
    ("x = np.array(rows)", "value by value", "from_numpy"), ("torch.save(x, path)", "saves", "less often"),
    ("x = torch.cat([x, y])", "by copying", "append to a list"), ("x = torch.cat([z, y])", "outside of", "vectorize"),
    ("m = torch.tril(y)", "creates", "register_buffer"), ("y = deepcopy(x)", "deep copies", "copy_"),
    ("y = x.item()", "single values", "every 50"), ("y.get()", "waits", "background"),
    ("print(y)", "a log", "less often"), ("np.load(path)", "reads files", "workers"),
    ("Image.open(io.BytesIO(data)).convert(mode)", "decodes images", "keep the arrays"),
    ("gc.collect()", "free memory", "remove the call"),
    ("for x in y:", "a Python loop", "whole tensors"), ("shuffle(x)", "shuffles", "randperm"),
    ("x.sort()", "sorts", "once")])
def test_what_a_line_does(text: str, does: str, remedy: str) -> None:
    (line,) = case_of(frames={"other": [frame("net.py:9", 9, text)]}).lines("other")
    assert does in advice_for(line).does
    assert remedy in advice_for(line).remedy
    (line,) = case_of(frames={"other": [frame("net.py:9", 9, library=text)]}).lines("other")
    assert (does in advice_for(line).does) != (does == "outside of")


def test_sampled_lines() -> None:
    case = case_of(frames={"other": [
        frame("a.py:1", 3, library="m.f", waiting_frac=1.0), frame("a.py:1", 1, library="m.g", waiting_frac=0.5),
        frame("a.py:1", 2, library="m.h"), frame("b.py:2", 9, in_loop=True), frame("c.py:<3>", 9),
        frame("d.py:4", 9, library="importing torch"), frame("a.py:1", 4, function="g")]})
    first, second, third = case.all_lines("other")
    assert (str(first.place), first.num_samples, first.share_frac, first.in_loop) == ("b.py:2", 9, 0.09, True)
    assert (str(second.place), second.num_samples, second.library) == ("a.py:1", 6, "m.f, m.g")
    assert [advice_for(line).does.partition(" (")[0] for line in (first, second, case_of(frames={"other": [
        frame("a.py:1", 9, library="m.f")]}).lines("other")[0])] == ["computes in a Python loop", "waits", "calls m.f"]
    assert (second.waiting_frac, second.waits, first.waiting_frac, first.waits) == (0.875, True, None, False)
    assert (third.function, len(case.lines("other")), case.all_lines("communication")) == ("g", 2, [])


@pytest.mark.parametrize(("num_samples", "of", "is_enough"), [
    (5, 100, True), (4, 100, False), (4, 10, True), (4, 11, False), (3, 7, True), (2, 5, False)])
def test_lines_with_enough_samples(num_samples: int, of: int, is_enough: bool) -> None:
    case = case_of(passes={"frames": {"status": "ok", "num_samples": of, "frames": [frame("a.py:1", num_samples)]}})
    assert len(case.lines("other")) == is_enough


def test_savings_of_a_case() -> None:
    case = case_of()
    assert case.saving_in_all(-1.0, 3.0, "bound") == Saving(0.0, 3.0, "bound")
    assert case.saving(0.01, 0.5) == Saving(1.0, 50.0)
    assert (case.saving_in_all(1.0, 2.99), case.saving_in_all(1.0, float("inf"))) == (None, None)
    assert (case.takes(0.25), case_of({}, facts={"iteration_s": 0.0}).of_iteration(1.0)) == (
        "250 ms, 25.0 % of a typical iteration", "0.0 % of a typical iteration")
    for phase, num_samples, is_named in (("data", 30, True), ("data", 29, False), ("update", 99, False)):
        slow = SlowGroup([1, 2], 1.0, 0.5, 1.0, phase)
        assert (case_of(frames={"slow": [frame("a.py:1", num_samples)]}).slow_line(slow) is not None) == is_named


@pytest.mark.parametrize(("saving", "memory_frac", "confidence", "weight"), [
    (Saving(1.0, 3.0), 0.0, "high", 0.2), (Saving(1.0, 3.0), 0.3, "medium", 0.16), (Saving(1.0, 3.0), 0.6, "low", 0.09),
    (None, 0.5, "high", 0.25)])
def test_the_weight_of_a_finding(saving: Saving | None, memory_frac: float, confidence: Any, weight: float) -> None:
    finding = Finding("c", "r", saving, ("e",), confidence, 7.0, memory_frac)
    assert finding.weight(10.0) == pytest.approx(weight)
    facts = finding.facts("n", "a", 10.0)
    assert (facts["recoverable_frac"], facts["basis"]) == (([0.1, 0.3], "measured share") if saving else (None, None))
    assert (facts["file"], facts["recoverable_bytes"], facts["evidence"]) == (None, 7.0, ["e"])


@pytest.mark.parametrize("trains", [True, False])
def test_the_time_of_a_program_with_passes(trains: bool) -> None:
    program = {"duration_s": 30.0, "before_s": 4.0, "between_s": 2.0, "after_s": 3.0,
               "own_s": {"start": 0.5, "passes": 1.5}}
    names = ["a-train", "b-train"]
    modes = "train" if trains else "infer", "infer"
    entries = [watched_entry(name[0], mode=mode) | {"passes": {"timing": {"status": "ok", "program": facts}}}
               for name, mode, facts in zip(names, modes, (program, None), strict=True)]
    rows = pd.DataFrame({
        "case": names[:1] * 10 + names[1:] * 5, "index": range(15), "kind": ["warm-up"] + ["timed"] * 13 + ["pass"],
        "wall_s": [3.0] + [1.0] * 9 + [0.5] * 4 + [99.0], "input_shapes": "[[1]]",
        **dict.fromkeys(("compile_s", "gc_s", "first_of_epoch", *(f"{phase}_s" for phase in PHASES)), 0)})
    run = Run(Path("none"), {"cases": entries, "options": {"script": "a.py"}}, _tables={"program_iterations": rows})
    parts = program_time(run).set_index("part")["time_s"].to_dict()
    evaluation_s = 4 * 0.5 + 0.5  # the iteration of a pass counts as a typical one
    rest_s = 30 - 4 - 2 - 3 - 2 - evaluation_s
    computing = {"training": rest_s, "evaluation": evaluation_s} if trains else {"inference": rest_s + evaluation_s}
    assert parts == pytest.approx(
        {"start": 4, "warm-up": 2, "between iterations": 2, "end": 3, "charact": 2} | computing)
    assert [case.num_iterations for case in watched_cases(run)] == [10, 5]
    assert watched_cases(run)[0].loop_s == 30 - 4 - 3
