"""Compositions: which bricks make which model, and how they are joined. They are private: no part of a suite."""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, TypedDict

import msgspec

from charact.bricks.brick import Brick, gradient_sum_brick, leaves_bytes, runs_as, update_brick
from charact.bricks.captured_graph import CapturedModel
from charact.bricks.cut import Piece, written_before
from charact.bricks.reuse_distance import contexts_of, rounded
from charact.bricks.suite.json_files import file_bytes, strict_json
from charact.core.errors import UserError
from charact.core.files import write_text
from charact.record.schema import MODES, PRECISIONS

SCHEMA_VERSION = 1
_LONGEST_NAME = 200
"""Bytes of a file's name; file systems take 255."""

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Source = tuple[Count, Count]
"""A piece, and which of its brick's outputs."""


class OwnFacts(TypedDict, total=False):
    """How a model of the user's own was made."""

    model_args: str
    input_spec: str | None
    loss: str | None
    optimizer: str
    learning_rate: float


class Facts(TypedDict, total=False):
    """What else is known of a model."""

    asked_as: str
    """What the user named: a workload, `package.module:factory`, or a file."""
    seed: Count
    input_kind: str | None
    source: str | None
    own: OwnFacts


@dataclass(frozen=True)
class PlacedBrick:
    """A brick where it stands in a model."""

    brick: str
    inputs: tuple[Source | None, ...]
    """Where each input of the brick comes from; None of weights, buffers, constants and the model's own input."""
    modules: tuple[str, ...]
    """Qualified names of the modules whose layers it holds."""
    after: tuple[Count, ...] = ()
    """Pieces that must have run before, for what is written in place: see `cut.written_before`."""


@dataclass(frozen=True)
class Configuration:
    """What was captured: one case of a model, without the device."""

    case: str
    """Identifier of the model's case, without the device."""
    model: str
    variant: str | None
    input_size: Count | None
    batch_size: Count | None
    mode: str
    precision: str
    facts: Facts = field(default_factory=Facts)
    """What else is known of the model, such as its kind of input."""


@dataclass(frozen=True, kw_only=True)
class Composition(Configuration):
    """A model as bricks, in the order in which they run."""

    g: Count
    method: str
    captured_by: str
    num_parameters: Count
    num_layers: Count
    num_module_calls: Count
    weights_bytes: Count
    input_bytes: Count | None = None
    """Bytes of the model's own input; None in files of earlier versions, which do not tell."""
    pieces: tuple[PlacedBrick, ...]
    updates: tuple[tuple[str, Count], ...]
    """Bricks of optimizer steps, with how many parameters each stands for."""
    gradient_sums: tuple[tuple[str, Count], ...]
    """Bricks of sums of gradients, each with how many: a value that n pieces read needs n - 1."""
    outputs: tuple[Source | None, ...]
    """Where the model's results come from; None of one that no piece makes."""
    schema_version: int = SCHEMA_VERSION


def compose(captured: CapturedModel, pieces: Sequence[Piece], bricks: Sequence[Brick], what: Configuration, g: int,
            method: str) -> tuple[Composition, list[Brick]]:
    """Join the bricks that stand at a model's pieces; in training with its updates and sums of gradients.

    Returns:
        the composition, and the bricks of updates and sums.
    """
    made_by = {value: (number, place) for number, piece in enumerate(pieces)
               for place, value in enumerate(piece.outputs)}  # fmt: skip
    placed = tuple(
        PlacedBrick(brick.id, tuple(made_by.get(value) for value in piece.inputs), _modules(captured, piece), after)
        for piece, brick, after in zip(pieces, bricks, written_before(captured, pieces), strict=True)
    )
    context, precision = rounded(contexts_of(captured).total), runs_as(what.precision)
    updates = [update_brick(update, precision, context) for update in captured.updates]
    sums = [gradient_sum_brick(captured.types[value], precision, context)
            for value in _summed_gradients(captured, pieces)]  # fmt: skip
    composition = Composition(
        **vars(what), g=g, method=method, captured_by=captured.captured_by, num_parameters=captured.num_parameters,
        num_layers=len(captured.layers), num_module_calls=captured.num_module_calls,
        weights_bytes=leaves_bytes(captured, "weight", "buffer"), input_bytes=leaves_bytes(captured, "input"),
        pieces=placed, updates=_counted(updates), gradient_sums=_counted(sums),
        outputs=tuple(made_by.get(value) for value in captured.outputs),
    )  # fmt: skip
    return composition, [*updates, *sums]


