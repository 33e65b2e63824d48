"""Allocation trace of an iteration: the operator that allocated each block of memory, and the time of its free."""

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from torch._C import DispatchKey
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from charact.core.memory_curve import Block
from charact.execution.running_layer import RunningLayer
from charact.measure.memory_estimate.fake_operators import (
    COMPOSITE,
    in_place_in_backward,
    is_cast_whole,
    is_composite,
    least_references,
    run,
)
from charact.measure.memory_estimate.operator_memory import OperatorCall, call_of
from charact.measure.passes.memory_pass import dense_parts

if TYPE_CHECKING:
    from charact.execution.loop import Loop

_LINEAR = torch.ops.aten.linear.default
_READ = torch.ops.aten._local_scalar_dense.default
_SPARSE = {torch.ops.aten._embedding_bag_backward.default, torch.ops.aten.clone.default, torch.ops.aten.detach.default,
           torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors.default}
"""Operators whose sparse results have a size that does not depend on values."""
_COUNTS = (torch.ops.aten.sum.default, torch.ops.aten.sum.dim_IntList)


@dataclass(slots=True)
class Op:
    """One call of a dispatched operator."""

    name: str
    phase: str
    layer: str | None
    input_shapes: tuple[tuple[int, ...], ...] = ()
    made: tuple[int, ...] = ()
    """Indices of the blocks that it allocated."""
    item_bytes: int = 0
    """Element size of its first floating-point input; 0 without one."""
    library: str | None = None
    """Library that computes a convolution on this CPU."""
    call: OperatorCall | None = None
    """The call, if it may allocate memory inside."""
    end: int = 0
    """Moment at which it has ended."""


