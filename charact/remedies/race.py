"""Which remedies help: by turns with the baseline, combined greedily, and proven once more on fresh turns."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Literal, NamedTuple

from charact.analysis.common.significance import MIN_TURNS, Judgement, Pool, Sample, judged_by_turns
from charact.analysis.compare.turns import decision
from charact.analysis.profile.case_summary import iteration_times
from charact.core.errors import UserError
from charact.record.manifest_program import ProgramFacts
from charact.record.reader import Run
from charact.record.schema import GENERATING_MODES
from charact.remedies.losses import ROUNDED_FRAC, difference_frac
from charact.remedies.process import Command, Trial
from charact.remedies.program import Program
from charact.remedies.remedy import Setting, all_remedies

TRIAL_S = 3.0
"""Time of the iterations of a trial (s), as far as the limits of their number allow."""
LEAST_ITERATIONS, MOST_ITERATIONS = 12, 1000
LONGEST_TRIAL_S = 20.0
"""Longest time of a trial's iterations (s) where a setting needs many iterations to have an effect."""
MOST_SETTINGS = 8
"""Largest number of settings that race together, those with the largest expected saving first."""
_TRIED_TURNS = 2
"""Number of turns after which the best setting of each remedy is kept, and remedies that do not help are dropped."""
_NO_HELP = (1.2, 0.99)
"""Ratio after the first turn, and after `_TRIED_TURNS`, from which a setting is dropped."""
_PROMISING = 0.97
"""Largest ratio of an undecided candidate that is worth a proof once the time of the race is up."""
_EXPENSIVE = 2.0
"""Duration of a trial over that of the unchanged program from which it is given up first when the time is short."""
_ADDED = 0.99
"""Largest ratio to the combination so far at which a further remedy joins it."""
_PROOF_FRAC = 0.35
"""Share of the time that the race leaves to a proof once there is something to prove, or more for its fewest turns."""
_PRECISE_FRAC, _MOST_PROOF_TURNS = 0.15, 12
"""Width of a ratio's interval up to which a proof of what is faster ends; and its largest number of turns."""
_OVERTIME = 1.1
"""Share of the time up to which a proof may go on to its fewest turns."""


class Numbers(NamedTuple):
    """Means of a trial: iteration time (s), and peak memory of the process in bytes, None if not recorded."""

    iteration_s: float
    peak_bytes: float | None


@dataclass
class Candidate:
    """Settings that are applied together, what was measured of them, and what was decided.

    `state`: 'trying'; 'dropped' (it did not help in the first turns, or another setting of its remedy did more);
    'faster', 'slower', 'same' or 'undecided' (by turns with the baseline); 'failed'.
    """

    settings: tuple[Setting, ...]
    state: str = "trying"
    failure: str | None = None
    base: Pool = field(default_factory=Pool)
    new: Pool = field(default_factory=Pool)
    num_turns: int = 0
    """Number of turns with the baseline."""
    added_bytes: list[float] = field(default_factory=list)
    losses_frac: float | None = None
    """Largest relative difference of its losses from the baseline's; None if they cannot be compared."""

    @property
    def judgement(self) -> Judgement:
        """Ratio of its iteration time to the baseline's."""
        return judged_by_turns(self.base.sample(), self.new.sample())

    def add(self, base: Numbers, new: Numbers) -> None:
        """Add a turn."""
        self.base.add(Sample(base.iteration_s))
        self.new.add(Sample(new.iteration_s))
        self.num_turns += 1
        if base.peak_bytes is not None and new.peak_bytes is not None:
            self.added_bytes.append(new.peak_bytes - base.peak_bytes)


@dataclass
class Untried:
    """Name of a remedy that was not tried, and the reason."""

    remedy: str
    reason: str


@dataclass
class Result:
    """What a race found: the candidates, the most promising first, and the unchanged program's mean iteration (s).

    `proof` is the final combination with its ratio on fresh turns; None if nothing helped. `own_losses_frac`: largest
    relative difference of losses between trials of the unchanged program.
    """

    baseline_s: float | None = None
    candidates: list[Candidate] = field(default_factory=list)
    untried: list[Untried] = field(default_factory=list)
    proof: Candidate | None = None
    own_losses_frac: float | None = None
    ending: Literal["decided", "time", "interrupted"] = "decided"
    num_trials: int = 0

    def tried_remedies(self) -> set[str]:
        """Return the names of the remedies that were tried."""
        return {setting.remedy for candidate in self.candidates for setting in candidate.settings}

    def tried_findings(self) -> set[str]:
        """Return the IDs of findings whose remedies were tried."""
        return {finding for name in self.tried_remedies() for finding in all_remedies()[name].findings}


