"""A brick's file: its JSON format, and a reader that validates every field."""

import sys
from collections.abc import Iterable
from typing import Any

from charact.bricks.brick import Brick, BrickInput, content, identified
from charact.bricks.captured_graph import ITEM_BYTES, Json, Layer, TensorType
from charact.record.schema import MODES

_INPUT_KINDS = ("activation", "weight", "buffer", "constant")
_HOW = frozenset(["quantiles", "constant", "weight", "whole", "low", "high"])
_SAMPLE_KEYS = _HOW | {"infinite", "alike"}
_NOT_FINITE = ({"float": "inf"}, {"float": "-inf"}, {"float": "nan"})
_MOST_QUANTILES = 1024
_IMAGE_AXES = 4
LARGEST_WHOLE_BYTES = 64 * 1024
"""Maximum size of integer tensors that are stored exactly (bytes)."""


def brick_to_json(brick: Brick) -> dict[str, Json]:
    """Convert a brick to the JSON of its file; its id is the file's name."""
    return {**content(brick), "written": sorted(brick.written), "context_bytes": brick.context_bytes}


def brick_from_json(entry: Json) -> Brick:
    """Read a brick from the JSON of its file, and compute its id.

    Raises:
        ValueError: it is not a brick, or its value indices are invalid.
    """
    try:
        brick = identified(_read(entry))
        _check_numbers(brick)
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    return brick


def _check_numbers(brick: Brick) -> None:
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


def _read(entry: Any) -> Brick:
    _expect(entry["kind"] in ("sequence", "update", "gradient_sum"), "it is of an unknown kind")
    _expect(entry["mode"] in MODES, "it is of an unknown mode")
    return Brick(
        id="", kind=entry["kind"], mode=entry["mode"], precision=_text(entry["precision"]),
        inputs=tuple(_read_input(each) for each in entry["inputs"]),
        layers=tuple(_read_layer(each) for each in entry["layers"]),
        outputs=_wholes(entry["outputs"]), written=frozenset(_wholes(entry["written"])),
        context_bytes=_wholes([entry["context_bytes"]])[0],
    )  # fmt: skip


def _read_input(entry: Any) -> BrickInput:
    (repeated,) = (None,) if entry["repeated"] is None else _wholes([entry["repeated"]])
    of = TensorType(_text(entry["dtype"]), _wholes(entry["shape"]), _wholes(entry["stride"]))
    _expect(len(of.shape) == len(of.stride), "an input has as many strides as dimensions")
    _expect(of.dtype in ITEM_BYTES and entry["kind"] in _INPUT_KINDS, "an input is of an unknown kind")
    _check_sample(entry["sample"], of)
    return BrickInput(entry["kind"], of, entry["requires_grad"] is True, entry["sample"], repeated)


def _check_sample(sample: Any, of: TensorType) -> None:
    """Raise an error for an invalid value distribution: see `value_distributions`."""
    _expect(isinstance(sample, dict) and sample.keys() <= _SAMPLE_KEYS, 
                "an input's sample is not a value distribution")
    how = _HOW.intersection(sample)
    _expect(len(how) == 1 or how == {"low", "high"}, "an input's sample is not exactly one kind of value distribution")
    if "quantiles" in sample:
        values = sample["quantiles"]
        _expect(isinstance(values, list) and 0 < len(values) <= _MOST_QUANTILES and all(map(_is_number, values)),
                "an input's quantiles are not numbers")
    if "constant" in sample:
        _expect(_is_number(sample["constant"]) or sample["constant"] in _NOT_FINITE,
                "an input's constant is not a number")
    if "weight" in sample:
        _expect(sample["weight"] in ("normal", "positive"), "an input's weights are of an unknown kind")
    if "whole" in sample:
        _expect(isinstance(sample["whole"], str) and of.num_bytes <= LARGEST_WHOLE_BYTES,
                "an input's integers are not a string, or too many")
    if how == {"low", "high"}:
        ends = sample["low"], sample["high"]
        _expect(all(type(each) is int and -(2**63) <= each < 2**63 - 1 for each in ends) and ends[0] <= ends[1],
                "an input's integers have an invalid range")
    for key, names in (("infinite", {"-inf", "inf"}), ("alike", {"channel", "neighbours"})):
        shares = sample.get(key, {})
        _expect(isinstance(shares, dict) and shares.keys() <= names and all(map(_is_number, shares.values())),
                f"an input's sample has invalid values: {key}")
    if "alike" in sample:
        _expect(len(sample["alike"]) == 2 and len(of.shape) == _IMAGE_AXES,
                "an input that is not an image has a spatial correlation")


def _is_number(thing: Any) -> bool:
    return type(thing) in (int, float) and abs(thing) <= sys.float_info.max


def _read_layer(entry: Any) -> Layer:
    _expect(isinstance(entry["args"], list) and isinstance(entry["kwargs"], dict), "arguments are a list and a dict")
    _expect(len(entry["operator"].split(".")) == 3, f"{entry['operator']} is not an operator's name")
    made = [None if value is None else _wholes([value])[0] for value in entry["outputs"]]
    return Layer(entry["operator"], entry["args"], entry["kwargs"], tuple(made), entry["several"] is True)


def _text(thing: Any) -> str:
    _expect(isinstance(thing, str), f"{thing!r} is not a string")
    return str(thing)


def _wholes(things: Iterable[Any]) -> tuple[int, ...]:
    found = tuple(things)
    _expect(all(type(each) is int and 0 <= each < 2**63 for each in found), f"{list(found)[:8]} are not counts")
    return found

