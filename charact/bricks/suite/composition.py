"""Compositions: the bricks of a model and the connections between them. They are private, not part of a suite."""

import json
import math
import secrets
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, TypedDict

import msgspec

from charact.bricks.suite.brick import (
    Brick,
    brick_of,
    file_bytes,
    gradient_sum_brick,
    leaves_bytes,
    parsed,
    runs_as,
    update_brick,
)
from charact.bricks.suite.captured_graph import CapturedModel
from charact.bricks.suite.layer_sequences import cut, next_power_of_two, reuse_distances, written_before
from charact.core.errors import UserError
from charact.core.files import file_name, write_text
from charact.record.schema import MODES, PRECISIONS

SCHEMA_VERSION = 1

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
    """Segments that must run before because of in-place writes: see `written_before`."""


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
    captured_by: str = "dispatch"
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


def write_composition(composition: Composition, directory: Path) -> bool:
    """Write a composition into the private directory, named after its case.

    Returns:
        Whether it replaced a different composition.
    """
    path, text = directory / f"{file_name(composition.case)}.json", json.dumps(asdict(composition), indent=1)
    replaces = path.exists() and path.read_text(encoding="utf-8", errors="replace") != text
    write_text(path, text)
    return replaces


def load_compositions(directory: Path) -> list[Composition]:
    """Read the compositions of a private directory, sorted by case."""
    found = [read_composition(path) for path in sorted(directory.glob("*.json"))]
    if not found:
        raise UserError(f"no compositions in {directory}: charact bricks generate writes them")
    return found


def read_composition(path: Path) -> Composition:
    """Read one composition."""
    data = file_bytes(path, f"there is no composition {path}")
    return parsed(path, data, lambda entry: _read(path, entry), "a composition", "generate the suite again")


def _read(path: Path, entry: dict[str, Any]) -> Composition:
    if entry["schema_version"] > SCHEMA_VERSION:
        raise UserError(f"{path} has schema version {entry['schema_version']}, this charact reads up to "
                        f"{SCHEMA_VERSION}: update charact")
    if unknown := set(entry) - {each.name for each in fields(Composition)}:
        raise ValueError(f"it has the unknown key {min(unknown)!r}")
    composition = msgspec.convert(entry, Composition)
    if composition.mode not in MODES or composition.precision not in PRECISIONS:
        raise ValueError(f"it has an unknown mode or precision: {composition.mode}, {composition.precision}")
    facts = composition.facts
    for text in (composition.case, composition.model, composition.variant, facts.get("asked_as"),
                 *facts.get("own", OwnFacts()).values()):  # shown to users: control characters could hide a part
        if isinstance(text, str) and not text.isprintable():
            raise ValueError(f"it has a text with unprintable characters: {ascii(text)[:80]}")
    for number, sources in enumerate([*(piece.inputs for piece in composition.pieces), composition.outputs]):
        if any(source is not None and not source[0] < number for source in sources):
            raise ValueError(f"segment {number} reads a value that no earlier segment computes")
    if any(not before < number for number, piece in enumerate(composition.pieces) for before in piece.after):
        raise ValueError("a segment depends on a later one")
    return composition


@dataclass(frozen=True)
class CutModel:
    """A model cut into bricks, not yet in a suite."""

    composition: Composition
    bricks: tuple[Brick, ...]
    """Distinct bricks."""


def cut_model(captured: CapturedModel, what: Configuration, g: int, method: str) -> CutModel:
    """Cut a captured model into bricks; in training with updates and gradient sums.

    A value that n segments read has n - 1 gradient sums. A brick that occurs several times gets the mixture of its
    value distributions.
    """
    from charact.bricks import value_distributions  # imported late: it imports torch

    segments, distances, precision = cut(captured, g, method), reuse_distances(captured), runs_as(what.precision)
    bricks = [brick_of(captured, segment, what.mode, precision, distances.of(segment)) for segment in segments]
    context = next_power_of_two(distances.total)
    updates = [update_brick(update, precision, context) for update in captured.updates]
    num_readers = Counter(value for segment in segments for value in segment.inputs
                          if value in captured.requires_grad and captured.requires_grad.intersection(segment.outputs))
    sums = [gradient_sum_brick(captured.types[value], precision, context)
            for value, number in num_readers.items() for _ in range(number - 1)]
    made_by = {value: (number, place) for number, segment in enumerate(segments)
               for place, value in enumerate(segment.outputs)}  # fmt: skip
    pieces = tuple(
        PlacedBrick(brick.id, tuple(made_by.get(value) for value in segment.inputs),
                    tuple(dict.fromkeys(captured.layers[index].module for index in segment.layers)), after)
        for segment, brick, after in zip(segments, bricks, written_before(captured, segments), strict=True))
    composition = Composition(
        **vars(what), g=g, method=method, num_parameters=captured.num_parameters,
        num_layers=len(captured.layers), num_module_calls=captured.num_module_calls,
        weights_bytes=leaves_bytes(captured, "weight", "buffer"), input_bytes=leaves_bytes(captured, "input"),
        pieces=pieces, updates=tuple(Counter(brick.id for brick in updates).items()),
        gradient_sums=tuple(Counter(brick.id for brick in sums).items()),
        outputs=tuple(made_by.get(value) for value in captured.outputs))
    by_id: dict[str, list[Brick]] = {}
    for brick in [*bricks, *updates, *sums]:
        by_id.setdefault(brick.id, []).append(brick)
    return CutModel(composition, tuple(
        replace(same[0], inputs=tuple(
            replace(inputs[0], sample=value_distributions.mixture([each.sample for each in inputs]))
            for inputs in zip(*(brick.inputs for brick in same), strict=True)))
        for same in by_id.values()))


_MOST_FRAC = 0.5
"""Maximum share of a model's new bricks that are decoys, rounded up: a complete model looks like a requested one."""


def drawn_decoys(others: Iterable[CutModel], known: Collection[str], number: int) -> list[CutModel]:
    """Return models reduced to randomly chosen bricks that together contain `number` new bricks.

    The choice uses the system's random numbers, so that it cannot be reproduced.

    Args:
        others: models that were not requested, in random order; only as many as needed are consumed.
        known: identifiers of the suite's bricks.
        number: number of decoys; the result has fewer if the models have fewer.
    """
    random, taken, found, left = secrets.SystemRandom(), set(known), [], number
    for model in others:
        new = [brick for brick in model.bricks if brick.id not in taken]
        chosen = random.sample(new, min(left, math.ceil(len(new) * _MOST_FRAC)))
        taken.update(brick.id for brick in chosen)
        left -= len(chosen)
        found.append(replace(model, bricks=tuple(chosen)))
        if left == 0:
            break
    return found
