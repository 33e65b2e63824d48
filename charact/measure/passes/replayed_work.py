"""FLOP and bytes of an iteration that the profiler recorded: its operators run again on tensors without data."""

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.profiler import profile
from torch.utils._python_dispatch import _disable_current_modes

from charact.execution.precision import float32_settings
from charact.measure.passes.event_tree import EventTree, Operator
from charact.measure.passes.flops import Work, formula_of, moved_bytes

_PRECISIONS = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
_Cost = tuple[float | None, float]
"""FLOP of a call, None if there is no formula, and its bytes."""


def replayed_work(tree: EventTree, profiler: profile, *, on_cuda: bool) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return rows of the table `flop` for a profiled iteration, and facts.

    Each dispatched operator is called again on meta tensors with the recorded shapes, types and numbers, and counted as
    in `flop_pass`. The user's code does not run.

    *Error*: FLOP as in `flop_pass`. An operator that cannot be called on meta tensors counts the bytes of its inputs
    only. A loop compiled into one kernel has no operators to count. The last operator of a recomputation counts, also
    if it is stopped before it runs.

    Returns:
        Rows, and the facts `uncounted` (operators with much work but no formula), `product_precision` (that of most
        FLOP: 'fp32', 'tf32', 'bf16' or 'fp16'; null for others and without products) and `recomputed_flop` (of layers
        whose forward ran again inside a backward).
    """
    assert profiler.profiler is not None
    assert profiler.profiler.kineto_results is not None
    # The arguments that are no tensors, by correlation ID: the event tree lacks lists of numbers.
    numbers: dict[int, Sequence[Any]] = {event.correlation_id(): event.concrete_inputs()
                                         for event in profiler.profiler.kineto_results.events()}
    work = Work()
    known: dict[tuple[str, str], _Cost] = {}
    by_precision: dict[str | None, float] = defaultdict(float)
    settings = float32_settings() if on_cuda else {}
    # Without the program's autocast, gradients and dispatch modes, and keeping its random state.
    with (torch.random.fork_rng(devices=[]), _disable_current_modes(), torch.no_grad(),
          torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False)):
        for call in dispatched(tree.operators):
            concrete = numbers.get(call.correlation_id) or [None] * len(call.inputs)
            arguments = [_meta(recorded, number) for recorded, number in zip(call.inputs, concrete, strict=False)]
            key = call.name, repr(_described(arguments))
            if key not in known:
                known[key] = _work(call.name, arguments)
            flop, num_bytes = known[key]
            if call.operator_type == "view":
                continue
            work.add(call.phase or "other", call.layer, call.name, flop, num_bytes, recomputed=call.recomputed)
            if flop is not None:
                by_precision[_precision(call, arguments, settings)] += flop
    most = max(by_precision, key=lambda precision: by_precision[precision], default=None)
    return work.rows(), {"uncounted": sorted(work.uncounted), "product_precision": most,
                         "recomputed_flop": work.recomputed_flop}


def dispatched(operators: Iterable[Operator]) -> list[Operator]:
    """Return the calls that PyTorch dispatches to a kernel, without those that such a kernel makes itself."""
    inside: set[int] = set()
    calls = []
    for call in operators:
        if call.caller is not None and id(call.caller) in inside:
            inside.add(id(call))
        elif (packet := _packet(call.name)) is not None:
            name = getattr(packet, packet.overloads()[0]).name()
            is_composite = torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")
            if formula_of(packet) or not is_composite:
                inside.add(id(call))
                calls.append(call)
    return calls


def _packet(name: str) -> Any:
    namespace, separator, operator = name.partition("::")
    if not separator or namespace in ("prim", "profiler", "autograd"):
        return None
    return getattr(getattr(torch.ops, namespace), operator, None)


def _meta(recorded: Any, number: Any) -> Any:
    if hasattr(recorded, "sizes"):
        return torch.empty_strided(recorded.sizes, recorded.strides, dtype=recorded.dtype, device="meta")
    if isinstance(recorded, list) and recorded and hasattr(recorded[0], "sizes"):
        return [_meta(tensor, None) for tensor in recorded]
    return recorded if number is None else number


def _described(argument: Any) -> Any:
    if isinstance(argument, torch.Tensor):
        return tuple(argument.shape), argument.stride(), argument.dtype
    return [_described(part) for part in argument] if isinstance(argument, list) else argument


def _work(name: str, arguments: list[Any]) -> _Cost:
    packet = _packet(name)
    formula, outputs = formula_of(packet), None
    called: tuple[list[Any], dict[str, Any]] = arguments, {}
    for overload in (getattr(packet, name) for name in packet.overloads()):
        schema = overload._schema.arguments
        if len(schema) != len(arguments):
            continue
        given = list(zip(schema, arguments, strict=True))
        positional = [value for argument, value in given if not argument.kwarg_only]
        # An operator that creates tensors, such as `randperm`, would run, and change the program's random state.
        keywords = {argument.name: "meta" if argument.name == "device" else value
                    for argument, value in given if argument.kwarg_only}
        with contextlib.suppress(Exception):  # not this overload, or it has no meta kernel
            outputs, called = overload(*positional, **keywords), (positional, keywords)
            break
    flop = None
    if formula is not None:
        with contextlib.suppress(Exception):
            flop = float(formula(*called[0], **called[1], out_val=outputs))
    return flop, float(moved_bytes(name, *called, outputs))


def _precision(call: Operator, arguments: list[Any], settings: Mapping[str, Any]) -> str | None:
    tensors = [value for value in arguments if isinstance(value, torch.Tensor) and value.is_floating_point()]
    precision = _PRECISIONS.get(max(tensors, key=torch.Tensor.numel).dtype) if tensors else None
    if precision == "fp32" and settings:
        rounds = settings["cudnn_allow_tf32"] if call.operator_type in ("convolution", "recurrent") else \
            settings["float32_matmul_precision"] != "highest"
        return "tf32" if rounds else "fp32"
    return precision