class Race:
    """Trials of a program with settings of remedies.

    `trial_s` is about how long a trial takes, by which the number of settings is limited.
    """

    def __init__(self, command: Command, program: Program, directory: Path, max_minutes: float, *, trial_s: float,
                 allow_numerics: bool, report: Callable[[str], None]) -> None:
        self.program = program
        self._command, self._directory = command, directory / "trials"
        self._allow_numerics, self._report = allow_numerics, report
        self._limit_s, self._begun = 60 * max_minutes, time.monotonic()
        self._case = program.entry.case
        self._base_times_s: list[float] = []
        self._base_losses: list[tuple[float | None, ...]] = []
        self._longest_s = 0.0
        self._took_s: dict[str, float] = {"": trial_s}
        """Time of the last trial (s) with a setting, by its label, which is empty for the unchanged program."""
        self._options: list[str] = []
        self.result = Result()

    def run(self, settings: Sequence[Setting]) -> Result:
        """Try settings, the most promising first; Ctrl-C keeps what is decided."""
        waiting, least_iterations = list(settings), 0
        try:
            while batch := self._affordable(waiting):
                waiting = [setting for setting in waiting if setting not in batch]
                least_iterations = max(least_iterations, *(setting.least_iterations for setting in batch))
                self._options = trial_options(self.program, TRIAL_S, least_iterations)
                candidates = [Candidate((setting,)) for setting in batch]
                self.result.candidates += candidates
                self._race(candidates)
            helping = [each for each in self.result.candidates if _is_promising(each) and self._may_combine(each)]
            helping.sort(key=lambda each: each.judgement.ratio or 1.0)
            if helping:
                self._prove(self._combined(helping))
        except KeyboardInterrupt:
            self.result.ending = "interrupted"
        for candidate in self.result.candidates:
            if candidate.state == "trying":
                candidate.state = "undecided"
        for name in dict.fromkeys(setting.remedy for setting in waiting):
            if name not in self.result.tried_remedies():
                self.result.untried.append(Untried(
                    name, f"there was no time: try --only {name}, or more --max-minutes"))
        self.result.own_losses_frac = self._own_losses_frac()
        return self.result

    def _affordable(self, waiting: Sequence[Setting]) -> list[Setting]:
        """Return as many settings as the time allows, the most promising first; at least one if none was tried.

        If it does not allow all, those with long trials come last.
        """
        is_first = not self.result.candidates
        left_s = self._limit_s - self._reserve_s() - (time.monotonic() - self._begun)
        number = int(left_s / (_TRIED_TURNS * self._cost_s(()))) - 1  # the unchanged program has a trial in each turn
        number = min(max(number, int(is_first)), MOST_SETTINGS)
        is_short = number < len(waiting)
        return sorted(waiting, key=lambda each: (is_short and all_remedies()[each.remedy].is_slow,
                                                 -each.expected_frac))[:max(number, 0)]

    def _reserve_s(self) -> float:
        """Return the time (s) that a race leaves to the proof."""
        return max(_PROOF_FRAC * self._limit_s, 2 * MIN_TURNS * self._cost_s(()))

    def _race(self, candidates: list[Candidate]) -> None:
        """Measure candidates by turns with the baseline until each is decided or dropped, or most of the time is up."""
        num_turns = 0
        while active := [each for each in candidates if each.state == "trying"]:
            turn_s = self._cost_s(()) + sum(self._cost_s(each.settings) for each in active)
            reserve_s = self._reserve_s() if any(map(_is_promising, candidates)) else 0.0
            if num_turns and self._is_late(turn_s + reserve_s):
                self.result.ending = "time"
                worst = max(active, key=lambda each: self._cost_s(each.settings))
                if self._cost_s(worst.settings) <= _EXPENSIVE * self._cost_s(()):
                    worst = max(active, key=lambda each: each.judgement.ratio or 1.0)
                worst.state = "undecided"  # the others may still be decided
                continue
            self._turn(None, active, num_turns)
            num_turns += 1
            if num_turns <= _TRIED_TURNS:
                _drop(active, is_last=num_turns == _TRIED_TURNS)
            for candidate in active:
                if candidate.state == "trying" and candidate.num_turns >= MIN_TURNS:
                    decided = decision(candidate.judgement)
                    candidate.state = "trying" if decided == "undecided" else decided

    def _turn(self, base: Candidate | None, others: Sequence[Candidate], number: int) -> None:
        """Measure a baseline and candidates once each, forwards or backwards in every second turn."""
        order: list[Candidate | None] = [base, *others]
        trials: dict[int, Numbers] = {}
        for place in range(len(order)) if number % 2 == 0 else reversed(range(len(order))):
            candidate = order[place]
            trial = self._trial(candidate)
            numbers = None if trial.run is None else self.numbers(trial.run)
            if numbers is not None:
                trials[place] = numbers
            elif candidate is not None:
                candidate.state, candidate.failure = "failed", trial.failure or "no iteration was timed"
            if candidate is not None:
                self._compare_losses(candidate, trial.losses)
            elif numbers is None and base is None and self.result.baseline_s is None:
                raise UserError(f"the unchanged program failed: {trial.failure or 'no iteration was timed'}")
        if 0 not in trials:
            return
        for place, candidate in enumerate(others, start=1):
            if place in trials:
                candidate.add(trials[0], trials[place])

    def _trial(self, candidate: Candidate | None) -> Trial:
        settings = () if candidate is None else candidate.settings
        name = "+".join(setting.remedy for setting in settings) or "baseline"
        number = 1 + self.result.num_trials
        self.result.num_trials = number
        left_s = self._limit_s - (time.monotonic() - self._begun)
        self._report(f"trial {number}: {label_of(settings) or 'unchanged'}, at most {max(left_s, 0) / 60:.1f} min left")
        begun = time.monotonic()
        limit_s = max(60.0, 5 * self._longest_s)
        if candidate is not None:  # without the unchanged program there is nothing to compare with
            limit_s = min(limit_s, max(left_s, self._longest_s))
        trial = self._command.measured(self._options, settings, self._directory / f"{number:03d}-{name}", limit_s)
        took_s = time.monotonic() - begun
        self._took_s |= dict.fromkeys(_labels(settings), took_s)
        if candidate is None:
            self._longest_s = max(self._longest_s, took_s)
            if trial.losses:
                self._base_losses.append(trial.losses)
            if trial.run is not None and (numbers := self.numbers(trial.run)) is not None:
                self._base_times_s.append(numbers.iteration_s)
                self.result.baseline_s = fmean(self._base_times_s)
        return trial

    def numbers(self, run: Run) -> Numbers | None:
        """Return the means of a trial, of the first run's longest case if it has that; None without iterations."""
        walls = iteration_times(run)
        walls = walls[walls["case"] == self._case] if (walls["case"] == self._case).any() else walls
        if walls.empty:
            return None
        programs = (entry.passes.timing.program for entry in run.entries)
        peak = next(filter(None, programs), ProgramFacts()).process_peak_bytes
        return Numbers(float(walls["wall_s"].mean()), peak)

    def _compare_losses(self, candidate: Candidate, losses: tuple[float | None, ...]) -> None:
        if not self._base_losses or not losses:
            return
        apart = self._difference_frac(self._base_losses[0], losses)
        if apart is not None:
            candidate.losses_frac = max(apart, candidate.losses_frac or 0.0)

    def _own_losses_frac(self) -> float | None:
        first, *others = self._base_losses or [()]
        differences = [self._difference_frac(first, other) for other in others]
        return max((each for each in differences if each is not None), default=None)

    def _difference_frac(self, base: Sequence[float | None], new: Sequence[float | None]) -> float | None:
        if not self.program.is_watched:  # its trials end after a time, not after a number of iterations
            base, new = base[:len(new)], new[:len(base)]
        return difference_frac(_floats(base), _floats(new))

    def _may_combine(self, candidate: Candidate) -> bool:
        """Return whether a candidate may be recommended: its results are the unchanged program's, or rounded."""
        if self._allow_numerics:
            return True
        changes = any(all_remedies()[setting.remedy].numerics == "changed" for setting in candidate.settings)
        own = self._own_losses_frac() or 0.0
        return not changes and (candidate.losses_frac or 0.0) <= max(ROUNDED_FRAC, own)

    def _combined(self, helping: list[Candidate]) -> Candidate:
        """Return the best candidate with those of the others that make it faster still, one remedy each."""
        combination = Candidate(helping[0].settings)
        for candidate in helping[1:]:
            if {each.remedy for each in candidate.settings} & {each.remedy for each in combination.settings}:
                continue
            longer_s = max(self._cost_s(combination.settings), self._cost_s(candidate.settings))
            if self._is_late((2 * _TRIED_TURNS + 2 * MIN_TURNS) * longer_s):
                continue
            longer = Candidate((*combination.settings, *candidate.settings))
            for number in range(_TRIED_TURNS):
                self._turn(combination, [longer], number)
            helps = longer.num_turns == _TRIED_TURNS and (longer.judgement.ratio or 1.0) <= _ADDED
            if helps and self._may_combine(longer):
                combination = Candidate(longer.settings)
        return combination

    def _prove(self, combination: Candidate) -> None:
        """Measure a combination against the baseline on fresh turns, until it is decided or the time is up.

        What is faster gets further turns, until it is known how much.
        """
        proof = Candidate(combination.settings)
        number = 0
        while proof.state == "trying":
            self._turn(None, [proof], number)
            number += 1
            if proof.state == "failed" or proof.num_turns >= MIN_TURNS:
                self.result.proof = proof  # before, it shows less than the turns in which the settings helped
            if proof.state == "failed":
                return
            decided = decision(proof.judgement) if proof.num_turns >= MIN_TURNS else "undecided"
            is_late = self._is_late(self._cost_s(()) + self._cost_s(proof.settings),
                                    1.0 if number >= MIN_TURNS else _OVERTIME)
            if is_late and decided == "undecided":
                self.result.ending = "time"
            if is_late or decided in ("same", "slower") or (decided == "faster" and _is_precise(proof)):
                proof.state = decided

    def _cost_s(self, settings: Sequence[Setting]) -> float:
        """Return the time (s) of the last trial with each of some settings, the longest one; without any, unchanged."""
        return max(self._took_s.get(label, 0.0) for label in _labels(settings))

    def _is_late(self, more_s: float, frac: float = 1.0) -> bool:
        """Return whether trials that take so long (s) would end after a share of the time."""
        return time.monotonic() - self._begun + more_s > frac * self._limit_s