@dataclass
class AllocationTrace:
    """One iteration. Its moments are numbers of allocations, releases and ends of operators, from 1."""

    blocks: list[Block] = field(default_factory=list)
    """Blocks in order of allocation; a block is the memory of one storage."""
    ops: list[Op] = field(default_factory=list)
    num_moments: int = 0

    def next_moment(self) -> int:
        """Return a new moment."""
        self.num_moments += 1
        return self.num_moments


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode that records an allocation trace of the iteration of `layer`'s model, on fake or real tensors."""

    def __init__(self, layer: RunningLayer) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._layer = layer
        self._phase: str = "other"
        self.masks_are_full: Callable[[], bool] = lambda: True
        """Answer if a program asks whether all values of a fake tensor are true, as of a mask without padding."""
        self._composite: Any = None
        """Composite operator that is being decomposed."""
        self._autocasts = [False]
        """Whether autocast is on, in each context that the program has entered."""
        self._is_cast = False
        """Whether autocast has converted the inputs of that operator, or of one around it."""
        self._index_of: dict[int, int] = {}
        """Block index by address of a live storage's object."""
        self.trace = AllocationTrace()
        least_references()

    def hold(self, category: str, values: Iterable[Any]) -> None:
        """Set the category of tensors' storages; unknown storages count as allocated before the iteration."""
        for value in values:
            for part in _tensors(value):
                block = self.trace.blocks[self._number(part, None)]
                if part is value or block.phase == "backward":  # the rows of a sparse gradient may be the batch's own
                    block.category = category

    def begin(self) -> None:
        """Begin an iteration: live storages become blocks allocated before it."""
        old = self.trace
        self._layer.forget()
        self.trace = AllocationTrace()
        for address, number in self._index_of.items():
            self._index_of[address] = len(self.trace.blocks)
            self.trace.blocks.append(Block(old.blocks[number].num_bytes, old.blocks[number].category))

    def ended(self) -> AllocationTrace:
        """End the iteration and return its trace, with a category for every block."""
        for block in self.trace.blocks:
            if block.category == "temporary" and block.phase in ("forward", "loss", "sample"):
                block.category = "activations"
            elif block.category == "temporary" and block.death is None:
                block.category = "unknown"
        return self.trace

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Record the operators called in the context, and whether autocast is on: the dispatch mode cannot know."""
        enter: Any = torch.autocast.__enter__
        leave: Any = torch.autocast.__exit__

        def entered(context: torch.autocast) -> Any:
            result = enter(context)
            self._autocasts.append(torch.is_autocast_enabled("cpu"))
            return result

        def left(context: torch.autocast, *error: Any) -> Any:
            self._autocasts.pop()
            return leave(context, *error)

        with mock.patch.multiple(torch.autocast, __enter__=entered, __exit__=left), self:
            yield

    @contextlib.contextmanager
    def mark(self, phase: str) -> Iterator[None]:
        """Attribute operators in the context to a phase."""
        self._phase = phase
        yield
        self._phase = "other"

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.prim.device.default and isinstance(args[0], FakeTensor):
            return args[0].fake_device  # autograd queries it for every gradient
        if func.namespace in ("prim", "profiler"):  # queries and annotations
            return func(*args, **kwargs)
        if is_composite(func):
            return self._decompose(func, args, kwargs)
        if self._composite is _LINEAR and func is torch.ops.aten.add.Tensor:
            func = torch.ops.aten.add_.Tensor  # what linear calls outside of any dispatch mode
        if func is _READ and hasattr(args[0], "_all_are_true"):
            return self.masks_are_full()
        func = in_place_in_backward(func, args, kwargs)
        op = Op(f"{func.namespace}::{func._overloadpacket.__name__}", self._phase_now(), self._layer.name())
        self.trace.ops.append(op)
        op.call = call_of(func, args, kwargs)
        outputs = run(func, args, kwargs)
        if func not in _SPARSE and any(leaf.layout == torch.sparse_coo for leaf in tree_leaves(outputs)
                                       if isinstance(leaf, torch.Tensor)):
            raise NotImplementedError(f"{func} returns a SparseTensorImpl of unknown size")
        if func in _COUNTS and args[0].dtype == torch.bool:
            outputs._most_true = args[0].numel()
        elif func is torch.ops.aten.all.default or (
                func is torch.ops.aten.eq.Scalar and getattr(args[0], "_most_true", None) == args[1]):
            outputs._all_are_true = True  # whether all values of a mask are
        # Outside of composite operators, PyTorch makes it a view of the parameter afterwards, which it refuses then.
        is_inner = self._composite is not None and torch.is_inference_mode_enabled()
        if is_inner and func.is_view and args[0].requires_grad:
            outputs.requires_grad_()  # as without a dispatch mode: `matmul` then joins batch axes instead of copying
        op.library = library_of(func, args, kwargs)
        inputs = _tensors((args, kwargs))
        given, first_new = {tensor.untyped_storage()._cdata for tensor in inputs}, len(self.trace.blocks)
        # A view of an unknown storage, such as that of a data set, allocates nothing.
        numbers = [self._number(tensor, op.phase) for tensor in _tensors(outputs)
                   if tensor.untyped_storage()._cdata not in given]
        op.made = tuple(dict.fromkeys(number for number in numbers if number >= first_new))
        op.input_shapes = tuple(tuple(tensor.shape) for tensor in inputs)
        op.item_bytes = next((tensor.itemsize for tensor in inputs if tensor.is_floating_point()), 0)
        op.end = self.trace.next_moment()
        return outputs

    def _decompose(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a composite operator's parts; inference mode would keep it whole.

        `decompose` would use Python decompositions, which make copies. A dispatch mode turns autocast off, which
        converts the inputs of parts, unless it has converted those of the whole.
        """
        outer = self._composite, self._is_cast
        self._composite, self._is_cast = func, self._is_cast or is_cast_whole(func)
        try:
            is_off = self._is_cast or not self._autocasts[-1]
            with self, torch._C._SetExcludeDispatchKeyGuard(DispatchKey.AutocastCPU, is_off):
                return func._op_dk(COMPOSITE, *args, **kwargs)
        finally:
            self._composite, self._is_cast = outer

    def _phase_now(self) -> str:
        return self._phase

    def _number(self, tensor: torch.Tensor, phase: str | None) -> int:
        storage = tensor.untyped_storage()
        address = storage._cdata
        number = self._index_of.get(address)
        if number is None:
            number = self._index_of[address] = len(self.trace.blocks)
            birth = None if phase is None else self.trace.next_moment()
            self.trace.blocks.append(Block(storage.nbytes(), phase=phase, birth=birth))
            weakref.finalize(storage, self._record_free, address).atexit = False
        return number

    def _record_free(self, address: int) -> None:
        if (number := self._index_of.pop(address, None)) is not None:  # a storage may be resized to nothing before
            self.trace.blocks[number].death = self.trace.next_moment()


