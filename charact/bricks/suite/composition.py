"""Compositions: the bricks of a model and the connections between them. They are private, not part of a suite."""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, TypedDict

import msgspec

from charact.bricks.brick import Brick, gradient_sum_brick, leaves_bytes, runs_as, update_brick
from charact.bricks.captured_graph import CapturedModel, Segment, next_power_of_two, reuse_distances, written_before
from charact.bricks.suite.index import file_bytes, strict_json
from charact.core.errors import UserError
from charact.core.files import write_text
from charact.record.schema import MODES, PRECISIONS

SCHEMA_VERSION = 1
_LONGEST_NAME = 200
"""Maximum length of a file's name (bytes); file systems allow 255."""

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Source = tuple[Count, Count]
"""Index of a segment, and index of its brick's output."""


class OwnFacts(TypedDict, total=False):
    """Arguments that built a user's own model."""

    model_args: str
    input_spec: str | None
    loss: str | None
    optimizer: str
    learning_rate: float


class Facts(TypedDict, total=False):
    """Additional facts about a model."""

    asked_as: str
    """Name given by the user: a workload, `package.module:factory`, or a file."""
    seed: Count
    input_kind: str | None
    source: str | None
    own: OwnFacts


@dataclass(frozen=True)
class PlacedBrick:
    """A brick at one place of a model."""

    brick: str
    inputs: tuple[Source | None, ...]
    """Source of each input of the brick; None for weights, buffers, constants and the model's input."""
    modules: tuple[str, ...]
    """Qualified names of the modules that its layers belong to."""
    after: tuple[Count, ...] = ()
    """Segments that must run before because of in-place writes: see `cut.written_before`."""


@dataclass(frozen=True)
class Configuration:
    """The captured case of a model, without the device."""

    case: str
    """Identifier of the model's case, without the device."""
    model: str
    variant: str | None
    input_size: Count | None
    batch_size: Count | None
    mode: str
    precision: str
    facts: Facts = field(default_factory=Facts)
    """Additional facts about the model, such as its kind of input."""


@dataclass(frozen=True, kw_only=True)
class Composition(Configuration):
    """A model as bricks, in execution order."""

    g: Count
    method: str
    captured_by: str
    num_parameters: Count
    num_layers: Count
    num_module_calls: Count
    weights_bytes: Count
    input_bytes: Count | None = None
    """Bytes of the model's input; None in files of earlier versions."""
    pieces: tuple[PlacedBrick, ...]
    updates: tuple[tuple[str, Count], ...]
    """Bricks of optimizer steps, each with its number of parameters."""
    gradient_sums: tuple[tuple[str, Count], ...]
    """Bricks of gradient sums, each with its number of sums: a value that n segments read needs n - 1."""
    outputs: tuple[Source | None, ...]
    """Sources of the model's outputs; None for an output that no segment computes."""
    schema_version: int = SCHEMA_VERSION


def compose(captured: CapturedModel, segments: Sequence[Segment], bricks: Sequence[Brick], what: Configuration, g: int,
            method: str) -> tuple[Composition, list[Brick]]:
    """Compose the bricks of a model's segments; in training with updates and gradient sums.

    Returns:
        The composition, and the bricks of updates and gradient sums.
    """
    made_by = {value: (number, place) for number, segment in enumerate(segments)
               for place, value in enumerate(segment.outputs)}  # fmt: skip
    placed = tuple(
        PlacedBrick(brick.id, tuple(made_by.get(value) for value in segment.inputs), _modules(captured, segment), after)
        for segment, brick, after in zip(segments, bricks, written_before(captured, segments), strict=True)
    )
    context, precision = next_power_of_two(reuse_distances(captured).total), runs_as(what.precision)
    updates = [update_brick(update, precision, context) for update in captured.updates]
    sums = [gradient_sum_brick(captured.types[value], precision, context)
            for value in _summed_gradients(captured, segments)]  # fmt: skip
    composition = Composition(
        **vars(what), g=g, method=method, captured_by=captured.captured_by, num_parameters=captured.num_parameters,
        num_layers=len(captured.layers), num_module_calls=captured.num_module_calls,
        weights_bytes=leaves_bytes(captured, "weight", "buffer"), input_bytes=leaves_bytes(captured, "input"),
        pieces=placed, updates=_counted(updates), gradient_sums=_counted(sums),
        outputs=tuple(made_by.get(value) for value in captured.outputs),
    )  # fmt: skip
    return composition, [*updates, *sums]