def _labels(settings: Sequence[Setting]) -> list[str]:
    return [setting.label for setting in settings] or [""]


def label_of(settings: Sequence[Setting]) -> str:
    """Return settings as text: `num_workers=2, persistent_workers=True + fused=True`."""
    return " + ".join(setting.label for setting in settings)


def _is_promising(candidate: Candidate) -> bool:
    """Return whether a proof is worth its time: the candidate is faster, or seems to be, and the race ended early."""
    if candidate.state in ("trying", "undecided"):
        return candidate.num_turns >= _TRIED_TURNS and (candidate.judgement.ratio or 1.0) <= _PROMISING
    return candidate.state == "faster"


def _is_precise(proof: Candidate) -> bool:
    judgement = proof.judgement
    width = (judgement.high or math.inf) - (judgement.low or 0.0)
    return width <= _PRECISE_FRAC or proof.num_turns >= _MOST_PROOF_TURNS


def _drop(active: Sequence[Candidate], *, is_last: bool) -> None:
    """Drop candidates that do not help in the first turns; after the last of them, worse settings of a remedy, too."""
    best: dict[str, Candidate] = {}
    for candidate in active:
        if candidate.state != "trying" or not candidate.num_turns:
            continue
        ratio = candidate.judgement.ratio or 1.0
        if not is_last:
            candidate.state = "dropped" if ratio > _NO_HELP[0] else "trying"
            continue
        known = best.get(candidate.settings[0].remedy)
        if ratio > _NO_HELP[1] or (known is not None and (known.judgement.ratio or 1.0) <= ratio):
            candidate.state = "dropped"
            continue
        if known is not None:
            known.state = "dropped"
        best[candidate.settings[0].remedy] = candidate


