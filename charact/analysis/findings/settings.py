"""Findings about settings of PyTorch, the optimizer and the tensors."""

import math
from collections.abc import Iterator

from charact.analysis.findings._finding import Finding, Place
from charact.analysis.findings._watched_case import WatchedCase, layer_of
from charact.core.units import quantity, share

_TRACE_S = 150e-6
"""Maximum time (s) to record the Python stack of a forward operator."""


def anomaly_detection(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding if backwards ran under anomaly detection."""
    on_frac = case.settings.anomaly_frac or 0.0
    if on_frac < 0.05:
        return
    operators = case.operators
    checks = operators[operators["operator"].str.contains("isnan|aten::any|aten::all|aten::ne$")
                       & (operators["phase"] == "backward")]
    checks_s = float(checks["time_s"].sum())
    forward = operators[operators["phase"].isin(["forward", "loss"])]
    computing_s = case.time_s("forward", "loss", "backward")
    high_s = min(checks_s + float(forward["num_calls"].sum()) * _TRACE_S, 0.85 * computing_s) or 0.85 * computing_s
    saving = case.saving(on_frac * max(checks_s, 0.1 * high_s), on_frac * high_s, "modelled")
    evidence = [f"{share(on_frac)} of the backwards ran under anomaly detection"]
    if checks_s:
        evidence.append(f"looking for NaN takes {quantity(checks_s, 's')} of each backward")
    yield Finding(
        "autograd's anomaly detection is on: it records a stack trace of each operator and looks for NaN in gradients",
        "remove torch.autograd.set_detect_anomaly(True), or enable it only while you look for a NaN", saving,
        tuple(evidence), phase="backward", setting="detect_anomaly")


_SAVED_BY_FEWER_THREADS = (0.3, 0.93)
"""Minimum and maximum share of the computing time that fewer threads save.

*Source*: two endless loops on 2 cores, PyTorch 2.13: 52 % for a transformer's inference, 91 % for small convolutions.
"""
_SAVED_IF_ASLEEP = (0.0, 0.3)
"""The same for OpenMP's threads that sleep while they wait.

*Source*: one endless loop on 2 cores, PyTorch 2.13, OMP_WAIT_POLICY=PASSIVE: 8 to 12 % for an LSTM's training.
"""


def contention(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding if other programs hold so many of the cores that threads wait for each other."""
    num_threads, num_cores, others = case.num_threads, case.num_cores, case.disturbance
    if not num_threads or not num_cores or others is None or not others.is_unreliable or not case.on_cpu:
        return
    num_free = max(1, math.floor(num_cores - others.others_cores))
    if not num_free < num_threads <= num_cores:
        return
    parallel_s = case.time_s("forward", "loss", "backward", "update")
    environment = case.run.manifest.get("software", {}).get("environment") or {}
    sleeps = environment.get("OMP_WAIT_POLICY") == "PASSIVE"
    low_frac, high_frac = _SAVED_IF_ASLEEP if sleeps else _SAVED_BY_FEWER_THREADS
    saving = case.saving(low_frac * parallel_s, high_frac * parallel_s, "modelled")
    yield Finding(
        f"PyTorch computes with {num_threads} threads, and other programs hold {others.others_cores:.1f} of "
        f"{num_cores} cores: each operator waits for its slowest thread",
        f"call torch.set_num_threads({num_free}), or set OMP_NUM_THREADS={num_free}, while other programs run", saving,
        (f"other programs took {share(others.lost_frac)} of the processor time that this one wanted",),
        "low" if sleeps else "medium",
        phase="forward", setting=f"num_threads={num_threads}")


_DENORMAL_FRAC = 0.1
"""Minimum share of an optimizer's state that is reported."""


def denormals(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding for the optimizer state with most denormal numbers, and one for layers of such weights."""
    if not case.on_cpu:
        return
    rows = sorted(case.inspection.denormals, key=lambda each: -each.denormal_frac * each.num_elements)
    states = [each for each in rows if each.state and each.denormal_frac >= _DENORMAL_FRAC]
    layers = [each for each in rows if each.layer]
    others = f" and {len(layers) - 1} more layers" if len(layers) > 1 else ""
    for facts in states[:1] + layers[:1]:
        layer = None if facts in states else facts.layer
        what = f"{facts.optimizer}'s {facts.state}" if layer is None else f"the weights of {layer}{others}"
        phases = ("update",) if layer is None else ("forward", "backward")
        spent_s = case.time_s(*phases)
        yield Finding(
            f"{share(facts.denormal_frac)} of {what} are denormal numbers (below 1.2e-38), with which processors "
            "compute many times slower",
            "call torch.set_flush_denormal(True) before the loop"
            + ("; or pass fused=True to the optimizer" if layer is None else ""),
            case.saving(0.3 * spent_s, 0.97 * spent_s, "modelled"),
            (f"{' and '.join(phases)} {'takes' if layer is None else 'take'} {case.takes(spent_s)}",),
            phase=phases[0], layer=layer, setting="set_flush_denormal(False)")


_USED_FRAC = 0.1
"""Maximum share of an embedding's rows that an iteration uses."""
_PASSES = (4, 12)
"""Minimum and maximum number of times that backward, zero_grad and an update read or write a dense gradient."""
_BYTES_PER_S = (2e9, 20e9)
"""Minimum and maximum memory bandwidth."""


def dense_embedding(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding for each embedding with a dense gradient of which an iteration uses few rows."""
    for facts in case.inspection.embeddings:
        if facts.sparse or facts.num_used_rows > _USED_FRAC * facts.num_rows:
            continue
        spent_s = case.phase_s["update"] + case.phase_s["backward"]
        size = facts.gradient_bytes
        low_s = min(size * _PASSES[0] / _BYTES_PER_S[1], 0.5 * spent_s)
        share_of_parameters = min(size / 4 / max(case.entry.num_parameters or 0, size / 4, 1), 1.0)
        high_s = max(share_of_parameters * spent_s, min(size * _PASSES[1] / _BYTES_PER_S[0], spent_s))
        saving = case.saving(max(low_s, 0.5 * share_of_parameters * spent_s), high_s, "modelled")
        yield Finding(
            f"the gradient of the embedding {facts.layer} is dense, but nearly all of it is zero",
            "pass sparse=True to nn.Embedding, and use an optimizer for sparse gradients (torch.optim.SparseAdam, or "
            "SGD without momentum)", saving,
            (f"an iteration uses {facts.num_used_rows:,} of {facts.num_rows:,} rows "
             f"({share(facts.num_used_rows / facts.num_rows)}); zero_grad, backward and the update go through "
             f"all {quantity(size, 'B')}",), phase="backward", layer=facts.layer, setting="sparse=False")


def float64(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding if operators with float64 inputs take much of the time, though the parameters are float32."""
    operators = case.operators
    if "dtype" not in operators:
        return
    doubles = operators[operators["dtype"] == "float64"]
    spent_s = float(doubles["time_s"].sum())
    saving = case.saving(0.3 * spent_s, 0.75 * spent_s, "modelled")
    if saving is None:
        return
    longest = doubles.sort_values("time_s", ascending=False).iloc[0]
    layer = layer_of(longest)
    evidence = [f"operators with float64 inputs take {case.takes(spent_s)}; the longest is {longest['operator']}"
                + (f" in {layer}" if layer else "")]
    evidence += [f"{model.name} has {model.dtypes['float64']:,} float64 values among its parameters and buffers"
                 for model in case.settings.models if (model.dtypes or {}).get("float64")]
    yield Finding(
        "part of the model computes in float64: with one float64 input, an operator's result is float64",
        "convert the float64 tensor to float32 where it is created: .float() or dtype=torch.float32 (NumPy's default "
        "is float64)",
        saving, tuple(evidence), phase=str(doubles.groupby("phase")["time_s"].sum().idxmax()), layer=layer,
        operator=str(longest["operator"]), setting="dtype=float64")


_PRODUCTS = frozenset({"GEMM", "convolution", "attention", "recurrent"})
_EMULATED_FLOP_PER_S, _LONG_CALL_S = 3e9, 1e-4
"""Most FLOP/s of a core that emulates products in half precision, and the shortest call (s) that is judged.

*Source*: a product of 512 × 512 matrices and a convolution of 32 channels, PyTorch 2.13, 2 cores: 1 to 2 GFLOP/s per
core in float16, and in bfloat16 with AVX2, 30 to 140 in float32.
"""


def half_precision(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding if a CPU emulates products in half precision, because it has no instructions for them."""
    operators = case.operators
    if not case.on_cpu or "dtype" not in operators:
        return
    products = operators[operators["operator_type"].isin(_PRODUCTS) & operators["dtype"].isin(("float16", "bfloat16"))]
    flop_per_s = products["flop"] / products["time_s"] / (case.num_threads or 1)
    emulated = products[(flop_per_s < _EMULATED_FLOP_PER_S)
                        & (products["time_s"] > _LONG_CALL_S * products["num_calls"])]
    products = products[products["dtype"].isin(emulated["dtype"])]
    spent_s = float(products["time_s"].sum())
    saving = case.saving(0.5 * spent_s, spent_s, "modelled")
    if saving is None:
        return
    longest = emulated.sort_values("time_s", ascending=False).iloc[0]
    dtype, layer = str(longest["dtype"]), layer_of(longest)
    rate = quantity(longest["flop"] / longest["time_s"], "FLOP/s")
    yield Finding(
        f"the model computes in {dtype} on a CPU that has no instructions for products in it",
        "use float32 on this CPU: .float(), or dtype=torch.float32 where the model is loaded", saving,
        (f"such products take {case.takes(spent_s)}",
         f"{longest['operator']}{f' in {layer}' if layer else ''} computes {rate}"),
        phase=str(products.groupby("phase")["time_s"].sum().idxmax()), layer=layer, operator=str(longest["operator"]),
        setting=f"dtype={dtype}")


def hooks(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding if a model has many more hooks at the end than at its first call."""
    for model in case.settings.models:
        first, last = model.num_hooks_first or 0, model.num_hooks_last or 0
        if last < first + max(20, case.num_iterations // 4):
            continue
        saving = case.saving(0.0, 0.5 * case.phase_s["forward"], "bound")
        yield Finding(f"hooks accumulate on {model.name}: the loop registers more and removes none",
                      "register each hook once, before the loop, or remove it: handle.remove()", saving,
                      (f"{first} hooks at its first call, {last} at the end",), "medium", phase="forward",
                      layer=model.name, setting="hooks")


_SAVED_BY_FUSING = {"Adam": (0.4, 0.93), "AdamW": (0.4, 0.93), "Adagrad": (0.3, 0.9)}
"""Minimum and maximum share of the phase update that a fused step saves.

*Source*: on 2 cores, PyTorch 2.13: 77 % for 600 tensors of 272 values, 87 % for 6 tensors of 1 million values.
"""
_SAVED_S = (2e-6, 12e-6)
"""Minimum and maximum time (s) for each tensor that a fused step of SGD saves: it saves calls, but no memory access."""


def optimizer_loop(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding for an optimizer that updates its tensors one by one, if its update takes much time."""
    yield from _group_by_group(case)
    loops = [each for each in case.settings.optimizers
             if each.implementation == "for-loop" and each.class_ in ("SGD", *_SAVED_BY_FUSING)]
    if not loops or not case.trains:
        return
    optimizer = max(loops, key=lambda each: each.num_tensors or 0)
    update_s = case.phase_s["update"]
    num_tensors = optimizer.num_tensors or 0
    if fracs := _SAVED_BY_FUSING.get(optimizer.class_ or ""):
        low_s, high_s = (frac * update_s for frac in fracs)
    else:
        low_s, high_s = (min(saved_s * num_tensors, 0.8 * update_s) for saved_s in _SAVED_S)
    saving = case.saving(low_s, high_s, "modelled")
    yield Finding(
        f"{optimizer.class_} updates its {num_tensors:,} tensors one by one (for-loop implementation)",
        f"pass fused=True to {optimizer.class_} (foreach=True where a parameter group cannot be fused)", saving,
        (f"update takes {case.takes(update_s)}, for {optimizer.num_parameters:,} parameters in {num_tensors:,} "
         "tensors",),
        place=Place.of(optimizer), phase="update", setting=f"{optimizer.class_}(fused=False)")


def _group_by_group(case: WatchedCase) -> Iterator[Finding]:
    for optimizer in case.settings.optimizers:
        num_groups, num_tensors = optimizer.num_groups or 0, optimizer.num_tensors or 0
        if num_groups < 16 or num_groups < num_tensors / 4 or optimizer.implementation == "for-loop":
            continue
        update_s = case.phase_s["update"]
        yield Finding(
            f"{optimizer.class_} has {num_groups:,} parameter groups for {num_tensors:,} tensors, and updates "
            "them group by group",
            "put parameters with equal settings into one group: a step updates all tensors of a group at once",
            case.saving(0.25 * update_s, 0.9 * update_s, "modelled"),
            (f"update takes {case.takes(update_s)}",),
            place=Place.of(optimizer), phase="update", setting="parameter groups")


def threads(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding if PyTorch has more threads than the process has usable cores."""
    num_threads, num_cores = case.num_threads, case.num_cores
    if not num_threads or not num_cores or num_threads <= num_cores or not case.on_cpu:
        return
    parallel_s = case.time_s("forward", "loss", "backward", "update")
    saving = case.saving(0.1 * parallel_s, (1 - num_cores / num_threads) * parallel_s, "modelled")
    cores = "1 core" if num_cores == 1 else f"{num_cores} cores"
    yield Finding(
        f"PyTorch computes with {num_threads} threads on {cores}: threads wait for each other",
        f"call torch.set_num_threads({num_cores}), or set OMP_NUM_THREADS={num_cores}", saving,
        (f"torch.get_num_threads() is {num_threads}; the process may use {cores}",), phase="forward",
        setting=f"num_threads={num_threads}")
