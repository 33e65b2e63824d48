"""A brick's file: what it holds, and reading it with nothing taken on trust."""

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
_PICTURE_AXES = 4
LARGEST_WHOLE_BYTES = 64 * 1024
"""Integer tensors up to this size are kept as they are."""


def brick_to_json(brick: Brick) -> dict[str, Json]:
    """The brick as its file holds it; its id is the file's name."""
    return {**content(brick), "written": sorted(brick.written), "context_bytes": brick.context_bytes}


def brick_from_json(entry: Json) -> Brick:
    """A brick from what its file holds, with the id that its content gives it.

    Raises:
        ValueError: it is no brick, or its values are not numbered as a brick's are.
    """
    try:
        brick = identified(_read(entry))
        _check_numbers(brick)
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    return brick


def _check_numbers(brick: Brick) -> None:
    """Refuse values that nobody makes, and numbers that were left out."""
    known = set(range(len(brick.inputs)))
    for layer in brick.layers:
        _expect(known.issuperset(layer.inputs), f"{layer.operator} reads what nobody makes")
        for value in layer.outputs:
            _expect(value is None or value <= len(known), f"{layer.operator} makes values out of order")
            if value is not None:
                known.add(value)
    _expect(known.issuperset(brick.outputs), "it gives what it does not make")
    _expect(brick.written <= set(range(len(brick.inputs))), "it writes to what is no input")
    if brick.kind == "update":
        _expect(len(brick.layers) == len(brick.inputs) == 1, "an update is one layer with one input")
        _expect(isinstance(brick.layers[0].kwargs.get("options"), dict), "an update has no options")


def _expect(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(what)


def _read(entry: Any) -> Brick:
    _expect(entry["kind"] in ("sequence", "update", "gradient_sum"), "it is of no known kind")
    _expect(entry["mode"] in MODES, "it is of no known mode")
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
    _expect(of.dtype in ITEM_BYTES and entry["kind"] in _INPUT_KINDS, "an input is of no known kind")
    _check_sample(entry["sample"], of)
    return BrickInput(entry["kind"], of, entry["requires_grad"] is True, entry["sample"], repeated)


def _check_sample(sample: Any, of: TensorType) -> None:
    """Refuse what no sketch of values is: see `values`."""
    _expect(isinstance(sample, dict) and sample.keys() <= _SAMPLE_KEYS, "an input's sample is no sketch of values")
    how = _HOW.intersection(sample)
    _expect(len(how) == 1 or how == {"low", "high"}, "an input's sample says in no one way how to draw values")
    if "quantiles" in sample:
        values = sample["quantiles"]
        _expect(isinstance(values, list) and 0 < len(values) <= _MOST_QUANTILES and all(map(_is_number, values)),
                "an input's quantiles are no numbers")
    if "constant" in sample:
        _expect(_is_number(sample["constant"]) or sample["constant"] in _NOT_FINITE, "an input's constant is no number")
    if "weight" in sample:
        _expect(sample["weight"] in ("normal", "positive"), "an input's weights are of no known kind")
    if "whole" in sample:
        _expect(isinstance(sample["whole"], str) and of.num_bytes <= LARGEST_WHOLE_BYTES,
                "an input's integers are no text, or too many")
    if how == {"low", "high"}:
        ends = sample["low"], sample["high"]
        _expect(all(type(each) is int and -(2**63) <= each < 2**63 - 1 for each in ends) and ends[0] <= ends[1],
                "an input's integers are in no range")
    for key, names in (("infinite", {"-inf", "inf"}), ("alike", {"channel", "neighbours"})):
        shares = sample.get(key, {})
        _expect(isinstance(shares, dict) and shares.keys() <= names and all(map(_is_number, shares.values())),
                f"an input's sample has wrong shares: {key}")
    if "alike" in sample:
        _expect(len(sample["alike"]) == 2 and len(of.shape) == _PICTURE_AXES, "an input that is no picture is alike")


def _is_number(thing: Any) -> bool:
    return type(thing) in (int, float) and abs(thing) <= sys.float_info.max


def _read_layer(entry: Any) -> Layer:
    _expect(isinstance(entry["args"], list) and isinstance(entry["kwargs"], dict), "arguments are a list and a dict")
    _expect(len(entry["operator"].split(".")) == 3, f"{entry['operator']} is no operator's name")
    made = [None if value is None else _wholes([value])[0] for value in entry["outputs"]]
    return Layer(entry["operator"], entry["args"], entry["kwargs"], tuple(made), entry["several"] is True)


def _text(thing: Any) -> str:
    _expect(isinstance(thing, str), f"{thing!r} is no text")
    return str(thing)


def _wholes(things: Iterable[Any]) -> tuple[int, ...]:
    found = tuple(things)
    _expect(all(type(each) is int and 0 <= each < 2**63 for each in found), f"{list(found)[:8]} are no counts")
    return found

