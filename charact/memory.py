"""Memory estimates before a run: how much memory training or inference needs, and whether it fits a device."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from charact.core.errors import UserError
from charact.record.manifest_passes import Pass

if TYPE_CHECKING:
    import pandas as pd

    from charact.measure.memory_estimate.estimator import MemoryEstimate
    from charact.measure.memory_estimate.target_devices import Target
    from charact.workload.base import Workload


@dataclass
class Estimate:
    """Estimated memory of an iteration on a device."""

    name: str
    device: str
    """Name of the device."""
    _target: "Target" = field(repr=False)
    _predict: "Callable[[Target], MemoryEstimate]" = field(repr=False)
    _estimate: "MemoryEstimate" = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._estimate = self._predict(self._target)

    @property
    def peak_bytes(self) -> int:
        """Peak memory in PyTorch's allocator."""
        return self._estimate.peak_bytes

    @property
    def low_bytes(self) -> int:
        """Lower bound of the peak."""
        return self._estimate.low_bytes

    @property
    def high_bytes(self) -> int:
        """Upper bound of the peak."""
        return self._estimate.high_bytes

    @property
    def needed_bytes(self) -> int:
        """Memory that the device needs: the upper bound, on CUDA with the allocator's reserve and the context."""
        return self._estimate.needed_bytes

    @property
    def facts(self) -> dict[str, Any]:
        """Parts and uncertainty of the estimate, as in a run's manifest for the pass `prediction`."""
        of_pass = {field.name for field in msgspec.structs.fields(Pass)}
        return {name: msgspec.to_builtins(value) for name, value in msgspec.structs.asdict(self._estimate.facts).items()
                if name not in of_pass}

    @property
    def composition(self) -> "pd.DataFrame":
        """Bytes at the peak. Columns: phase, layer, operator, category, origin (as in the table `memory`), bytes."""
        return self._table("peak")

    @property
    def phases(self) -> "pd.DataFrame":
        """Bytes at the peak of each phase. Columns as in `composition`."""
        return self._table("phase_peak")

    def fits(self, device: str | int | None = None) -> bool:
        """Return whether a device has enough memory; by default the estimate's own device.

        Args:
            device: a device's name ("a100-80gb"), an amount of memory ("16GiB", or bytes), "cpu" or "cuda".

        Raises:
            UserError: there is no such device, or its memory is not known.
        """
        target = self._target if device is None else target_of(device, self._target.kind)
        if target.memory_bytes is None:
            raise UserError(f"the memory of {target.name} is not known: give it, as in fits('16GiB')")
        is_same = (target.kind, target.capability) == (self._target.kind, self._target.capability)
        return (self._estimate if is_same else self._predict(target)).needed_bytes <= target.memory_bytes

    def _table(self, kind: str) -> "pd.DataFrame":
        import pandas as pd

        columns = ["phase", "layer", "operator", "category", "origin", "bytes"]
        rows = [row for row in self._estimate.rows if row["kind"] == kind and row["bytes"]]
        return pd.DataFrame(rows, columns=columns)

    def __str__(self) -> str:
        from charact.views.tables.format import num_bytes

        return (f"{self.name} on {self.device}: peak {num_bytes(self.peak_bytes)} "
                f"({num_bytes(self.low_bytes)} to {num_bytes(self.high_bytes)}), "
                f"the device needs {num_bytes(self.needed_bytes)}")

    def _repr_html_(self) -> str:
        from html import escape

        return f"<p>{escape(str(self))}</p>{self.composition.to_html(index=False)}"