def _modules(captured: CapturedModel, segment: Segment) -> tuple[str, ...]:
    return tuple(dict.fromkeys(captured.layers[index].module for index in segment.layers))


def _summed_gradients(captured: CapturedModel, segments: Sequence[Segment]) -> list[int]:
    """Return the values whose gradients are summed between segments, once for each sum."""
    readers = Counter(value for segment in segments for value in segment.inputs
                      if value in captured.requires_grad and captured.requires_grad.intersection(segment.outputs))
    return [value for value, num_readers in readers.items() for _ in range(num_readers - 1)]


def _counted(bricks: Sequence[Brick]) -> tuple[tuple[str, int], ...]:
    return tuple(Counter(brick.id for brick in bricks).items())


def write_composition(composition: Composition, directory: Path) -> bool:
    """Write a composition into the private directory, named after its case.

    Returns:
        Whether it replaced a different composition.
    """
    path, text = directory / f"{_file_name(composition.case)}.json", json.dumps(asdict(composition), indent=1)
    replaces = path.exists() and path.read_text(encoding="utf-8", errors="replace") != text
    write_text(path, text)
    return replaces


def _file_name(case: str) -> str:
    """Return the case, or its beginning and a hash if it is too long for a file name."""
    if len(case.encode()) <= _LONGEST_NAME:
        return case
    return f"{case.encode()[:_LONGEST_NAME // 2].decode(errors='ignore')}-{hashlib.sha256(case.encode()).hexdigest()}"


def load_compositions(directory: Path) -> list[Composition]:
    """Read the compositions of a private directory, sorted by case.

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
        UserError: it is newer than this version of charact, or damaged.
    """
    try:
        entry = strict_json(file_bytes(path, f"there is no composition {path}"))
        newer = entry["schema_version"] > SCHEMA_VERSION
        composition = None if newer else _read(entry)
    except (ValueError, LookupError, TypeError, RecursionError, msgspec.ValidationError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise UserError(f"{path} is not a composition ({reason}): generate the suite again") from error
    if composition is None:
        raise UserError(f"{path} has schema version {entry['schema_version']}, this charact reads up to "
                        f"{SCHEMA_VERSION}: update charact")  # fmt: skip
    return composition


def _read(entry: dict[str, Any]) -> Composition:
    if unknown := set(entry) - {each.name for each in fields(Composition)}:
        raise ValueError(f"it has the unknown key {min(unknown)!r}")
    composition = msgspec.convert(entry, Composition)
    if composition.mode not in MODES or composition.precision not in PRECISIONS:
        raise ValueError(f"it has an unknown mode or precision: {composition.mode}, {composition.precision}")
    for text in _shown(composition):
        if not text.isprintable():
            raise ValueError(f"it has a text with unprintable characters: {ascii(text)[:80]}")
    for number, sources in enumerate([*(piece.inputs for piece in composition.pieces), composition.outputs]):
        if any(source is not None and not source[0] < number for source in sources):
            raise ValueError(f"segment {number} reads a value that no earlier segment computes")
    if any(not before < number for number, piece in enumerate(composition.pieces) for before in piece.after):
        raise ValueError("a segment depends on a later one")
    return composition


def _shown(composition: Composition) -> list[str]:
    """Return the texts shown to users, in which control characters could hide a part."""
    facts = composition.facts
    found = (composition.case, composition.model, composition.variant, facts.get("asked_as"),
             *facts.get("own", OwnFacts()).values())
    return [each for each in found if isinstance(each, str)]
