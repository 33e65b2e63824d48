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

from charact.measure.script.inspection.clock import Clock, Moment

_FEWEST_CALLS, _MOST_LAYERS, _MOST_RECOMPUTED = 20, 20, 5
"""Minimum number of calls of a reported module; maximum numbers of reported and of recomputed modules."""


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
    """

    def __init__(self, names: dict[int, str], clock: Clock, in_backward: Callable[[], bool],
                 on_inputs: Callable[[nn.Module, Any, Any], None]) -> None:
        self._names, self._clock, self._in_backward, self._on_inputs = names, clock, in_backward, on_inputs
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

    def frequent(self) -> list[dict[str, Any]]:
        """Return the modules that were called often outside of backwards, slowest first, with the host's time (s)."""
        frequent = {layer: times_ns for layer, times_ns in self._forward_ns.items() if len(times_ns) >= _FEWEST_CALLS}
        slowest = sorted(frequent, key=lambda layer: -sum(frequent[layer]))[:_MOST_LAYERS]
        return [{"layer": name, "layer_type": kind, "num_calls": len(frequent[name, kind]),
                 "time_s": sum(frequent[name, kind]) / 1e9} for name, kind in slowest]

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
            self._forward_ns[name, type(module).__name__].append(perf_counter_ns() - call.start.host_ns)
            if not stack:
                self._on_inputs(module, args, more[0] if len(more) == 2 else {})
        elif not (stack and stack[-1].recomputes):
            self._recomputed.append((name, call.start, self._clock.now()))
