"""A case on fake tensors: the allocation trace of its iteration at any input and batch size, without allocations."""

import contextlib
import itertools
import logging
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
    unset_fake_temporarily,
)
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten
from torch.utils.data import default_collate

from charact.core.errors import UserError
from charact.execution.batches import Batches
from charact.execution.case import Case
from charact.execution.fake_tensors import fake_case, fake_loop, fake_tensors
from charact.execution.precision import PRECISIONS
from charact.execution.running_layer import RunningLayer
from charact.measure.memory_estimate.allocation_trace import AllocationTrace, Recorder, record_iteration
from charact.measure.memory_estimate.ranks import Buckets, RankRecorder, shard_of
from charact.record.schema import GENERATING_MODES
from charact.workload.base import Workload

_SIGNS = (
    (r"(\.numpy\(\)) is not supported|annot access (data pointer)", "its {} reads values, which do not exist"),
    (r"convert all Tensors to FakeTensors first(?s:.*) Found in ([\w.]+)",
     "its operator {} gets a tensor created outside of the function: create it inside"),
    (r"got mixed torch.Tensor and (DTensor)", "it uses a weight outside of the module that FSDP2 gathers it for"),
    (r"fail_on_recompile'.* function name: '(.+?)'",
     "its function {} is compiled by torch.compile, whose kernels allocate other tensors"),
    (r"SparseTensorImpl()", "it creates sparse tensors, whose size depends on values"),
    (r"linked with support for cuda|compiled with(?:out)? CUDA|no NVIDIA driver|CUDA generator without|'_cuda_?[a-z]"
     r"|initialize CUDA|requires CUDA support|dummy base class|NVTX functions|access accelerator device",
     "it calls CUDA's runtime, which this machine does not have"),
    (r"(UninitializedParameter)", "it has lazy layers: give them their sizes"),
    (r"(?:no fake impl registered for|Could not run) .*?(\w+::\w+)", "its operator {} has no fake kernel"),
)
"""Patterns of PyTorch's errors on fake tensors, and their messages for users."""

_NOT_USERS = (str(Path(torch.__file__).parent), str(Path(__file__).parents[2]), sysconfig.get_path("stdlib"))
"""Folders of code that is not the user's."""


class CannotEstimate(UserError):
    """A model cannot run on fake tensors, so its memory cannot be estimated."""


class FakeProgram:
    """The loop of a case on fake tensors; the case's device determines the implementation of optimizers.

    Raises:
        CannotEstimate: the model reads values of tensors, or has an operator without a fake kernel.
    """

    def __init__(self, case: Case) -> None:
        self._case = case
        with _errors_of(case), fake_tensors(case) as self._fake:
            self._loop = fake_loop(case, _fake_batches(case), self._fake, shard_of(case))
            self._buckets = Buckets(self._loop.model) if case.parallel == "ddp" else None
            layer = RunningLayer(self._loop.model)
            self._recorder = Recorder(layer) if case.parallel is None else RankRecorder(layer)
            self._recorder.masks_are_full = partial(_has_full_masks, case)
        self._warm = False
        self._carries = type(case.workload).start_epoch is not Workload.start_epoch or case.mode in GENERATING_MODES

    def trace(self, case: Case) -> AllocationTrace:
        """Record the allocation trace of a warm iteration at the case's input and batch size; of a decoding, the last.

        Raises:
            CannotEstimate: as above.
        """
        with _errors_of(case), fake_tensors(case, self._fake):
            self._loop.feed(_fake_batches(case))
            if self._carries or not self._warm:  # state between iterations exists after the first
                self._record()
                self._warm = True
            return self._record()

    def _record(self) -> AllocationTrace:
        self._loop.place(1.0)  # only a recorder answers the conditions of eager transformers
        with eager_transformers():
            if not isinstance(self._recorder, RankRecorder):
                return record_iteration(self._loop, self._recorder)
            with self._recorder.resizing():
                self._recorder.hold("communication_buffers", self._buckets.held if self._buckets else [])
                return record_iteration(self._loop, self._recorder)


def weight_shapes(case: Case) -> list[tuple[int, ...]] | None:
    """Return the shapes of the case's parameters and buffers; None if they depend on values or inputs."""
    dataset = fake_case(case).dataset()
    try:
        with torch.device("meta"):
            model = case.model(case.workload.prepare(case.workload.variant), dataset)
        return [tuple(tensor.shape) for tensor in (*model.parameters(), *model.buffers())]
    except (RuntimeError, NotImplementedError):
        return None


