"""Uses of bricks in a model's iteration, and reasons for bricks without times."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from charact.analysis.bricks.times import BrickTimes
from charact.bricks.brick import runs_as
from charact.bricks.suite.composition import Composition
from charact.core.errors import UserError
from charact.record.reader import Run

_NAMED = 3
"""Maximum number of bricks named in a reason; the others are counted."""


@dataclass(frozen=True)
class Use:
    """A use of a brick in an iteration."""

    piece: int | None
    """Index of the segment; None for updates and gradient sums, which are not in the graph."""
    brick: str
    phase: str
    """Phase of the iteration."""
    timed_as: str
    """Phase of the brick's times."""
    number: int = 1

    @property
    def starts_backward(self) -> bool:
        """Return whether its time includes the start of a backward pass."""
        return self.timed_as == "backward"


def uses(composition: Composition, times: BrickTimes) -> list[Use]:
    """Return all uses of bricks by phase. Bricks without a backward time have no gradients."""
    placed = list(enumerate(piece.brick for piece in composition.pieces))
    found = [Use(number, brick, "forward", "forward") for number, brick in placed]
    if composition.mode == "infer":
        return found
    found += [Use(number, brick, "backward", "backward") for number, brick in reversed(placed)
              if times.has(brick, "backward")]  # fmt: skip
    found += [Use(None, brick, "backward", "forward", number) for brick, number in composition.gradient_sums]
    return found + [Use(None, brick, "update", "update", number) for brick, number in composition.updates]


def missing(composition: Composition, brick_uses: Sequence[Use], times: BrickTimes,
            layer_types: Mapping[str, Sequence[str]]) -> str | None:
    """Return why a model cannot be constructed (bricks missing from the run or failed), or None."""
    untimed = list(dict.fromkeys(use.brick for use in brick_uses if not times.has(use.brick, use.timed_as)))
    lacking = [brick for brick in untimed if brick not in times.bricks]
    failed = [brick for brick in untimed if brick in times.bricks]
    reasons = []
    if lacking:
        reasons.append(_lacking_text(composition, lacking, layer_types))
    if failed:
        reasons.append(_counted([f"brick {brick} has no time ({_why(times, brick)})" for brick in failed], "; "))
    return "; ".join(reasons) or None


def _lacking_text(composition: Composition, lacking: Sequence[str], layer_types: Mapping[str, Sequence[str]]) -> str:
    num_pieces = sum(piece.brick in lacking for piece in composition.pieces)
    num_others = sum(brick in lacking for brick, _ in [*composition.updates, *composition.gradient_sums])
    parts = [f"{num_pieces} of {len(composition.pieces)} segments"] if num_pieces else []
    parts += [f"{num_others} of {len(composition.updates) + len(composition.gradient_sums)} kinds of updates and "
              "gradient sums"] if num_others else []  # fmt: skip
    types = sorted({name for brick in lacking for name in layer_types.get(brick, ())})
    of = f" of {', '.join(types)}" if types else ""
    bricks = _counted([f"brick {brick}" for brick in lacking], ", ")
    return f"the run lacks {' and '.join(parts)}{of} ({bricks}): extend the suite by the model and run it"


def _why(times: BrickTimes, brick: str) -> str:
    """Return why a brick of the run has no time."""
    row = times.bricks[brick]
    if row["status"] == "ok":
        return "not timed in this phase"
    return f"{row['status']}: {row['reason']}" if isinstance(row["reason"], str) else str(row["status"])


def _counted(texts: Sequence[str], separator: str) -> str:
    """Join the first few texts, and count the others."""
    more = [f"{len(texts) - _NAMED} more"] if len(texts) > _NAMED else []
    return separator.join([*texts[:_NAMED], *more])


def brick_case(run: Run, composition: Composition) -> str:
    """Return the case of a suite's run that matches a model's mode, precision and cut.

    Bricks of mixed precision include their casts, and may be timed with those of fp32.

    Raises:
        UserError: it is not a run of a suite, or the model has another mode, precision or cut.
    """
    entries = [entry for entry in run.manifest["cases"] if "bricks" in entry.get("passes", {})]
    if not entries:
        raise UserError(f"{run.path} is not a run of a suite: charact bricks run makes one")
    matching = [entry for entry in entries if entry["mode"] == composition.mode
             and runs_as(entry["precision"]) == runs_as(composition.precision)]  # fmt: skip
    matching.sort(key=lambda entry: bool(entry["precision"] != composition.precision))
    if not matching:
        timed = " and ".join(dict.fromkeys(f"{entry['mode']} in {entry['precision']}" for entry in entries))
        raise UserError(f"{composition.case} is {composition.mode} in {composition.precision}, {run.path} timed "
                        f"{timed}: charact bricks run --mode {composition.mode} --precision {composition.precision}")
    case, facts = str(matching[0]["case"]), matching[0]["passes"]["bricks"]
    if (facts["g"], facts["cut_method"]) != (composition.g, composition.method):
        raise UserError(f"{composition.case} is cut by '{composition.method}' at G = {composition.g}, the bricks of "
                        f"{run.path} by '{facts['cut_method']}' at G = {facts['g']}: run a suite with the same cut")
    return case