def iteration_s(program: Program) -> float:
    """Return the median time of an iteration of the case that trials measure (s)."""
    walls = iteration_times(program.run)
    return float(median(walls.loc[walls["case"] == program.entry.case, "wall_s"]))


def trial_options(program: Program, time_s: float, least_iterations: int = 0) -> list[str]:
    """Return the options of charact's command that measures iterations for a time (s), within limits, and no passes.

    Of a built-in workload, only the case of the program is measured.
    """
    if not program.is_watched:
        entry = program.entry
        case = {"--mode": entry.mode, "--input-sizes": entry.input_size, "--batch-sizes": entry.batch_size,
                "--precision": entry.precision}
        if entry.mode in GENERATING_MODES:
            case |= {"--output-sizes": entry.output_size, "--cache": entry.cache}
        case |= {f"--{name}": value for name, value in (("attention", entry.attention), ("lora", entry.lora_rank))
                 if value is not None}
        return ["--passes", "timing", "--max-seconds", f"{time_s:g}",
                *(str(word) for pair in case.items() for word in pair)]
    usual_s = iteration_s(program)
    number = min(max(round(time_s / usual_s), LEAST_ITERATIONS), MOST_ITERATIONS)
    number = max(number, min(least_iterations, round(LONGEST_TRIAL_S / usual_s)))
    return ["--iterations", str(number), "--stop"]


def _floats(losses: Sequence[float | None]) -> list[float]:
    return [float("nan") if loss is None else loss for loss in losses]