@contextlib.contextmanager
def eager_transformers() -> Iterator[None]:
    """Let Hugging Face's transformers choose masks as outside of a compiler, for which it takes fake tensors."""
    library, name = sys.modules.get("transformers.utils.import_utils"), "is_fake_tensor"
    with (mock.patch.object(library, name, return_value=False) if hasattr(library, name) else contextlib.nullcontext()):
        yield


@contextlib.contextmanager
def cannot_estimate_errors(name: str, remedy: str = "run it with --measure") -> Iterator[None]:
    """Convert errors of fake tensors to `CannotEstimate` with a one-line reason; suppress PyTorch's log."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    was_off, log.disabled = log.disabled, True
    try:
        yield
    except (AssertionError, AttributeError, NotImplementedError, RuntimeError, TypeError) as error:
        why = _why(error)
        if why is None:
            raise
        frames = [frame for frame in traceback.extract_tb(error.__traceback__)
                  if not frame.filename.startswith(_NOT_USERS)]
        place = f" (line {frames[-1].lineno} of {Path(frames[-1].filename).name})" if frames else ""
        raise CannotEstimate(f"the memory of {name} cannot be estimated: {why}{place}; {remedy}") from error
    finally:
        log.disabled = was_off


def _errors_of(case: Case) -> contextlib.AbstractContextManager[None]:
    if case.parallel is None:
        return cannot_estimate_errors(case.workload.name)
    return cannot_estimate_errors(f"{case.workload.name} under {case.parallel}", "estimate it without --parallel")


def _why(error: Exception) -> str | None:
    operator = getattr(error, "func", None)
    if isinstance(error, (DataDependentOutputException, DynamicOutputShapeException)):
        return f"its operator {operator} depends on values, not only on shapes"
    if isinstance(error, UnsupportedOperatorException):
        return f"its operator {operator} has no fake kernel"
    for sign, why in _SIGNS:
        if found := re.search(sign, str(error)):
            return why.format(next(filter(None, found.groups()), "").replace("::", "."))
    return None


def _fake_batches(case: Case) -> Iterator[Any]:
    """Yield batches with the shapes and dtypes of the case's first batch, fake inside of a fake mode.

    Like real batches, they are converted to the case's type of weights if that differs. For CUDA, the host does this.
    """
    leaves, structure = tree_flatten(_first_batch(case))
    alike = [(leaf.shape, leaf.dtype) if isinstance(leaf, torch.Tensor) else None for leaf in leaves]
    dtype = PRECISIONS[fake_case(case).precision].weights

    def fake(leaf: Any, layout: tuple[torch.Size, torch.dtype] | None) -> Any:
        if layout is None:
            return leaf
        shape, own = layout
        if not own.is_floating_point:
            return torch.empty(shape, dtype=own)
        return torch.empty(shape, dtype=own if case.device.type == "cpu" else dtype).to(dtype)

    return (tree_unflatten([fake(*pair) for pair in zip(leaves, alike, strict=True)], structure)
            for _ in itertools.count())


def _has_full_masks(case: Case) -> bool:
    """Return whether the masks among the inputs, integers of zeros and ones for each position, are all ones."""
    with unset_fake_temporarily():
        batch = _first_batch(case) if case.workload.input_kind == "sequence" else fake_case(case).dataset()[0]
        leaves = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor) and leaf.dim()]
        masks = [leaf for leaf in leaves if not leaf.is_floating_point() and bool(((leaf == 0) | (leaf == 1)).all())]
        return all(bool(mask.all()) for mask in masks if mask.dim() > 1 or case.workload.input_kind != "sequence")


def _first_batch(case: Case) -> Any:
    """Return the case's first batch; images are fake, since they all have one shape and may exceed the memory."""
    dataset = fake_case(case).dataset()
    if case.workload.input_kind == "sequence":
        with unset_fake_temporarily():
            batches = Batches(fake_case(case), dataset, shuffle=case.training, whole=True)
            return next(batches.first(case.data.seed))
    with unset_fake_temporarily():
        sample = dataset[0]

    def fake(leaf: Any) -> Any:
        return torch.empty(leaf.shape, dtype=leaf.dtype) if isinstance(leaf, torch.Tensor) else leaf

    collate: Callable[[list[Any]], Any] = getattr(dataset, "collate", None) or default_collate
    return collate([tree_map(fake, sample)] * case.batch_size)
