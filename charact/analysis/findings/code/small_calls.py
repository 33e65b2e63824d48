"""A small layer is called many times in an iteration."""

from collections.abc import Iterator

from charact.analysis.findings._finding import Finding
from charact.analysis.findings._watched_case import WatchedCase
from charact.core.units import quantity, share

_CELLS = {"LSTMCell": "nn.LSTM", "GRUCell": "nn.GRU", "RNNCell": "nn.RNN"}
"""Layers that compute one time step, and the layer that computes all of them."""
_CACHED = ("compute the parametrized weight once in an iteration: call the model inside of "
           "'with torch.nn.utils.parametrize.cached():'")
"""Remedy for weight or spectral normalization of a layer that is called often."""
_MANY_BACKWARDS, _LONG_BACKWARD_S = 16, 5e-3
"""Fewest backwards in an iteration that are reported, and the time of one from which they are not."""
_SMALL_S = 300e-6
"""Time of a call (s) below which most of it is overhead."""


def find(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding for the layers that are called most often, if their calls take much of the time."""
    yield from _backwards(case)
    forward_s = case.phase_s["forward"]
    for facts in case.inspection.get("layer_calls") or []:
        whole = _CELLS.get(facts["layer_type"])
        if facts["num_calls"] < 20 or (whole is None and facts["time_s"] / facts["num_calls"] > _SMALL_S):
            continue
        part = min(facts["time_s"] / forward_s, 1.0) if forward_s else 0.0
        spent_s = part * (forward_s + case.phase_s["backward"])
        saving = case.saving(0.4 * spent_s, 0.95 * spent_s, "modelled")
        if saving is None:
            continue
        remedy = (_CACHED if facts["layer_type"] == "ParametrizationList" else
                  f"use {whole}, which computes all time steps in one call" if whole else
                  "call it once with all inputs stacked into one tensor (torch.stack, reshape); for time steps of a "
                  "recurrence, use nn.LSTM or nn.GRU, which compute the whole sequence in one call")
        yield Finding(
            f"the layer {facts['layer']} ({facts['layer_type']}) is called {facts['num_calls']:,} times in "
            "an iteration", remedy, saving,
            (f"its calls take {quantity(facts['time_s'], 's')} of forward, "
             f"{quantity(facts['time_s'] / facts['num_calls'], 's')} each; with their backward, "
             f"{share(spent_s / case.iteration_s)} of a typical iteration",),
            "high" if whole else "medium", phase="forward", layer=facts["layer"])
        return


def _backwards(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding if an iteration has many backwards, such as one for each sample."""
    num_calls = (case.settings.get("num_backwards") or 0) / max(case.num_iterations, 1)
    backward_s = case.phase_s["backward"]
    if not case.trains or num_calls < _MANY_BACKWARDS or backward_s / num_calls > _LONG_BACKWARD_S:
        return
    saving = case.saving(0.4 * backward_s, 0.97 * backward_s, "modelled")
    if saving is not None:
        yield Finding(
            f"an iteration calls backward {num_calls:,.0f} times",
            "compute all gradients at once: call backward for the sum of the losses; for a gradient of each, use "
            "torch.func.vmap(torch.func.grad(f)), or torch.autograd.grad(..., is_grads_batched=True)", saving,
            (f"{num_calls:,.0f} backwards take {quantity(backward_s, 's')}, {quantity(backward_s / num_calls, 's')} "
             f"each: {share(backward_s / case.iteration_s)} of a typical iteration",), phase="backward")