def estimate(what: "str | Workload | Callable[[], Any]", *, input_size: int | None = None,
             batch_size: int | None = None, mode: str = "train", precision: str = "fp32", variant: str | None = None,
             device: str | int = "cpu", input_spec: str | None = None, model_args: str = "", loss: str | None = None,
             optimizer: str = "SGD", learning_rate: float = 0.01, parallel: str | None = None,
             num_ranks: int = 1, output_size: int | None = None, cache: str | None = None,
             attention: str | None = None, lora_rank: int = 0) -> Estimate:
    """Estimate the memory of an iteration, without running it and without the device.

    Args:
        what: a workload or its name; `package.module:factory` of your model, with `input_spec`; or a function without
            arguments that creates model, optimizer and inputs, and returns a function that runs one iteration. It uses
            fake tensors, which have no values and need no memory.
        input_size: size in pixels, or sequence length; not for a function. Default: the workload's.
        batch_size: samples; not for a function. Default: the workload's.
        mode: "train", "infer", "prefill" or "decode"; not for a function. The peak of a generation is the larger one of
            "prefill" and "decode".
        precision: as in `charact profile`; not for a function.
        variant: variant of the workload's model.
        device: a device's name ("a100-80gb"), an amount of memory of a CUDA device ("16GiB", or bytes), or "cpu" or
            "cuda" of this machine.
        input_spec: your model's inputs, as in `charact profile --model`.
        model_args: arguments of your model, as in "depth=50".
        loss: as in `charact profile --loss`.
        optimizer: a class of torch.optim, for your model.
        learning_rate: of that optimizer.
        parallel: "ddp" or "fsdp2", to estimate rank 0 of `num_ranks`; not for a function. Nothing runs on several
            processes. FSDP2 shards each repeated block of the model, then the rest.
        num_ranks: ranks that train together, each with a batch of `batch_size`. On a CPU they share this process's
            threads, as those of `charact profile` do.
        output_size: words that a generation appends to each prompt of `input_size` words. Default: 32.
        cache: how a generation keeps keys and values: "static", "growing", "int8" or "none". Default: the workload's.
        attention: backend of attention, as in `charact profile --attention`. Default: PyTorch's choice.
        lora_rank: rank of the adapters that a training trains instead of the weights; 0 without adapters.

    Raises:
        UserError: a name, size or number is invalid, options exclude each other, FSDP2 cannot shard the model, or the
            model needs an operator that fake tensors do not support (the message names it).
    """
    from charact.measure.memory_estimate.estimator import Estimator, estimate_function

    target = target_of(device, "cuda")
    if not isinstance(what, str) and callable(what):
        name = getattr(what, "__qualname__", type(what).__name__)
        return Estimate(name, target.name, target, partial(estimate_function, what, name))
    import torch

    from charact.datasets._common.request import DataRequest
    from charact.execution.case import cases_of
    from charact.record.schema import ATTENTION, CACHES, GENERATING_MODES, MODES, PARALLEL, PRECISIONS
    from charact.workload.registry import find_workload
    from charact.workload.user_model.input_spec import parse_input_spec
    from charact.workload.user_model.model import own_model

    if not isinstance(what, str):
        workload = what.prepare(variant)
    elif ":" not in what:
        workload = find_workload(what).prepare(variant)
    elif input_spec is None:
        raise UserError(f"{what} needs input_spec, as in input_spec='3xSxS -> int64[1000]'")
    else:
        workload = own_model(what, model_args, parse_input_spec(input_spec), loss, optimizer, learning_rate).prepare()
    if (parallel is None) != (num_ranks == 1) or num_ranks < 1:
        raise UserError("parallel and num_ranks go together: give both, with 2 ranks or more, or neither")
    for value, known, option in ((mode, MODES, "mode"), (precision, PRECISIONS, "precision"),
                                 (parallel or PARALLEL[0], PARALLEL, "parallel"), (cache or CACHES[0], CACHES, "cache"),
                                 (attention, [None, *ATTENTION], "attention")):
        if value not in known:
            raise UserError(f"{option} '{value}' is not one of {', '.join(map(str, known))}")
    if mode in GENERATING_MODES and not workload.generates:
        raise UserError(f"{workload.name} does not generate: choose mode train or infer")
    if mode not in GENERATING_MODES and (output_size is not None or cache is not None):
        raise UserError(f"output_size and cache are for generation: choose mode {' or '.join(GENERATING_MODES)}")
    if mode in GENERATING_MODES and output_size is not None and output_size < (fewest := 1 + (mode == "decode")):
        raise UserError(f"output_size {output_size} is too small: {mode} needs at least {fewest}")
    if lora_rank < 0 or (lora_rank and (mode != "train" or parallel is not None)):
        raise UserError("lora_rank is 0 or more, and adapters are for training without parallel")
    (case,) = cases_of(
        workload, [input_size or workload.default_input_size], [batch_size or workload.default_batch_size], [mode],
        [precision], [] if output_size is None else [output_size], [] if cache is None else [cache], [attention],
        [lora_rank], device=torch.device("cpu"), data=DataRequest(), parallel=parallel, num_ranks=num_ranks)
    case.check_size()
    return Estimate(workload.name, target.name, target, lambda target: Estimator(target).estimate(case))


def target_of(device: str | int, kind: Any) -> "Target":
    """Return the device with a name, or a device of this kind with an amount of memory.

    Raises:
        UserError: there is no such device.
    """
    from charact.machine.facts import resolve_device
    from charact.measure.memory_estimate.target_devices import parse_memory, target_like, target_of_memory, this_device

    if isinstance(device, int):
        return target_of_memory(parse_memory(str(device)), kind)
    if device.strip()[:1].isdigit():
        return target_of_memory(parse_memory(device), kind)
    if device == "auto" or device.partition(":")[0] in ("cpu", "cuda"):
        return this_device(resolve_device(device))
    return target_like(device)
