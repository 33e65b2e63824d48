"""Calls of a program's modules: their number and time, and which of them run inside a backward."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from threading import get_ident
from time import perf_counter_ns
from typing import Any

from torch import nn
from torch.nn.modules import module as modules
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from charact.measure.script.program_state import Clock, Moment

_FEWEST_CALLS, _MOST_LAYERS, _MOST_RECOMPUTED = 20, 20, 5
"""Minimum number of calls of a reported module; maximum numbers of reported and of recomputed modules."""

_LONG = 384
"""Fewest keys of an attention for which computing its matrix of weights takes clearly longer."""


@dataclass(slots=True)
class _Call:
    """An open call of a module, and whether a backward runs it."""

    module: nn.Module
    recomputes: bool
    start: Moment


class ModuleCalls:
    """Records the calls of all modules, between `start` and `stop`.

    Args:
        names: names of the layers by the module's `id`.
        clock: the clock that times calls inside a backward; other calls are timed on the host.
        in_backward: returns whether a backward runs.
        on_inputs: called with module, arguments and keyword arguments after each outermost call outside of a backward.
        on_output: called with layer, module and output after each call outside of a backward.
        on_call: called with module and arguments after each call outside of a backward.
    """

    def __init__(self, names: dict[int, str], clock: Clock, in_backward: Callable[[], bool],
                 on_inputs: Callable[[nn.Module, Any, Any], None],
                 on_output: Callable[[str, nn.Module, Any], None],
                 on_call: Callable[[nn.Module, Any], None]) -> None:
        self._names, self._clock, self._in_backward = names, clock, in_backward
        self._on_inputs, self._on_output, self._on_call = on_inputs, on_output, on_call
        self._stacks: dict[int, list[_Call]] = defaultdict(list)
        """Open calls of each thread: on a GPU, another thread computes the backward."""
        self._handles: list[Any] = []
        self.forget()

    def start(self) -> None:
        """Add hooks to all modules."""
        self.stop()
        self._handles = [register_module_forward_pre_hook(self._begin),
                         register_module_forward_hook(self._end, with_kwargs=True, always_call=True)]

    def stop(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
            # PyTorch 2.13 leaves it, and then warns whenever the program compiles a module.
            modules._global_forward_hooks_with_kwargs.pop(handle.id, None)
        self._handles.clear()
        self._stacks.clear()

    def forget(self) -> None:
        """Discard all calls so far."""
        self._forward_ns: dict[tuple[str, str], list[int]] = defaultdict(list)
        self._recomputed: list[tuple[str, Moment, Moment]] = []
        self._weights_ns: dict[str, list[int]] = defaultdict(list)
        """Times of the calls of attention layers that return their weights."""

    def frequent(self) -> list[dict[str, Any]]:
        """Return the modules that were called often outside of backwards, slowest first, with the host's time (s)."""
        frequent = {layer: times_ns for layer, times_ns in self._forward_ns.items() if len(times_ns) >= _FEWEST_CALLS}
        slowest = sorted(frequent, key=lambda layer: -sum(frequent[layer]))[:_MOST_LAYERS]
        return [{"layer": name, "layer_type": kind, "num_calls": len(frequent[name, kind]),
                 "time_s": sum(frequent[name, kind]) / 1e9} for name, kind in slowest]

    def attention_weights(self) -> list[dict[str, Any]]:
        """Return the attention layers that return weights of many keys, slowest first."""
        slowest = sorted(self._weights_ns, key=lambda name: -sum(self._weights_ns[name]))[:_MOST_LAYERS]
        return [{"layer": name, "layer_type": nn.MultiheadAttention.__name__, "num_calls": len(self._weights_ns[name]),
                 "time_s": sum(self._weights_ns[name]) / 1e9} for name in slowest]

    def recomputed(self) -> tuple[float, list[str]]:
        """Return the time (s) of outermost calls inside backwards, and the names of their modules, slowest first."""
        totals: dict[str, float] = defaultdict(float)
        for name, start, end in self._recomputed:
            totals[name] += self._clock.seconds(start, end)
        return sum(totals.values()), sorted(totals, key=lambda name: -totals[name])[:_MOST_RECOMPUTED]

    def _begin(self, module: nn.Module, _: Any) -> None:
        stack = self._stacks[get_ident()]
        recomputes = self._in_backward()
        outermost = recomputes and not (stack and stack[-1].recomputes)
        stack.append(_Call(module, recomputes, self._clock.now() if outermost else Moment(perf_counter_ns())))

    def _end(self, module: nn.Module, args: Any, *more: Any) -> None:
        """Record the end of a call. After an error in the forward, PyTorch passes no keyword arguments."""
        stack = self._stacks[get_ident()]
        while stack:
            call = stack.pop()
            if call.module is module:
                break
        else:
            return
        name = self._names.get(id(module), type(module).__name__)
        if not call.recomputes:
            time_ns, kwargs = perf_counter_ns() - call.start.host_ns, more[0] if len(more) == 2 else {}
            self._forward_ns[name, type(module).__name__].append(time_ns)
            if isinstance(module, nn.MultiheadAttention) and _returns_long_weights(module, args, kwargs):
                self._weights_ns[name].append(time_ns)
            self._on_output(name, module, more[-1])
            self._on_call(module, args)
            if not stack:
                self._on_inputs(module, args, kwargs)
        elif not (stack and stack[-1].recomputes):
            self._recomputed.append((name, call.start, self._clock.now()))


def _returns_long_weights(attention: nn.MultiheadAttention, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether a call returns weights, and its keys are many, and not fewer than the layer is wide."""
    names = ("query", "key", "value", "key_padding_mask", "need_weights")
    given = dict(zip(names, args, strict=False)) | kwargs
    key = given.get("key")
    if key is None or not given.get("need_weights", True):
        return False
    length: int = key.shape[1 if attention.batch_first and key.dim() == 3 else 0]
    return bool(length >= max(_LONG, attention.embed_dim))
