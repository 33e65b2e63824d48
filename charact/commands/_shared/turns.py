"""Runs of two commands by turns, so that drift and other load of the machine affect both equally."""

import json
import os
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from charact.core.errors import UserError
from charact.core.files import reading, write_text, writing
from charact.core.output import show, warn

if TYPE_CHECKING:
    from charact.analysis.compare import Turns
    from charact.record.reader import Run

_COMMANDS = ("profile", "run", "train", "infer", "ops", "memory")
_LABELS = ["a", "b"]
_FACTS = "turns.json"
"""File in the directory of both groups: the fields of `Turns`."""
_UNTIMED_TURNS = 5
"""Number of turns if none is given and no case is timed."""
_MOST_SHOWN = 2000
"""Maximum number of characters of a failed command's error that are shown."""
_VIEWS_LIMIT_S = 20.0
"""Time limit for views that are written in the background (s): they would disturb the next run."""
_OWN = [sys.executable, "-m", "charact"]
"""Words that start the charact that is running."""


def read_command(text: str) -> list[str]:
    """Return the words of a charact command that creates a run: the program, its command and arguments.

    `charact` without a path becomes the charact that is running.
    """
    try:
        program, *words = shlex.split(text)
    except ValueError as error:
        raise UserError(f"--ab {text!r}: {error}: quote it as for a shell") from error
    if Path(program).name != "charact" or not words or words[0] not in _COMMANDS:
        raise UserError(f"--ab {text!r}: write a command that measures, as in 'charact profile resnet18': one of "
                        f"{', '.join(_COMMANDS)}")
    if words[0] != "run" and any(word.partition("=")[0] == "--out" for word in words):  # a script may have its own
        raise UserError(f"--ab {text!r}: leave out --out, which is set for it")
    return [*([program] if os.sep in program else _OWN), *words]


def _shown(command: Sequence[str]) -> str:
    words = list(command)
    return shlex.join(["charact", *words[len(_OWN):]] if words[: len(_OWN)] == _OWN else words)


@dataclass(frozen=True)
class Limit:
    """When turns stop: after a given number, or once the times decide, at most after some minutes."""

    num_turns: int | None
    max_minutes: float


def measure_by_turns(commands: Sequence[Sequence[str]], limit: Limit, out: Path, *, quiet: bool
                     ) -> tuple[Path, list[str]]:
    """Run two commands by turns, each time in a new process; return their directory and the groups, as `NAME=PATH`.

    A group has the name of its script; if both commands run the same one, or none, they are `a` and `b`.
    The order alternates (a b b a), so that a machine that gets slower or faster affects both equally. Without a given
    number, turns are added until every case is decided (`TurnTimes.is_decided`) or the time is up, but at least
    `MIN_TURNS`. Ctrl-C keeps the finished turns.
    """
    directory = out / f"{time.strftime('%Y%m%d-%H%M%S')}-ab-{os.urandom(3).hex()}"
    measurement = _Measurement(_with_one_name(commands), limit, directory, quiet)
    measurement.run()
    if not quiet:
        show(f"Wrote {directory}")
    scripts = [_script(command) for command in commands]
    names = [str(script) for script in scripts] if len(set(scripts) - {None}) == len(commands) else _LABELS
    return directory, [f"{name}={directory / label}" for name, label in zip(names, _LABELS, strict=True)]


