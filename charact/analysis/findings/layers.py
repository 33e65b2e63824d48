"""Findings about layers of the model: work that they do in vain, or in too many calls."""

import json
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import pandas as pd

from charact.analysis.findings._finding import Finding, Place
from charact.analysis.findings._watched_case import WatchedCase
from charact.core.units import quantity, share

_SAVED_WITHOUT_WEIGHTS = (0.1, 0.7)
"""Minimum and maximum share of a layer's time that is saved without weights.

*Source*: nn.MultiheadAttention with 8 heads, forward and backward, PyTorch 2.13, 2 cores: 55 % for 576 keys of width
64, 12 % for 512 of width 512, nothing for 256 of width 256.
"""


def attention_weights(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding if `nn.MultiheadAttention` returns weights of long sequences."""
    layers = case.inspection.attention_weights
    forward_s = case.phase_s["forward"]
    if not layers or not forward_s:
        return
    part = min(sum(each.time_s for each in layers) / forward_s, 1.0)
    spent_s = part * (forward_s + case.phase_s["backward"])
    low_s, high_s = (frac * spent_s for frac in _SAVED_WITHOUT_WEIGHTS)
    saving = case.saving(low_s, high_s, "modelled")
    line = next((line for line in case.lines("forward") if "MultiheadAttention.forward" in (line.library or "")), None)
    others = f" and {len(layers) - 1} more layers" if len(layers) > 1 else ""
    yield Finding(
        f"the attention of {layers[0].layer}{others} returns its weights, and so computes the whole matrix of them",
        "pass need_weights=False in the call of nn.MultiheadAttention, unless the program uses the weights: then it "
        "computes by scaled_dot_product_attention", saving,
        (f"forwards of these layers take {quantity(part * forward_s, 's')}; with their backward, "
         f"{case.of_iteration(spent_s)}",), "medium",
        place=line and line.place, phase="forward", layer=layers[0].layer, setting="need_weights=True")


_FROZEN_FRAC = 0.3
"""Minimum share of the input rows that an earlier call had."""


def frozen_outputs(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding for each frozen model of a training that computes many of its outputs more than once."""
    if not case.trains:
        return
    rows = case.run.iterations
    rows = rows[rows["case"] == case.name]
    num_iterations = rows["iteration"].nunique()
    forwards = rows[(rows["phase"] == "forward") & rows["part"].notna()]
    for facts in case.settings.models:
        name, num_rows = facts.name or "", facts.num_frozen_rows
        repeated_frac = (facts.num_repeated_rows or 0) / num_rows if num_rows else 0.0
        if repeated_frac < _FROZEN_FRAC:
            continue
        spent_s = float(forwards[_is_inside(forwards["part"], name)]["host_s"].sum()) / num_iterations
        saving = case.saving(0.7 * repeated_frac * spent_s, repeated_frac * spent_s)
        line = next((line for line in case.all_lines("forward") if f"{name}(" in (line.place.text or "")), None)
        yield Finding(
            f"{name} computes the same outputs again: its weights do not change, and its inputs are those of earlier "
            "iterations", f"compute the outputs of {name} once before the training, keep them in memory or in a file, "
            "and train on these", saving,
            (f"{share(repeated_frac)} of {num_rows:,} rows of its inputs came in an earlier iteration, and its weights "
             "are the same at the end",), "high", place=line and line.place, phase="forward", layer=name)


def _is_inside(layers: "pd.Series[str]", layer: str) -> "pd.Series[bool]":
    return (layers == layer) | layers.str.startswith(f"{layer}.")


_PADDED_FRAC = 0.3


def padding(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding if a large share of an input is padding."""
    padded = max(case.inspection.padding, key=lambda each: each.padding_frac, default=None)
    if padded is None or padded.padding_frac < _PADDED_FRAC:
        return
    computing_s = case.time_s("forward", "loss", "backward")
    # Attention computes pairs of positions, of which even more are padding.
    attends = case.operators.empty or (case.operators["operator_type"] == "attention").any()
    most_frac = 1 - (1 - padded.padding_frac) ** 2 if attends else padded.padding_frac
    saving = case.saving(0.4 * padded.padding_frac * computing_s, most_frac * computing_s, "modelled")
    loader = max(case.settings.loaders, key=lambda each: each.num_batches or 0, default=None)
    yield Finding(
        f"{share(padded.padding_frac)} of {padded.name} is padding, and the model computes padding like data",
        "batch samples of similar length (sort or bucket them), and pad each batch only to its longest sample"
        + (", where collate_fn of the DataLoader makes it" if loader else ""),
        saving, (f"{share(padded.padding_frac)} of the elements of {padded.name} in one iteration are padding",),
        "medium", place=Place.of(loader) if loader else None, phase="forward", setting=f"padding of {padded.name}",
        covers=frozenset({"unused_outputs"}))


_FULL_FRAC = 0.7
"""Share of the machine's memory in use from which recomputation may be needed."""


def recomputation(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding if backward runs the forward of layers; its confidence is low if memory is nearly full."""
    facts = case.inspection.recompute
    if facts is None or not facts.time_s or not facts.backward_s:
        return
    spent_s = case.phase_s["backward"] * min(facts.time_s / facts.backward_s, 1.0)
    saving = case.saving(0.6 * spent_s, 1.15 * spent_s)
    peak_bytes = case.entry.passes.memory.process_peak_bytes
    memory_bytes = min(filter(None, (case.run.manifest.get("machine", {}).get(name)
                                     for name in ("memory_bytes", "memory_limit_bytes"))), default=None)
    evidence = [f"forwards inside of backward take {case.takes(spent_s)}"]
    is_full = False
    if case.on_cpu and peak_bytes is not None and memory_bytes is not None:
        is_full = peak_bytes > _FULL_FRAC * memory_bytes
        evidence.append(f"the process uses at most {quantity(peak_bytes, 'B')} of {quantity(memory_bytes, 'B')} memory")
    layers = facts.layers
    named = f" of {', '.join(layers[:3])}" if layers else ""
    yield Finding(
        f"backward computes the forward{named} a second time (activation checkpointing)",
        "remove torch.utils.checkpoint if memory suffices, or checkpoint only the layers with the largest activations",
        saving, tuple(evidence), "low" if is_full else "high", phase="backward",
        layer=layers[0] if layers else None, setting="activation checkpointing")


_REPEATED_FRAC = 0.3
"""Minimum share of a layer's input rows that repeat earlier ones."""


def repeated_rows(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding for the layer that loses the most time with repeated rows of its inputs."""
    rows = case.operators
    repeats = []
    for facts in case.inspection.repeated_rows:
        repeated_frac = facts.num_repeated / facts.num_rows
        is_inside = _is_inside(rows["layer"].fillna(""), facts.layer)
        if repeated_frac > _REPEATED_FRAC:
            layer_s = float(rows.loc[is_inside, "time_s"].sum()) if is_inside.any() else case.phase_s["forward"]
            repeats.append((repeated_frac * layer_s, repeated_frac, facts))
    if not repeats:
        return
    spent_s, repeated_frac, facts = max(repeats, key=lambda repeat: repeat[0])
    saving = case.saving(0.5 * spent_s, spent_s)
    yield Finding(
        f"the layer {facts.layer} computes the same rows several times",
        f"call {facts.layer} once for the different rows, and repeat its output: "
        "output.repeat_interleave(n, 0) or output.expand(...)", saving,
        (f"{share(repeated_frac)} of the {facts.num_rows:,} rows of its inputs in one iteration repeat an earlier "
         "row, and it has no dropout now",), "medium", phase="forward", layer=facts.layer)


_CELLS = {"LSTMCell": "nn.LSTM", "GRUCell": "nn.GRU", "RNNCell": "nn.RNN"}
"""Layers that compute one time step, and the layer that computes all of them."""
_CACHED = ("compute the parametrized weight once in an iteration: call the model inside of "
           "'with torch.nn.utils.parametrize.cached():'")
"""Remedy for weight or spectral normalization of a layer that is called often."""
_MANY_BACKWARDS, _LONG_BACKWARD_S = 16, 5e-3
"""Fewest backwards in an iteration that are reported, and the time of one from which they are not."""
_SMALL_S = 300e-6
"""Time of a call (s) below which most of it is overhead."""


def small_calls(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding for the layers that are called most often, if their calls take much of the time."""
    yield from _backwards(case)
    forward_s = case.phase_s["forward"]
    for facts in case.inspection.layer_calls:
        whole = _CELLS.get(facts.layer_type)
        if facts.num_calls < 20 or (whole is None and facts.time_s / facts.num_calls > _SMALL_S):
            continue
        part = min(facts.time_s / forward_s, 1.0) if forward_s else 0.0
        spent_s = part * (forward_s + case.phase_s["backward"])
        saving = case.saving(0.4 * spent_s, 0.95 * spent_s, "modelled")
        if saving is None:
            continue
        remedy = (_CACHED if facts.layer_type == "ParametrizationList" else
                  f"use {whole}, which computes all time steps in one call" if whole else
                  "call it once with all inputs stacked into one tensor (torch.stack, reshape); for time steps of a "
                  "recurrence, use nn.LSTM or nn.GRU, which compute the whole sequence in one call")
        yield Finding(
            f"the layer {facts.layer} ({facts.layer_type}) is called {facts.num_calls:,} times in "
            "an iteration", remedy, saving,
            (f"its calls take {quantity(facts.time_s, 's')} of forward, "
             f"{quantity(facts.time_s / facts.num_calls, 's')} each; with their backward, "
             f"{case.of_iteration(spent_s)}",),
            "high" if whole else "medium", phase="forward", layer=facts.layer)
        return


def _backwards(case: WatchedCase) -> Iterator[Finding]:
    num_calls = (case.settings.num_backwards or 0) / max(case.num_iterations, 1)
    backward_s = case.phase_s["backward"]
    if not case.trains or num_calls < _MANY_BACKWARDS or backward_s / num_calls > _LONG_BACKWARD_S:
        return
    yield Finding(
        f"an iteration calls backward {num_calls:,.0f} times",
        "compute all gradients at once: call backward for the sum of the losses; for a gradient of each, use "
        "torch.func.vmap(torch.func.grad(f)), or torch.autograd.grad(..., is_grads_batched=True)",
        case.saving(0.4 * backward_s, 0.97 * backward_s, "modelled"),
        (f"{num_calls:,.0f} backwards take {quantity(backward_s, 's')}, {quantity(backward_s / num_calls, 's')} "
         f"each: {case.of_iteration(backward_s)}",), phase="backward")


def unused_gradients(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding for each model whose gradients a backward for another optimizer computes, and nothing uses."""
    for facts in case.inspection.unused_gradients:
        if not facts.time_s:
            continue
        scale = min(case.phase_s["backward"] / facts.backward_s, 1.0) if facts.backward_s else 1.0
        spent_s = facts.time_s * scale
        saving = case.saving(0.5 * spent_s, 1.5 * spent_s)
        yield Finding(
            f"the backward for {facts.optimizer} also computes gradients of {facts.model}, which are never used",
            f"detach the output of {facts.model} in that step: pass output.detach(), or compute it under "
            "torch.no_grad()", saving,
            (f"these gradients take {case.takes(spent_s)}, and are deleted before an optimizer uses them",),
            phase="backward", layer=facts.model)


_UNUSED_FRAC = 0.3
"""Minimum share of a layer's outputs that is not used."""
_UNUSED_TIME_FRAC = 0.1
"""Minimum share of an iteration that they take: to select what is used has a cost, too."""
_MATRIX_PRODUCTS = frozenset({"aten::mm", "aten::addmm"})
_SELECTING = frozenset({"aten::select", "aten::slice", "aten::narrow"})
_VIEWS = _SELECTING | frozenset({
    "aten::alias", "aten::as_strided", "aten::detach", "aten::empty_like", "aten::expand", "aten::permute",
    "aten::resolve_conj", "aten::resolve_neg", "aten::reshape", "aten::squeeze", "aten::transpose",
    "aten::_unsafe_view", "aten::unsqueeze", "aten::view"})
"""Operators that read no element of their input."""


class _Unused(NamedTuple):
    """Rows of a layer's output in one iteration, and the time (s) that the unused ones take."""

    layer: str
    num_rows: int
    unused_frac: float
    unused_s: float


def unused_outputs(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding if a large share of layers' outputs is not used; it names the slowest one."""
    layers = [layer for layer in (_without_gradient(case) if case.trains else _never_read(case))
              if layer.unused_frac > _UNUSED_FRAC]
    if not layers:
        return
    slowest, layers_s = max(layers, key=lambda layer: layer.unused_s), sum(layer.unused_s for layer in layers)
    rows = case.operators
    # Operators of the backward outside of layers that take a tensor with so many rows are those of the loss.
    of_loss = rows["input_shapes"].fillna("").str.contains(f"[{slowest.num_rows},", regex=False)
    of_loss &= (rows["phase"] == "backward") & rows["layer"].isna()
    loss_s = case.phase_s["loss"] + float(rows.loc[of_loss, "time_s"].sum()) if case.trains else 0.0
    most_s = layers_s + slowest.unused_frac * loss_s
    saving = case.saving(0.7 * layers_s, most_s)
    if most_s < _UNUSED_TIME_FRAC * case.iteration_s:
        return
    if case.trains:
        user, are_unused, select = "the loss", "have no gradient", "hidden[labels != ignore_index] or hidden[:, -1]"
    else:
        user, are_unused, select = "the program", "are read by no operator", "hidden[:, -1]"
    yield Finding(
        f"the layer {slowest.layer} computes outputs that {user} does not use",
        f"select what {user} uses before the layer, such as {select}; compute {slowest.layer} "
        f"{'and the loss ' if case.trains else ''}for these only", saving,
        (f"{share(slowest.unused_frac)} of the {slowest.num_rows:,} outputs of {slowest.layer} in one iteration "
         f"{are_unused}",),
        "medium", phase="forward", layer=slowest.layer)


def _without_gradient(case: WatchedCase) -> Iterator[_Unused]:
    times: dict[Any, float] = case.operators.groupby("layer")["time_s"].sum().to_dict()
    for facts in case.inspection.unused_outputs:
        unused_frac = 1 - facts.num_used_rows / facts.num_rows
        if facts.layer in times:
            yield _Unused(facts.layer, facts.num_rows, unused_frac, unused_frac * times[facts.layer])


def _never_read(case: WatchedCase) -> Iterator[_Unused]:
    """Yield the layers whose output is only read after a selection.

    An operator that takes a tensor of the output's shape is taken for one that reads all of it.
    """
    rows = case.operators[case.operators["input_shapes"].notna()]
    outside = rows[rows["layer"].isna()]
    reads = [(operator, shape) for operator, shapes in zip(outside["operator"], outside["input_shapes"], strict=True)
             for shape in json.loads(shapes) if shape]
    products = rows[rows["layer"].notna() & rows["operator"].isin(_MATRIX_PRODUCTS) & (rows["num_calls"] == 1)]
    for layer, shapes, time_s in zip(products["layer"], products["input_shapes"], products["time_s"], strict=True):
        *_, (num_rows, _), (_, width) = json.loads(shapes)
        of_width = [(operator, math.prod(shape[:-1])) for operator, shape in reads if shape[-1] == width]
        of_output = {operator for operator, number in of_width if number == num_rows}
        used = max((number for operator, number in of_width if operator not in _VIEWS and number < num_rows), default=0)
        others = rows[rows["layer"].notna() & (rows["layer"] != layer) & ~rows["operator"].isin(_VIEWS)]
        is_read_inside = any(shape and shape[-1] == width and math.prod(shape[:-1]) == num_rows
                             for shapes in others["input_shapes"] for shape in json.loads(shapes))
        if used and of_output & _SELECTING and not of_output - _VIEWS and not is_read_inside:
            yield _Unused(layer, num_rows, 1 - used / num_rows, (1 - used / num_rows) * time_s)


_PRODUCTS = {"aten::mm": (0, 1), "aten::addmm": (1, 2), "aten::mkldnn_convolution": (0, 1),
             "aten::thnn_conv2d": (0, 1), "aten::cudnn_convolution": (0, 1)}
"""Places of the inputs and of the weights among the shapes of operators with weights."""
_COMPUTING = frozenset({"elementwise", "reduction", "normalization", "data movement"})
"""Types of the operators that compute weights from others: normalize, scale or convert them."""


def weights_each_call(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding if an inference spends much time on tensors of its layers' weights before it uses these."""
    if case.trains:
        return
    rows = case.operators
    rows = rows[(rows["phase"] == "forward") & rows["layer"].notna() & rows["input_shapes"].notna()]
    times = {layer: _of_weights_s(rows, layer, shape) for layer, shape in _weight_shapes(rows)}
    spent_s = sum(times.values())
    saving = case.saving(0.7 * spent_s, spent_s)
    if saving is None:
        return
    layer = max(times, key=times.__getitem__)
    yield Finding(
        f"each call computes the weights of {layer}" + (" and of other layers" if times[layer] < spent_s else "")
        + " again, such as to normalize or convert them", "compute the weights once before the inference, and keep "
        "them: remove_parametrizations or remove_weight_norm of torch.nn.utils, model.to(torch.bfloat16) instead of a "
        "conversion in each call, or an attribute that eval() fills", saving,
        (f"operators on tensors of the weights' shape take {quantity(spent_s, 's')} of an iteration, "
         f"{share(spent_s / case.iteration_s)} of it",), "medium", phase="forward", layer=layer)


def _weight_shapes(rows: pd.DataFrame) -> Iterator[tuple[str, list[int]]]:
    """Yield the layers whose inputs have another shape than their weights, with the weights' dimensions by size."""
    products = rows[rows["operator"].isin(_PRODUCTS)].drop_duplicates("layer")
    for layer, operator, text in zip(products["layer"], products["operator"], products["input_shapes"], strict=True):
        shapes, places = json.loads(text), _PRODUCTS[operator]
        if len(shapes) > max(places):
            inputs, weights = (sorted(shapes[place]) for place in places)
            if inputs != weights and len(weights) > 1:
                yield layer, weights


def _of_weights_s(rows: pd.DataFrame, layer: str, weights: list[int]) -> float:
    """Return the time (s) of operators of a layer, and of modules in it, whose first input has its weights' shape."""
    own = rows[_is_inside(rows["layer"], layer) & rows["operator_type"].isin(_COMPUTING)]
    has_shape = [bool(shapes) and sorted(shapes[0]) == weights for shapes in map(json.loads, own["input_shapes"])]
    return float(own.loc[has_shape, "time_s"].sum())
