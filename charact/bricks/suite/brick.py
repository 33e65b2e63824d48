"""A brick: a short sequence of operators with the types of its inputs, identified by a hash of its computation.

The hash does not cover names of models and modules, the order of segments, or weight values.
"""

import hashlib
import json
import stat
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from charact.bricks.suite.captured_graph import ITEM_BYTES, CapturedModel, Count, Json, Layer, TensorType, Update
from charact.bricks.suite.layer_sequences import Segment
from charact.core.bounded_reading import read_all
from charact.core.errors import UserError

_Content = TypeVar("_Content")

@dataclass(frozen=True, kw_only=True)
class BrickInput(TensorType):
    """A tensor that a brick reads but does not compute."""

    kind: Literal["activation", "weight", "buffer", "constant"]
    """A model's own input is an activation."""
    requires_grad: bool
    sample: Json
    """Distribution that its values are drawn from, see `value_distributions`; not part of the identity."""
    repeated: Count | None
    """Index of the earlier input whose storage it shares, or None."""


def input_of(of: TensorType, kind: str, *, sample: Json, requires_grad: bool = False, repeated: int | None = None
             ) -> BrickInput:
    """Return an input of a type."""
    return BrickInput(dtype=of.dtype, shape=of.shape, stride=of.stride, kind=kind,  # type: ignore[arg-type]
                      requires_grad=requires_grad, sample=sample, repeated=repeated)


@dataclass(frozen=True, kw_only=True)
class Brick:
    """Layers over indexed values: first the inputs in the order of their first use, then each layer's outputs.

    A brick's file has all fields except the id, which is the file's name.
    """

    id: str = ""
    kind: Literal["sequence", "update", "gradient_sum"]
    mode: Literal["train", "infer"]
    precision: str
    """`tf32`, or `fp32` for all others: autocast's casts are layers, and the inputs carry their own dtypes."""
    inputs: tuple[BrickInput, ...]
    layers: tuple[Layer, ...]
    outputs: tuple[Count, ...]
    """Values that other bricks read, or that the model returns."""
    written: frozenset[Count]
    """Indices of the inputs that it changes in place."""
    context_bytes: Count
    """Reuse distance of its weights (bytes) in the first model it was found in, see `reuse_distance`. Not part of the
    identity."""

    @property
    def layer_types(self) -> list[str]:
        """Return the names of its operators, without namespace and overload."""
        return [layer.operator.split(".")[1] for layer in self.layers]

    @property
    def num_layers(self) -> int:
        """Return the number of operators that it calls."""
        return len(self.layers)

    @property
    def weights_bytes(self) -> int:
        """Return the bytes of the weights and buffers that it reads."""
        return sum(each.num_bytes for each in self.inputs if each.kind in ("weight", "buffer"))


def brick_of(captured: CapturedModel, segment: Segment, mode: str, precision: str, context_bytes: int) -> Brick:
    """Return the brick of a model's segment, whose weights have the reuse distance `context_bytes`.

    `written` follows from the operators' schemas and from which values shared a storage during capture.
    """
    numbers = {value: number for number, value in enumerate(segment.inputs)}
    layers = []
    for index in segment.layers:
        layer = captured.layers[index].renamed(numbers.__getitem__)
        outputs = tuple(None if value is None else numbers.setdefault(value, len(numbers)) for value in layer.outputs)
        layers.append(replace(layer, outputs=outputs, module="", writes=()))
    storages = [captured.views.get(value, value) for value in segment.inputs]
    written = {captured.views.get(value, value) for index in segment.layers
               for value in captured.layers[index].writes}
    inputs = tuple(
        input_of(captured.types[value], captured.leaves.get(value, "input").replace("input", "activation"),
                 requires_grad=value in captured.requires_grad, sample=captured.samples[value],
                 repeated=next((first for first in range(number) if storages[first] == storages[number]), None))
        for number, value in enumerate(segment.inputs)
    )  # fmt: skip
    return identified(Brick(
        kind="sequence", mode=mode, precision=precision, inputs=inputs, layers=tuple(layers),  # type: ignore[arg-type]
        outputs=tuple(sorted(numbers[value] for value in segment.outputs)), context_bytes=context_bytes,
        written=frozenset(number for number, storage in enumerate(storages) if storage in written)))