class _Measurement:
    """Runs of two commands by turns, in two directories."""

    def __init__(self, commands: Sequence[Sequence[str]], limit: Limit, directory: Path, quiet: bool) -> None:
        from charact.analysis.compare.turns import TurnTimes

        self._commands, self._limit, self._directory, self._quiet = commands, limit, directory, quiet
        self._groups = [directory / label for label in _LABELS]
        for path in self._groups:
            with writing(path):
                path.mkdir(parents=True)
        self._times = TurnTimes()
        self._num_turns = 0
        self._begun = time.monotonic()

    def run(self) -> None:
        """Add turns until one of `ENDINGS`, and record it.

        Raises:
            KeyboardInterrupt: Ctrl-C in the first turn.
        """
        from charact.analysis.common.significance import MIN_TURNS

        if (number := self._limit.num_turns) is not None:
            self._print(f"Running each command {number} times, by turns; the time left is known after two runs")
        else:
            self._print("Running two commands by turns until their times differ clearly, or by 3 % at most; for at "
                        f"most {self._limit.max_minutes:g} minutes, but at least {MIN_TURNS} turns")
        ending = None
        while ending is None:
            before = [set(path.iterdir()) for path in self._groups]
            try:
                self._add_turn()
                ending = self._ending()
            except KeyboardInterrupt:
                for path, finished in zip(self._groups, before, strict=True):
                    target = self._directory / "unfinished" / path.name
                    for run in set(path.iterdir()) - finished:
                        target.mkdir(parents=True, exist_ok=True)
                        run.rename(target / run.name)
                if not self._num_turns:
                    raise
                ending = "interrupted"
        max_minutes = None if self._limit.num_turns else self._limit.max_minutes
        facts = {"num_turns": self._num_turns, "ending": ending, "max_minutes": max_minutes}
        write_text(self._directory / _FACTS, json.dumps(facts, indent=1) + "\n")

    def _add_turn(self) -> None:
        from charact.record.reader import load_run

        new: list[list[Run]] = [[], []]
        order = (0, 1) if self._num_turns % 2 == 0 else (1, 0)
        for num_done, place in enumerate(order):
            self._print(f"{_LABELS[place]} {self._state(2 * self._num_turns + num_done, place)}")
            added = _measure(self._commands[place], self._groups[place])
            new[place] = [load_run(path) for path in added if (path / "run.json").is_file()]
        self._times.add(*new)
        self._num_turns += 1

    def _state(self, num_runs: int, place: int) -> str:
        command, number, passed_s = _shown(self._commands[place]), self._num_turns + 1, time.monotonic() - self._begun
        if (num_turns := self._limit.num_turns) is not None:
            left_s = passed_s / max(num_runs, 1) * (2 * num_turns - num_runs)
            return f"{number}/{num_turns}: {command}" + (f", about {left_s:.0f} s left" if num_runs > 1 else "")
        judged = list(self._times.judgements().values())
        if len(judged) != 1:
            return f"{number}: {command}"
        return f"{number}: {command}, so far {_LABELS[1]} takes {judged[0].ratio:.3g} of the time of {_LABELS[0]}"

    def _ending(self) -> str | None:
        """Return why to stop now, one of `ENDINGS`; None to add a turn."""
        from charact.analysis.common.significance import MIN_TURNS

        if (number := self._limit.num_turns) is not None:
            return "repeat" if self._num_turns >= number else None
        if not self._times.has_common or (not self._times.is_timed and self._num_turns >= _UNTIMED_TURNS):
            return "untimed"
        if not self._times.is_timed or self._num_turns < MIN_TURNS:
            return None
        if self._times.is_decided():
            return "decided"
        passed_s = time.monotonic() - self._begun
        is_up = passed_s * (1 + 1 / self._num_turns) > 60 * self._limit.max_minutes  # the next turn would end later
        return "time" if is_up else None

    def _print(self, line: str) -> None:
        if not self._quiet:
            warn(line)


def read_turns(groups: Sequence[Path]) -> "Turns | None":
    """Return how the turns ended that measured both groups; None if they are not the directories of such turns."""
    from charact.analysis.compare.matching import ENDINGS, Turns

    parents = {path.resolve().parent for path in groups}
    if len(groups) != len(_LABELS) or len(parents) != 1 or {path.resolve().name for path in groups} != set(_LABELS):
        return None
    file = parents.pop() / _FACTS
    if not file.is_file():
        return None
    with reading(file):
        try:
            turns = Turns(**json.loads(file.read_text(encoding="utf-8")))
            is_valid = turns.ending in ENDINGS and int(turns.num_turns) >= 1
        except (TypeError, ValueError):
            is_valid = False
    if not is_valid:
        raise UserError(f"{file} is damaged: remove it to compare the runs as if their number had been given")
    return turns


def _script(command: Sequence[str]) -> str | None:
    return next((Path(word).name for word in command if word.endswith(".py")), None)


def _with_one_name(commands: Sequence[Sequence[str]]) -> list[list[str]]:
    scripts = [_script(command) for command in commands]
    is_named = any(word.partition("=")[0] == "--name" for command in commands for word in command)
    if is_named or None in scripts or len(set(scripts)) == 1:
        return [list(command) for command in commands]
    name = ["--name", Path(str(scripts[0])).stem]
    return [[*command[:_after_name(command)], *name, *command[_after_name(command):]] for command in commands]


def _after_name(command: Sequence[str]) -> int:
    return next(number for number, word in enumerate(command) if word in _COMMANDS) + 1


def _measure(command: Sequence[str], out: Path) -> list[Path]:
    """Run a command to its end, and return the runs that it adds to a directory."""
    import subprocess

    place = _after_name(command)
    with_options = [*command[:place], "--out", str(out), "--quiet", *command[place:]]
    before = set(out.iterdir())
    try:
        done = subprocess.run(with_options, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8",
                              errors="replace", check=False)
    except OSError as error:
        raise UserError(f"cannot start {command[0]} ({os.strerror(error.errno or 0)})") from error
    if done.returncode != 0:
        message = done.stderr.strip()[-_MOST_SHOWN:] or "it printed no error"
        raise UserError(f"{_shown(command)} ended with status {done.returncode}: {message}")
    from charact.commands._shared.publish import has_views  # heavy, and `charact --help` imports this module

    new = set(out.iterdir()) - before
    if not new:
        raise UserError(f"{_shown(command)} wrote no run to {out}: leave out --out, which is set for it")
    if command[place - 1] != "run":
        return sorted(new)
    until = time.monotonic() + _VIEWS_LIMIT_S
    while not all(map(has_views, new)) and time.monotonic() < until:  # `charact run` writes them in the background
        time.sleep(0.1)
    return sorted(new)