def _tensors(values: Any) -> list[torch.Tensor]:
    """Return the tensors with a storage among the values: of a sparse tensor, its indices and values."""
    leaves = [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]
    return [part for leaf in leaves for part in (dense_parts(leaf) if leaf.layout == torch.sparse_coo else [leaf])]


def record_iteration(loop: "Loop", recorder: Recorder) -> AllocationTrace:
    """Record one iteration of a loop, with a category for each block.

    Weights, gradients and optimizer state are identified by the loop's model and optimizers; the batch is input; what a
    generation keeps is its cache; other blocks allocated in the forward pass or the loss are activations; all others
    are temporary.
    """
    recorder.begin()

    @contextlib.contextmanager
    def mark(phase: str) -> Iterator[None]:
        with recorder.mark(phase):
            yield
        if phase == "data":
            recorder.hold("input", tree_leaves(loop.batch))
        elif phase == "forward":
            recorder.hold("kv_cache", loop.cache())
        elif phase == "backward":
            recorder.hold("gradients", [parameter.grad for parameter in loop.model.parameters()])
        elif phase == "update":
            recorder.hold("optimizer_state", _states(loop))

    weights = (*loop.model.parameters(), *loop.model.buffers())
    recorder.hold("weights", [tensor for tensor in weights if not is_lazy(tensor)])
    recorder.hold("optimizer_state", _states(loop))
    recorder.hold("kv_cache", loop.cache())
    with recorder.recording():
        loop.iteration(mark)
    return recorder.ended()


def _states(loop: "Loop") -> list[Any]:
    return tree_leaves([list(optimizer.state.values()) for optimizer in loop.optimizers])


_NAMES = {"convolution", "convolution_backward", "conv1d", "conv2d", "conv3d"}
_PLACES = {1: ((1,), (0,)), 2: ((1, 1), (0, 0)), 3: ((1, 1, 1), (0, 0, 0))}
"""Default stride or dilation, and padding, by number of dimensions."""


def library_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Return PyTorch's convolution backend; None for other operators, or if it cannot be determined.

    PyTorch uses its own kernels for small layers with one image at a time, and oneDNN for most others.
    """
    if func._overloadpacket.__name__ not in _NAMES:
        return None
    given = {argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)} | kwargs
    ones, zeros = _PLACES[given["input"].dim() - 2]
    padding = given.get("padding", zeros)
    if isinstance(padding, str):
        return None
    return _library(
        tuple(given["input"].shape), tuple(given["weight"].shape), given["input"].dtype,
        tuple(given.get("stride", ones)), tuple(padding), tuple(given.get("dilation", ones)),
        given.get("transposed", False), tuple(given.get("output_padding", zeros)), given.get("groups", 1),
        torch.get_num_threads())


@lru_cache(maxsize=4096)
def _library(shape: tuple[int, ...], weight: tuple[int, ...], dtype: torch.dtype, stride: tuple[int, ...],
             padding: tuple[int, ...], dilation: tuple[int, ...], transposed: bool, output_padding: tuple[int, ...],
             groups: int, num_threads: int) -> str:
    with unset_fake_temporarily():
        one = torch.zeros(1, dtype=dtype)  # expanded: no memory
        backend: Any = torch._C._select_conv_backend(
            one.expand(shape), one.expand(weight), None, stride, padding, dilation, transposed, output_padding, groups)
    return str(backend.name)
