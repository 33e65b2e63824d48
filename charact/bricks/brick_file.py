"""A brick's file: what it holds, and reading it with nothing taken on trust."""

from collections.abc import Iterable
from typing import Any

from charact.bricks.brick import Brick, BrickInput, content, identified
from charact.bricks.model import ITEM_BYTES, Json, Layer, TensorType
from charact.schema import MODES

_INPUT_KINDS = ("activation", "weight", "buffer", "constant")


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
    _expect(isinstance(entry["sample"], dict), "an input's sample is a dict")
    return BrickInput(entry["kind"], of, entry["requires_grad"] is True, entry["sample"], repeated)


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
    _expect(all(type(each) is int and each >= 0 for each in found), f"{list(found)} are no counts")
    return found

