"""What `charact try` found, as the file `try.json` in the first run's directory, from which all views are drawn."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from charact.core.errors import UserError
from charact.core.files import reading, write_text
from charact.core.text import label
from charact.record.manifest_program import Count, Number
from charact.remedies.losses import ROUNDED_FRAC
from charact.remedies.race import Candidate, Result, label_of
from charact.remedies.remedy import all_remedies

FILE = "try.json"
STATES = ("proven", "helps", "seems to help", "no difference", "slower", "not decided", "dropped", "failed",
          "not tried")
"""States of a remedy, the best first; see `TriedRemedy`."""
NOT_FINITE = 1e30
"""`losses_frac` where only one of the losses is finite: JSON has no infinity."""
State = Literal[STATES]  # type: ignore[valid-type]
_OF_CANDIDATE: dict[str, str] = {
    "faster": "helps", "same": "no difference", "slower": "slower", "undecided": "not decided", "dropped": "dropped",
    "failed": "failed", "trying": "not decided"}


class TriedRemedy(msgspec.Struct):
    """A remedy, or several together, and what was measured.

    `remedy`: its settings as code. `state`: 'proven' (on fresh turns, after it had helped), 'helps', 'no difference'
    (of more than 3 %), 'slower' or 'not decided' (by turns with the unchanged program), 'seems to help' (it helped,
    and did not on fresh turns), 'dropped' (after the first turns, as of no use, or as worse than another setting of the
    same remedy), 'failed' or 'not tried', with the reason. `iteration_s`: mean time of an iteration (s). `saves_frac`
    with `low_frac` and `high_frac`: share of the unchanged program's iteration that it saves, and its interval.
    `added_bytes`: of the process's peak memory. `losses_frac`: largest relative difference of the first losses from the
    unchanged program's; None if they cannot be compared. `changes_results`: whether that is more than rounding, and
    more than losses differ from trial to trial. `change`: code that does the same; `place`: its file and line.
    """

    remedy: str
    state: State
    iteration_s: Number | None = None
    saves_frac: Number | None = None
    low_frac: Number | None = None
    high_frac: Number | None = None
    added_bytes: Number | None = None
    losses_frac: Number | None = None
    changes_results: bool | None = None
    num_turns: Count = 0
    change: str | None = None
    place: str | None = None
    reason: str | None = None


class Tried(msgspec.Struct):
    """The remedies of a program, the best first, and its unchanged mean iteration time (s).

    `ending`: 'decided', 'time' or 'interrupted'. `own_losses_frac`: largest relative difference of losses between
    trials of the unchanged program. `written_files`: files below the working directory that trials wrote or changed.
    `advice`: cause and remedy of the first run's largest finding whose remedy was not tried.
    """

    remedies: list[TriedRemedy]
    baseline_s: Number | None
    ending: Literal["decided", "time", "interrupted"]
    num_trials: Count
    own_losses_frac: Number | None = None
    written_files: list[str] = []
    advice: str | None = None

    @property
    def proven(self) -> TriedRemedy | None:
        """The remedies that are recommended together; None without any."""
        return next((each for each in self.remedies if each.state == "proven"), None)


def tried(result: Result, written_files: Sequence[str], advice: str | None = None) -> Tried:
    """Return what a race found, the proven combination first, and remedies that were not tried last."""
    remedies = list(_remedies(result))
    remedies.sort(key=lambda each: (STATES.index(each.state), -(each.saves_frac or 0.0)))
    return Tried(remedies, result.baseline_s, result.ending, result.num_trials, result.own_losses_frac,
                 [label(path) for path in written_files], None if advice is None else label(advice))


def write_tried(facts: Tried, directory: Path) -> None:
    """Write `try.json` into the directory of the first run."""
    write_text(directory / FILE, msgspec.json.format(msgspec.json.encode(facts), indent=1).decode() + "\n")


def read_tried(directory: Path) -> Tried | None:
    """Read `try.json` of a run's directory; None without one.

    Raises:
        UserError: it is damaged.
    """
    path = directory / FILE
    if not path.is_file():
        return None
    with reading(path):
        content = path.read_bytes()
    try:
        return msgspec.json.decode(content, type=Tried)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is damaged ({error}): remove it to show the run without it") from error


def _remedies(result: Result) -> Iterator[TriedRemedy]:
    proof = result.proof
    if proof is not None:
        remedy = _remedy(proof, result)
        remedy.state = "proven" if proof.state == "faster" else "seems to help"
        yield remedy
    for candidate in result.candidates:
        if proof is None or candidate.settings != proof.settings:
            yield _remedy(candidate, result)
    for untried in result.untried:
        yield TriedRemedy(untried.remedy, "not tried", reason=untried.reason)


def _remedy(candidate: Candidate, result: Result) -> TriedRemedy:
    places = dict.fromkeys(str(setting.place) for setting in candidate.settings if setting.place is not None)
    remedy = TriedRemedy(
        label_of(candidate.settings), _OF_CANDIDATE[candidate.state], num_turns=candidate.num_turns,
        change="; ".join(setting.change for setting in candidate.settings), place=", ".join(places) or None,
        reason=candidate.failure)
    if candidate.losses_frac is not None:
        remedy.losses_frac = min(candidate.losses_frac, NOT_FINITE)
    if any(all_remedies()[setting.remedy].numerics == "changed" for setting in candidate.settings):
        remedy.changes_results = True
    elif candidate.losses_frac is not None:
        remedy.changes_results = candidate.losses_frac > max(ROUNDED_FRAC, result.own_losses_frac or 0.0)
    if candidate.num_turns:
        judgement = candidate.judgement
        remedy.iteration_s = candidate.new.sample().value
        remedy.saves_frac = None if judgement.ratio is None else 1 - judgement.ratio
        remedy.low_frac = None if judgement.high is None else 1 - judgement.high
        remedy.high_frac = None if judgement.low is None else 1 - judgement.low
    if candidate.added_bytes:
        remedy.added_bytes = sum(candidate.added_bytes) / len(candidate.added_bytes)
    return remedy
