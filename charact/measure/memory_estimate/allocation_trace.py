"""The tape of an iteration: which operator made which block of memory, and when each was given back."""

import contextlib
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parameter import is_lazy
from torch.profiler import record_function
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from charact.execution.running_layer import RunningLayer
from charact.measure.memory_estimate.convolution_library import library_of
from charact.measure.memory_estimate.fake_results import COMPOSITE, is_composite, run

if TYPE_CHECKING:
    from charact.execution.loop import Loop

Kind = Literal["begin", "allocate", "free", "end"]

_LINEAR = torch.ops.aten.linear.default

MARK = "charact#"
"""What the profiler's marks around operators begin with; their numbers follow."""


@dataclass(slots=True)
class Block:
    """Memory of one storage."""

    num_bytes: int
    phase: str | None
    """Phase that it was made in; None for what was there before the iteration."""
    category: str = "temporary"


@dataclass(slots=True)
class Op:
    """One call of a dispatched operator."""

    name: str
    phase: str
    layer: str | None
    input_shapes: tuple[tuple[int, ...], ...] = ()
    num_activations: int = 0
    """Numbers in the tensors that it reads and writes, but for weights, what has the shape of one, and workspaces
    (bytes): what the memory that it needs inside grows with."""
    num_read: int = 0
    """Of those, the ones that it reads."""
    made: tuple[int, ...] = ()
    """Its new blocks."""
    item_bytes: int = 0
    """Size of a number in the first tensor of real numbers that it reads; 0 where there is none."""
    library: str | None = None
    """What computes it on this CPU, of a convolution."""


