"""Memory and work of a brick: one call with the profiler's allocation events, one call with FLOP counting."""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.profiler import profile

from charact.bricks.brick import Brick
from charact.bricks.executable import BrickFunction
from charact.bricks.suite.families import literals
from charact.measure.bricks.inputs import Arguments, InputPool, copied
from charact.measure.passes.event_tree import Allocation, read_results
from charact.measure.passes.flops import work_of
from charact.measure.passes.marks import phase_mark


def described(brick: Brick) -> dict[str, Any]:
    """Return the columns of a brick's row in the table `bricks` that need no run."""
    return {
        "brick": brick.id, "kind": brick.kind, "num_layers": brick.num_layers, "layer_types": brick.layer_types,
        "input_shapes": [list(each.type.shape) for each in brick.inputs], "literals": literals(brick),
        "weights_bytes": float(brick.weights_bytes),
    }


def as_stored(row: dict[str, Any]) -> dict[str, Any]:
    """Return a brick's row with lists as JSON, as the table stores it."""
    return row | {name: json.dumps(row[name]) for name in ("layer_types", "input_shapes", "literals")}


def memory_and_work(brick: Brick, call: BrickFunction, pool: InputPool, *, training: bool
                    ) -> tuple[dict[str, Any], list[str]]:
    """Measure the work and memory columns of the table `bricks`, and list operators without FLOP formula.

    Work is counted on real tensors, which also works for operators that depend on values. Updates are not counted.

    *Error*: exact for PyTorch's allocator; allocations by other libraries are not included.
    """
    training = training and brick.kind == "sequence"
    arguments = Arguments(brick, pool, training=training)

    def passes() -> _Passes:
        weights = {number: copied(weight) for number, weight in arguments.weights().items()}  # own storages
        return _Passes(call, arguments.call_with(weights | arguments.others()), training)

    work, uncounted = _work(passes())
    held = _held(passes()) if training else None
    return {**work, **_memory(passes(), pool.device), "held": held}, uncounted


class _Passes:
    """A forward pass and, in training, a backward pass from gradients of ones if an output requires a gradient."""

    def __init__(self, call: BrickFunction, inputs: list[Tensor], training: bool) -> None:
        self._call, self.inputs, self._training = call, inputs, training
        self.outputs: Sequence[Tensor] = ()
        self.gradients: list[Tensor] = []

    def forward(self) -> None:
        """Run the forward pass."""
        self.outputs = self._call(self.inputs)

    def turn(self) -> None:
        """Create the output gradients of the backward pass."""
        self.gradients = [torch.ones_like(output) for output in self._carriers()]

    def backward(self) -> None:
        """Run the backward pass."""
        if carriers := self._carriers():
            torch.autograd.backward(carriers, self.gradients)

    def root(self) -> Tensor | None:
        """Return a scalar whose backward pass is the brick's, or None if no output requires a gradient.

        Its backward pass creates the output gradients, which are freed after their use, as in a model.
        """
        carriers = self._carriers()
        return _Root.apply(*carriers) if carriers else None  # type: ignore[no-untyped-call]

    def _carriers(self) -> list[Tensor]:
        return [output for output in self.outputs if output.requires_grad] if self._training else []


class _Root(torch.autograd.Function):
    """A scalar computed from a brick's outputs; its backward pass returns gradients of ones."""

    @staticmethod
    def forward(ctx: Any, *outputs: Tensor) -> Tensor:
        ctx.types = [(output.shape, output.dtype) for output in outputs]
        return outputs[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return tuple(torch.ones(shape, dtype=dtype, device=gradients[0].device) for shape, dtype in ctx.types)


def _work(passes: _Passes) -> tuple[dict[str, float | None], list[str]]:
    flop, num_bytes, uncounted = work_of(passes.forward)
    passes.turn()
    backward_flop, backward_bytes, backward_uncounted = work_of(passes.backward)
    counted = [each for each in (flop, backward_flop) if each is not None]
    return ({"flop": sum(counted) if counted else None, "bytes": num_bytes + backward_bytes},
            sorted({*uncounted, *backward_uncounted}))


def _memory(passes: _Passes, device: torch.device) -> dict[str, float | None]:
    places = {tensor.untyped_storage().data_ptr() for tensor in passes.inputs}
    with profile(profile_memory=True) as profiler:
        with phase_mark("forward"):
            passes.forward()
        storages = [output.untyped_storage() for output in passes.outputs]
        root = passes.root()
        if root is not None:
            gradient = torch.ones_like(root)
            with phase_mark("backward"):
                torch.autograd.backward(root, gradient)
    made = {storage.data_ptr(): storage.nbytes() for storage in storages if storage.data_ptr() not in places}
    outputs_bytes = float(sum(made.values()))
    tree = read_results(profiler.kineto_results)
    inside = [(tree.phase_at(each.time_ns), each) for each in tree.allocations if each.device.startswith(device.type)]
    after_forward = sum(each.num_bytes for phase, each in inside if phase == "forward")
    return {"outputs_bytes": outputs_bytes,
            "saved_bytes": max(0.0, after_forward - outputs_bytes) if root is not None else None,
            "peak_bytes": float(_peak(each for phase, each in inside if phase in ("forward", "backward")))}


def _held(passes: _Passes) -> str:
    """Return the saved inputs and outputs of the forward pass and their sizes as JSON: see the table `bricks`."""
    places: dict[int, int] = {}
    for number, tensor in enumerate(passes.inputs):
        places.setdefault(tensor.untyped_storage().data_ptr(), number)
    kept: list[torch.UntypedStorage] = []  # references, so that no address is reused

    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.untyped_storage()), _unread):
        passes.forward()
    saved = {storage.data_ptr() for storage in kept}
    outputs = [(output, output.untyped_storage()) for output in passes.outputs]
    return json.dumps({
        "saved_inputs": [number for number, tensor in enumerate(passes.inputs)
                         if tensor.untyped_storage().data_ptr() in saved],
        "outputs": [{"bytes": storage.nbytes(), "input": places.get(storage.data_ptr()),
                     "saved": storage.data_ptr() in saved, "gradient": output.requires_grad}
                    for output, storage in outputs],
    })  # fmt: skip


def _unread(_: Any) -> Tensor:
    raise AssertionError("no backward pass follows")


def step_peak_bytes(step: Callable[[], object], device: torch.device) -> float:
    """Return the peak memory of an optimizer step in addition to parameters, gradients and state (bytes)."""
    with profile(profile_memory=True) as profiler:
        step()
    allocations = read_results(profiler.kineto_results).allocations
    return float(_peak(each for each in allocations if each.device.startswith(device.type)))


def _peak(allocations: Iterable[Allocation]) -> int:
    held = most = 0
    for each in allocations:
        held += each.num_bytes
        most = max(most, held)
    return most