def _modules(captured: CapturedModel, piece: Piece) -> tuple[str, ...]:
    return tuple(dict.fromkeys(captured.layers[index].module for index in piece.layers))


def _summed_gradients(captured: CapturedModel, pieces: Sequence[Piece]) -> list[int]:
    """Values whose gradients are summed between pieces, once for each sum."""
    readers = Counter(value for piece in pieces for value in piece.inputs
                      if value in captured.requires_grad and captured.requires_grad.intersection(piece.outputs))
    return [value for value, num_readers in readers.items() for _ in range(num_readers - 1)]


def _counted(bricks: Sequence[Brick]) -> tuple[tuple[str, int], ...]:
    return tuple(Counter(brick.id for brick in bricks).items())


def write_composition(composition: Composition, directory: Path) -> bool:
    """Write a composition into the private directory, under the name of its case.

    Returns:
        whether it took the place of another one.
    """
    path, text = directory / f"{_file_name(composition.case)}.json", json.dumps(asdict(composition), indent=1)
    replaces = path.exists() and path.read_text(encoding="utf-8", errors="replace") != text
    write_text(path, text)
    return replaces


def _file_name(case: str) -> str:
    """The case itself, unless that is longer than file systems take: then its beginning, and a hash."""
    if len(case.encode()) <= _LONGEST_NAME:
        return case
    return f"{case.encode()[:_LONGEST_NAME // 2].decode(errors='ignore')}-{hashlib.sha256(case.encode()).hexdigest()}"


def load_compositions(directory: Path) -> list[Composition]:
    """Compositions of a private directory, in the order of their cases.

    Raises:
        UserError: there are none, or one cannot be read.
    """
    found = [read_composition(path) for path in sorted(directory.glob("*.json"))]
    if not found:
        raise UserError(f"no compositions in {directory}: charact bricks generate writes them")
    return found


def read_composition(path: Path) -> Composition:
    """Read one composition.

    Raises:
        UserError: it is newer than this charact, or broken.
    """
    try:
        entry = strict_json(file_bytes(path, f"there is no composition {path}"))
        newer = entry["schema_version"] > SCHEMA_VERSION
        composition = None if newer else _read(entry)
    except (ValueError, LookupError, TypeError, RecursionError, msgspec.ValidationError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise UserError(f"{path} is no composition ({reason}): generate the suite anew") from error
    if composition is None:
        raise UserError(f"{path} has schema version {entry['schema_version']}, this charact reads up to "
                        f"{SCHEMA_VERSION}: update charact")  # fmt: skip
    return composition


def _read(entry: dict[str, Any]) -> Composition:
    if unknown := set(entry) - {each.name for each in fields(Composition)}:
        raise ValueError(f"it has an unknown {min(unknown)!r}")
    composition = msgspec.convert(entry, Composition)
    if composition.mode not in MODES or composition.precision not in PRECISIONS:
        raise ValueError(f"it is of no known mode and precision: {composition.mode}, {composition.precision}")
    for text in _shown(composition):
        if not text.isprintable():
            raise ValueError(f"it has a text that cannot be shown: {ascii(text)[:80]}")
    for number, sources in enumerate([*(piece.inputs for piece in composition.pieces), composition.outputs]):
        if any(source is not None and not source[0] < number for source in sources):
            raise ValueError(f"piece {number} reads what no earlier piece makes")
    if any(not before < number for number, piece in enumerate(composition.pieces) for before in piece.after):
        raise ValueError("a piece comes after one that is not before it")
    return composition


def _shown(composition: Composition) -> list[str]:
    """Texts that users are asked to judge, or to type: control characters could hide a part of them."""
    facts = composition.facts
    found = (composition.case, composition.model, composition.variant, facts.get("asked_as"),
             *facts.get("own", OwnFacts()).values())
    return [each for each in found if isinstance(each, str)]
