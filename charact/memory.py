"""Memory before anything runs: how much a training or an inference will hold, and whether it fits a device."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from charact.core.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

    from charact.measure.memory_estimate.estimator import Prediction
    from charact.measure.memory_estimate.target_devices import Target
    from charact.workload.base import Workload


@dataclass
class Estimate:
    """What an iteration will hold on a device, and on others when asked."""

    name: str
    device: str
    """Name of the device that it is predicted for."""
    _target: "Target" = field(repr=False)
    _predict: "Callable[[Target], Prediction]" = field(repr=False)
    _made: "Prediction" = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._made = self._predict(self._target)

    @property
    def peak_bytes(self) -> int:
        """The most that is held through PyTorch's allocator at a time."""
        return self._made.peak_bytes

    @property
    def low_bytes(self) -> int:
        """The least that the peak can be, as stated."""
        return self._made.low_bytes

    @property
    def high_bytes(self) -> int:
        """The most that the peak can be, as stated."""
        return self._made.high_bytes

    @property
    def needed_bytes(self) -> int:
        """What the device must have: at the high end, on CUDA with what its allocator keeps and the context takes."""
        return self._made.needed_bytes

    @property
    def facts(self) -> dict[str, Any]:
        """What the prediction is made of and how sure it is, as a run's manifest has it of the pass `prediction`."""
        return dict(self._made.facts)

    @property
    def composition(self) -> "pd.DataFrame":
        """Bytes at the peak. Columns: phase, layer, operator, category, origin (as in the table `memory`), bytes."""
        return self._table("peak")

    @property
    def phases(self) -> "pd.DataFrame":
        """The same at the peak of each phase."""
        return self._table("phase_peak")

    def fits(self, device: str | int | None = None) -> bool:
        """Whether a device has what is needed: the estimate's own where none is given.

        Args:
            device: a name of the table ("a100-80gb"), an amount of memory ("16GiB", or bytes), "cpu" or "cuda".

        Raises:
            UserError: there is no such device.
        """
        target = self._target if device is None else target_of(device, self._target.kind)
        if target.memory_bytes is None:
            raise UserError(f"how much memory {target.name} has is not known: say it, as in fits('16GiB')")
        return self._on(target).needed_bytes <= target.memory_bytes

    def _on(self, target: "Target") -> "Prediction":
        alike = (target.kind, target.capability) == (self._target.kind, self._target.capability)
        return self._made if alike else self._predict(target)

    def _table(self, kind: str) -> "pd.DataFrame":
        import pandas as pd

        columns = ["phase", "layer", "operator", "category", "origin", "bytes"]
        rows = [row for row in self._made.rows if row["kind"] == kind and row["bytes"]]
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
             optimizer: str = "SGD", learning_rate: float = 0.01) -> Estimate:
    """Predict the memory of an iteration, without running it and without the device.

    Args:
        what: a workload or its name; `package.module:factory` of your model, with `input_spec`; or a function of no
            arguments that makes model, optimizer and inputs, and returns a function that runs one iteration. It sees
            fake tensors, which take no memory and have no values.
        input_size: side in pixels, or sequence length; not for a function. Default: the workload's.
        batch_size: samples; not for a function. Default: the workload's.
        mode: "train" or "infer"; not for a function.
        precision: as in `charact profile`; not for a function.
        variant: form of the workload's model.
        device: a name of the table ("a100-80gb"), an amount of memory ("16GiB", or bytes: of a CUDA device), "cpu" or
            "cuda" (the one of this machine).
        input_spec: what your model is fed, as in `charact profile --model`.
        model_args: what it is called with, as in "depth=50".
        loss: as in `charact profile --loss`.
        optimizer: a class of torch.optim, for your model.
        learning_rate: of that optimizer.

    Raises:
        UserError: a name or size is wrong, or the model does on fake tensors what only real ones can (the message
            names the operator).
    """
    target = target_of(device, "cuda")
    if not isinstance(what, str) and callable(what):
        name = getattr(what, "__qualname__", type(what).__name__)
        return Estimate(name, target.name, target, _of_function(what, name))
    workload = _workload(what, variant, input_spec, model_args, loss, optimizer, learning_rate)
    return Estimate(workload.name, target.name, target, _of_workload(workload, input_size, batch_size, mode, precision))


def target_of(device: str | int, kind: Any) -> "Target":
    """The device that a name or an amount of memory tells; a mere amount is of a device of that kind.

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


def _workload(what: "str | Workload", variant: str | None, input_spec: str | None, model_args: str, loss: str | None,
              optimizer: str, learning_rate: float) -> "Workload":
    from charact.workload.registry import find_workload
    from charact.workload.user_model.input_spec import parse_input_spec
    from charact.workload.user_model.model import own_model

    if not isinstance(what, str):
        return what.prepare(variant)
    if ":" not in what:
        return find_workload(what).prepare(variant)
    if input_spec is None:
        raise UserError(f"tell what {what} is fed with input_spec, as in input_spec='3xSxS -> int64[1000]'")
    return own_model(what, model_args, parse_input_spec(input_spec), loss, optimizer, learning_rate).prepare()


def _of_workload(workload: "Workload", input_size: int | None, batch_size: int | None, mode: str, precision: str
                 ) -> "Callable[[Target], Prediction]":
    import torch

    from charact.datasets._common.request import DataRequest
    from charact.execution.case import Case
    from charact.measure.memory_estimate.estimator import Predictor
    from charact.record.schema import MODES, PRECISIONS

    for value, known, option in ((mode, MODES, "mode"), (precision, PRECISIONS, "precision")):
        if value not in known:
            raise UserError(f"{option} '{value}' is not one of {', '.join(known)}")
    case = Case(workload, input_size or workload.default_input_size, batch_size or workload.default_batch_size, mode,
                precision, torch.device("cpu"), DataRequest())
    case.check_size()
    return lambda target: Predictor(target).predict(case)


def _of_function(build: "Callable[[], Any]", name: str) -> "Callable[[Target], Prediction]":
    from charact.measure.memory_estimate.estimator import predict_function

    return lambda target: predict_function(build, name, target)