def runs_as(precision: str) -> str:
    """Return the precision that the bricks of a model in `precision` run in."""
    return "tf32" if precision == "tf32" else "fp32"


def leaves_bytes(captured: CapturedModel, *kinds: str) -> int:
    """Return the total bytes of a model's leaves, the values that no layer computes, of some kinds.

    `kinds`: 'input', 'weight', 'buffer' or 'constant'.
    """
    held = (value for value, kind in captured.leaves.items() if kind in kinds)
    return sum(captured.types[value].num_bytes for value in held)


def update_brick(update: Update, precision: str, context_bytes: int) -> Brick:
    """Return the brick of an optimizer step for one parameter; `context_bytes` as in `Brick`."""
    layer = Layer("charact.update.default", [{"value": 0}],
                  {"optimizer": update.optimizer, "options": dict(update.options)}, (), False)  # fmt: skip
    weight = input_of(update.type, "weight", sample={"weight": "normal"})
    return identified(Brick(kind="update", mode="train", precision=precision, inputs=(weight,), layers=(layer,),
                            outputs=(), written=frozenset({0}), context_bytes=context_bytes))


def gradient_sum_brick(of: TensorType, precision: str, context_bytes: int) -> Brick:
    """Return the brick that sums two gradients of a value; a value with n readers needs n - 1 such sums."""
    layer = Layer("aten.add.Tensor", [{"value": 0}, {"value": 1}], {}, (2,), False)
    gradient = input_of(of, "activation", sample={"weight": "normal"})
    return identified(Brick(kind="gradient_sum", mode="infer", precision=precision, inputs=(gradient, gradient),
                            layers=(layer,), outputs=(2,), written=frozenset(), context_bytes=context_bytes))


def canonical(thing: Json) -> str:
    """Return canonical JSON: sorted keys, no spaces."""
    return json.dumps(thing, sort_keys=True, separators=(",", ":"), allow_nan=False)


def identified(brick: Brick) -> Brick:
    """Return the brick with its id: a hash of its computation, 16 hexadecimal digits.

    Values are not part of it. Shared storage of inputs counts only if the brick writes in place.
    """
    entry = brick_to_json(brick)
    del entry["written"], entry["context_bytes"]
    for each in entry["inputs"]:
        del each["sample"]
        if not brick.written:
            del each["repeated"]
    return replace(brick, id=hashlib.sha256(canonical(entry).encode()).hexdigest()[:16])


def brick_to_json(brick: Brick) -> dict[str, Any]:
    """Convert a brick to the JSON of its file; its id is the file's name."""
    return {
        "kind": brick.kind, "mode": brick.mode, "precision": brick.precision,
        "inputs": [dict(vars(each)) for each in brick.inputs],
        "layers": [{name: getattr(layer, name) for name in ("operator", "args", "kwargs", "outputs", "several")}
                   for layer in brick.layers],
        "outputs": brick.outputs, "written": sorted(brick.written), "context_bytes": brick.context_bytes,
    }  # fmt: skip


LARGEST_WHOLE_BYTES = 64 * 1024
"""Maximum size of integer tensors that are stored exactly (bytes)."""
_IMAGE_AXES = 4
_Integer = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 2)]


class _Special(msgspec.Struct, forbid_unknown_fields=True):
    float: Literal["inf", "-inf", "nan"]


class _Alike(msgspec.Struct, forbid_unknown_fields=True):
    channel: float
    neighbours: float


