"""How often `charact try` recommends something that changes nothing.

Run `python benchmarks/remedies_by_chance.py [--trials 300] [--races 1000] [PROGRAM]`. Trials of one unchanged program,
each in a process of its own as in any race, are recorded one after another. Races then get their trials from that
series, each from a random place of it on and in its order, so that a machine that becomes slower or busy for a while
does so in the races, too; with 1, 3 or 8 settings, none of which changes anything. What is recommended is false.
"""

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from unittest.mock import patch

from scipy.stats import binomtest

from charact.record.reader import load_run
from charact.remedies.process import Command, Trial
from charact.remedies.program import Program
from charact.remedies.race import TRIAL_S, Numbers, Race, trial_options
from charact.remedies.remedy import Setting, all_remedies

PROGRAM = Path(__file__).parents[1] / "tests" / "programs" / "well_written" / "mlp_whole_batches.py"
NUM_SETTINGS = 1, 3, 8
MAX_MINUTES = 10.0


def main() -> None:
    """Record trials, and print how many races with each number of settings recommend one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", nargs="?", type=Path, default=PROGRAM)
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--races", type=int, default=1000, help="for each number of settings")
    options = parser.parse_args()
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        program, series = recorded(options.program, options.trials, Path(directory))
    values = [numbers.iteration_s for numbers, _ in series]
    print(f"{len(values)} trials of {options.program.stem}: {1e3 * fmean(values):.3f} ms an iteration, standard "
          f"deviation {100 * stdev(values) / fmean(values):.1f} %, {100 * min(values) / fmean(values) - 100:+.0f} to "
          f"{100 * max(values) / fmean(values) - 100:+.0f} %")
    draws = random.Random(1)
    for number in NUM_SETTINGS:
        wrong = sum(recommends(program, series, draws.randrange(len(series)), number) for _ in range(options.races))
        low, high = binomtest(wrong, options.races).proportion_ci(0.95)
        print(f"{number} settings: {wrong} of {options.races} races recommend one, {100 * wrong / options.races:.1f} % "
              f"({100 * low:.1f} to {100 * high:.1f})", flush=True)


def recorded(path: Path, number: int, directory: Path) -> tuple[Program, list[tuple[Numbers, float]]]:
    """Run a program once, and then in trials; return it, and each trial's means and duration (s)."""
    command = Command("run", (str(path.resolve()),), b"", directory)
    first = command.measured([], [], directory / "first", 600.0)
    if first.run is None:
        raise SystemExit(f"error: {path} failed: {first.failure}")
    program, series = Program(first.run), []
    options = trial_options(program, TRIAL_S)
    measuring = Race(command, program, directory, MAX_MINUTES, trial_s=0.0, allow_numerics=False, report=print)
    for _ in range(number):
        begun = time.monotonic()
        trial = command.measured(options, [], directory / "trials", 600.0)
        numbers = None if trial.run is None else measuring.numbers(load_run(trial.run.path))
        if numbers is None:
            raise SystemExit(f"error: a trial of {path} failed: {trial.failure}")
        series.append((numbers, time.monotonic() - begun))
        print(f"\r{len(series)} of {number} trials", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return program, series


class Replayed(Race):
    """A race whose trials are those of a series, from one on, and whose clock is theirs."""

    def __init__(self, program: Program, series: Sequence[tuple[Numbers, float]], first: int) -> None:
        self.now_s = 0.0
        self._series, self._next = series, first
        with patch.object(time, "monotonic", lambda: self.now_s):
            super().__init__(Command("run", (), b"", Path()), program, Path(), MAX_MINUTES,
                             trial_s=series[first][1], allow_numerics=False, report=lambda _: None)
        vars(self._command)["measured"] = self._measured

    def _measured(self, *_: object) -> Trial:
        self._numbers, duration_s = self._series[self._next % len(self._series)]
        self._next += 1
        self.now_s += duration_s
        return Trial(self.program.run)

    def numbers(self, _: object) -> Numbers:
        """Return the means of the trial that has just ended."""
        return self._numbers


def recommends(program: Program, series: Sequence[tuple[Numbers, float]], first: int, num_settings: int) -> bool:
    """Return whether a race of settings that change nothing recommends any."""
    names = list(all_remedies())[:num_settings]
    replayed = Replayed(program, series, first)
    with patch.object(time, "monotonic", lambda: replayed.now_s):
        result = replayed.run([Setting(name, {}, name, name) for name in names])
    return result.proof is not None and result.proof.state == "faster"


if __name__ == "__main__":
    main()