@dataclass
class Tape:
    """One iteration. An event is its kind, and the number of an operator (begin, end) or block (allocate, free)."""

    blocks: list[Block] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    events: list[tuple[Kind, int]] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    """Blocks that were there before, in the order that they were made in."""


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes tapes of what is dispatched while it is entered, on fake tensors or real ones.

    Args:
        layer: tells which layer is running.
        marks: whether to mark operators for the profiler, so that its events can be placed in them.
    """

    def __init__(self, layer: RunningLayer, *, marks: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._layer, self._marks = layer, marks
        self._phase: str = "other"
        self._composite: Any = None
        """Operator that is being taken apart."""
        self._number_of: dict[int, int] = {}
        """Address of a live storage's object -> number of its block."""
        self.tape = Tape()

    def hold(self, category: str, values: Iterable[Any]) -> None:
        """Tell what the storages of tensors are for; those that were not seen yet were there before."""
        for value in values:
            if isinstance(value, torch.Tensor):
                self.tape.blocks[self._number(value, None)].category = category

    def begin(self) -> None:
        """An iteration begins: what is live now was there before."""
        old = self.tape
        self._layer.forget()
        self.tape = Tape()
        for address, number in self._number_of.items():
            self._number_of[address] = len(self.tape.blocks)
            self.tape.held.append(len(self.tape.blocks))
            self.tape.blocks.append(replace(old.blocks[number], phase=None))

    def ended(self) -> Tape:
        """The iteration has ended: its tape, every block with its category."""
        live = set(self._number_of.values())
        for number, block in enumerate(self.tape.blocks):
            if block.category == "temporary" and block.phase in ("forward", "loss"):
                block.category = "activations"
            elif block.category == "temporary" and number in live:
                block.category = "unknown"
        return self.tape

    @contextlib.contextmanager
    def mark(self, phase: str) -> Iterator[None]:
        """What is dispatched inside is the phase's."""
        self._phase = phase
        yield
        self._phase = "other"

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.prim.device.default and isinstance(args[0], FakeTensor):
            return args[0].fake_device  # autograd asks it of every gradient
        if func.namespace in ("prim", "profiler"):  # questions about a tensor, marks
            return func(*args, **kwargs)
        if is_composite(func):
            return self._taken_apart(func, args, kwargs)
        if self._composite is _LINEAR and func is torch.ops.aten.add.Tensor:
            func = torch.ops.aten.add_.Tensor  # what it does outside of any mode
        tape, number = self.tape, len(self.tape.ops)
        op = Op(f"{func.namespace}::{func._overloadpacket.__name__}", self._phase_now(), self._layer.name())
        tape.ops.append(op)
        tape.events.append(("begin", number))
        with record_function(f"{MARK}{number}") if self._marks else contextlib.nullcontext():
            outputs = run(func, args, kwargs)
        op.library = library_of(func, args, kwargs)
        self._describe(op, _tensors((args, kwargs)), _tensors(outputs))
        tape.events.append(("end", number))
        return outputs

    def _taken_apart(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call an operator that is made of others, which inference mode leaves whole.

        What `decompose` would take instead are forms in Python that make copies.
        """
        outer, self._composite = self._composite, func
        try:
            with self:
                return func._op_dk(COMPOSITE, *args, **kwargs)
        finally:
            self._composite = outer

    def _describe(self, op: Op, inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
        first_new = len(self.tape.blocks)
        given = {tensor.untyped_storage()._cdata for tensor in inputs}
        # A view of what was not seen yet, such as a data set, makes nothing.
        new = [tensor for tensor in outputs if tensor.untyped_storage()._cdata not in given]
        numbers = [self._number(tensor, op.phase) for tensor in new]
        op.made = tuple(dict.fromkeys(number for number in numbers if number >= first_new))
        op.input_shapes = tuple(tuple(tensor.shape) for tensor in inputs)
        op.item_bytes = next((tensor.itemsize for tensor in inputs if tensor.is_floating_point()), 0)
        weights = {tensor.shape for tensor in inputs if self._is_weight(tensor)}
        op.num_read, num_written = (
            sum(tensor.numel() for tensor in tensors if tensor.shape not in weights and tensor.dtype != torch.uint8)
            for tensors in (inputs, outputs))
        op.num_activations = op.num_read + num_written

    def _is_weight(self, tensor: torch.Tensor) -> bool:
        number = self._number_of.get(tensor.untyped_storage()._cdata)
        return number is not None and self.tape.blocks[number].category == "weights"

    def _phase_now(self) -> str:
        return self._phase

    def _number(self, tensor: torch.Tensor, phase: str | None) -> int:
        """Number of the block of a tensor's storage, which is put onto the tape where it is new."""
        storage = tensor.untyped_storage()
        address = storage._cdata
        number = self._number_of.get(address)
        if number is None:
            number = self._number_of[address] = len(self.tape.blocks)
            self.tape.blocks.append(Block(storage.nbytes(), phase))
            if phase is None:
                self.tape.held.append(number)
            else:
                self.tape.events.append(("allocate", number))
            weakref.finalize(storage, self._freed, address).atexit = False
        return number

    def _freed(self, address: int) -> None:
        self.tape.events.append(("free", self._number_of.pop(address)))


def _tensors(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def record_iteration(loop: "Loop", recorder: Recorder) -> Tape:
    """One iteration of a loop on a tape, each block with its category.

    Weights, gradients and optimizer state are known by being those of the loop's model and optimizers; the batch is
    input; what the forward pass or the loss made is activations, and what else is made and given back is temporary.
    """
    recorder.begin()

    @contextlib.contextmanager
    def mark(phase: str) -> Iterator[None]:
        with recorder.mark(phase):
            yield
        if phase == "data":
            recorder.hold("input", tree_leaves(loop.batch))
        elif phase == "backward":
            recorder.hold("gradients", [parameter.grad for parameter in loop.model.parameters()])
        elif phase == "update":
            recorder.hold("optimizer_state", _states(loop))

    weights = (*loop.model.parameters(), *loop.model.buffers())
    recorder.hold("weights", [tensor for tensor in weights if not is_lazy(tensor)])
    recorder.hold("optimizer_state", _states(loop))
    with recorder:
        loop.iteration(mark)
    return recorder.ended()


def _states(loop: "Loop") -> list[Any]:
    return tree_leaves([list(optimizer.state.values()) for optimizer in loop.optimizers])
