"""Runs of two commands by turns, so that drift and other load of the machine affect both equally."""

import os
import secrets
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from charact.core.errors import UserError
from charact.core.files import writing
from charact.core.output import show

_COMMANDS = ("profile", "run", "train", "infer", "ops", "memory")
_MOST_SHOWN = 2000
"""Maximum number of characters of a failed command's error that are shown."""
_VIEWS_LIMIT_S = 20.0
"""Time limit for views that are written in the background (s): they would disturb the next run."""
_OWN = [sys.executable, "-m", "charact"]
"""Words that start the charact that is running."""


def read_command(text: str) -> list[str]:
    """Return the words of a charact command that creates a run: the program, its command and arguments.

    `charact` without a path becomes the charact that is running.

    Raises:
        UserError: the text cannot be split as in a shell, is no such command, or has the option `--out`.
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
    """Return a command from `read_command` as the user wrote it."""
    words = list(command)
    return shlex.join(["charact", *words[len(_OWN):]] if words[: len(_OWN)] == _OWN else words)


def measure_by_turns(
    commands: Sequence[Sequence[str]], repeat: int, out: Path, *, quiet: bool
) -> tuple[Path, list[str]]:
    """Run each command several times, each in a new process; return their directory and the groups, as `NAME=PATH`.

    A group has the name of its script; if both commands run the same one, or none, they are `a` and `b`.
    The order alternates (a b b a), so that a machine that gets slower or faster affects both equally.

    Args:
        commands: two commands, from `read_command`.
        repeat: number of runs of each.
        out: parent directory of the directory that holds the runs.
        quiet: whether to print no progress.

    Raises:
        UserError: a command fails, or the directory cannot be created.
    """
    directory = out / f"{time.strftime('%Y%m%d-%H%M%S')}-ab-{secrets.token_hex(3)}"
    groups = {label: directory / label for label in ("a", "b")}
    by_label = dict(zip(groups, _with_one_name(commands), strict=True))
    for path in groups.values():
        with writing(path):
            path.mkdir(parents=True)
    begun = time.monotonic()
    turns = [(label, number) for number in range(repeat) for label in sorted(groups, reverse=number % 2 == 1)]
    if not quiet:
        show(f"Running each command {repeat} times, by turns: {len(turns)} runs; the time left is known after two")
    for num_done, (label, number) in enumerate(turns):
        if not quiet:
            left_s = (time.monotonic() - begun) / max(num_done, 1) * (len(turns) - num_done)
            left = f", about {left_s:.0f} s left" if num_done > 1 else ""  # both commands have run once
            show(f"{label} {number + 1}/{repeat}: {_shown(by_label[label])}{left}")
        _measure(by_label[label], groups[label])
    if not quiet:
        show(f"Wrote {directory}")
    scripts = [_script(command) for command in commands]
    names = [str(script) for script in scripts] if len(set(scripts) - {None}) == len(commands) else list(groups)
    return directory, [f"{name}={path}" for name, path in zip(names, groups.values(), strict=True)]


def _script(command: Sequence[str]) -> str | None:
    """Return the name of the file that a command runs; None if it runs none."""
    return next((Path(word).name for word in command if word.endswith(".py")), None)


def _with_one_name(commands: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return the commands; two different scripts have the name of the first, because only cases of one name match."""
    scripts = [_script(command) for command in commands]
    is_named = any(word.partition("=")[0] == "--name" for command in commands for word in command)
    if is_named or None in scripts or len(set(scripts)) == 1:
        return [list(command) for command in commands]
    name = ["--name", Path(str(scripts[0])).stem]
    return [[*command[:_after_name(command)], *name, *command[_after_name(command):]] for command in commands]


def _after_name(command: Sequence[str]) -> int:
    """Return the index of the first word after the name of charact's command."""
    return next(number for number, word in enumerate(command) if word in _COMMANDS) + 1


def _measure(command: Sequence[str], out: Path) -> None:
    """Run a command to its end, and check that it adds a run to a directory.

    Raises:
        UserError: it cannot be started, fails, or adds no run.
    """
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
        return
    until = time.monotonic() + _VIEWS_LIMIT_S
    while not all(map(has_views, new)) and time.monotonic() < until:  # `charact run` writes them in the background
        time.sleep(0.1)