class _Sample(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A value distribution: see `value_distributions`."""

    quantiles: Annotated[list[float], msgspec.Meta(min_length=1, max_length=1024)] | UnsetType = UNSET
    constant: float | _Special | UnsetType = UNSET
    weight: Literal["normal", "positive"] | UnsetType = UNSET
    whole: str | UnsetType = UNSET
    low: _Integer | UnsetType = UNSET
    high: _Integer | UnsetType = UNSET
    infinite: dict[Literal["-inf", "inf"], float] | UnsetType = UNSET
    alike: _Alike | UnsetType = UNSET


def brick_from_json(entry: Json) -> Brick:
    """Read a brick from the JSON of its file, and compute its id.

    Raises:
        ValueError: it is not a brick, or its value indices are invalid.
    """
    try:
        brick = msgspec.convert(entry, Brick)
        brick = replace(brick, layers=tuple(replace(layer, module="", writes=()) for layer in brick.layers))
        for each in brick.inputs:
            _check_input(each)
        _check_values(brick)
        return identified(brick)
    except (TypeError, OverflowError) as error:  # an index of another type, or a number beyond all floats
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _check_input(of: BrickInput) -> None:
    sample = msgspec.convert(of.sample, _Sample)
    _expect(len(of.shape) == len(of.stride), "an input has as many strides as dimensions")
    _expect(of.dtype in ITEM_BYTES, "an input has an unknown dtype")
    how = {"quantiles", "constant", "weight", "whole", "low", "high"}.intersection(of.sample)
    _expect(how == {"low", "high"} or (len(how) == 1 and not how & {"low", "high"}),
            "an input's sample is not exactly one kind of value distribution")
    if isinstance(sample.low, int) and isinstance(sample.high, int):
        _expect(sample.low <= sample.high, "an input's integers have an invalid range")
    _expect("whole" not in how or of.num_bytes <= LARGEST_WHOLE_BYTES, "an input has too many exact integers")
    _expect("alike" not in of.sample or len(of.shape) == _IMAGE_AXES,
            "an input that is not an image has a spatial correlation")


def _check_values(brick: Brick) -> None:
    """Raise an error for values that no layer computes, and for gaps in the indices."""
    known = set(range(len(brick.inputs)))
    for layer in brick.layers:
        _expect(known.issuperset(layer.inputs), f"{layer.operator} reads an undefined value")
        for value in layer.outputs:
            _expect(value is None or value <= len(known), f"{layer.operator} defines values out of order")
            if value is not None:
                known.add(value)
    _expect(known.issuperset(brick.outputs), "it returns an undefined value")
    _expect(brick.written <= set(range(len(brick.inputs))), "it writes to a value that is not an input")
    if brick.kind == "update":
        _expect(len(brick.layers) == len(brick.inputs) == 1, "an update is one layer with one input")
        _expect(isinstance(brick.layers[0].kwargs.get("options"), dict), "an update has no options")


def _expect(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(what)


def literals(brick: Brick) -> list[float]:
    """Return the numbers among the arguments of a brick's operators, such as strides and groups, in order."""
    return [number for layer in brick.layers for thing in (layer.args, layer.kwargs) for number in _numbers(thing)]


def _numbers(thing: Json) -> list[float]:
    if isinstance(thing, (bool, int, float)):
        return [float(thing)]
    if isinstance(thing, dict):
        return [] if "value" in thing else [each for key in sorted(thing) for each in _numbers(thing[key])]
    return [each for part in thing for each in _numbers(part)] if isinstance(thing, (list, tuple)) else []


MOST_FILE_BYTES = 256 * 2**20
"""Maximum file size (bytes); the index of 100,000 bricks takes about 40 MiB."""


def file_bytes(path: Path, missing: str) -> bytes:
    """Return the content of a regular file."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would block
            raise UserError(f"{path} is not a regular file: copy the suite again")
        with path.open("rb") as file:
            return read_all(file, path, MOST_FILE_BYTES)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UserError(missing) from error
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise UserError(f"cannot read {path} ({reason}): copy the suite again") from error


def parsed(path: Path, data: bytes, read: Callable[[Any], _Content], what: str = "part of a suite",
           remedy: str = "copy the suite again, or generate it again") -> _Content:
    """Parse the JSON of a file from others, and convert it by `read`; any error is one line with its remedy."""
    try:
        return read(msgspec.json.decode(data))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{path} is not {what} ({type(error).__name__}: {error}): {remedy}") from error
