"""`charact try`."""

import os
import select
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from charact.commands import run
from charact.commands._shared.options import Out
from charact.core.errors import UserError
from charact.core.output import OUT, show, warn
from charact.core.text import printable

if TYPE_CHECKING:
    from charact.remedies.race import Race
    from charact.remedies.remedy import Setting
    from charact.remedies.tried import Tried

CONTEXT = run.CONTEXT
"""Arguments after the script belong to it."""
_PROBE = ("--iterations", "8", "--stop")
"""Options of `charact run` for a run that shows how long an iteration is."""
_FIRST_S = 8.0
"""Time of the iterations of the first run (s), from whose findings remedies are chosen."""
_PASSES = ("--passes", "operators,memory,inspection")
_STDIN_S = 1.0
"""Time in which a standard input that is no terminal has to begin (s): a pipe may stay open and empty."""
_FIRST_LIMIT_FRAC = 0.5
"""Share of the time that each of these runs may take."""
_LEAST_EXPECTED_FRAC = 0.02
"""Smallest expected saving of a setting that is tried by default, as a share of the time."""
_NOT_OF_TRIALS = {
    **dict.fromkeys(("--only", "--max-minutes", "--allow-numerics", "--scratch", "--write-patch", "--out"),
                    "give it before the workload"),
    "--parallel": "remedies do not reach its ranks: leave it out", "--name": "leave it out",
    "--passes": "the first run takes all, and trials none: leave it out",
}  # fmt: skip
"""Options that the words of a workload to try remedies on cannot have, and what to do instead."""


class CLASS(run.CLASS):
    """Command that leaves arguments to a module, and after --profile options that are not its own to that command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Split the arguments of this command from those of `charact profile`."""
        parameters = self.get_params(ctx)
        is_flag = {name: getattr(one, "is_flag", True) for one in parameters for name in one.opts}
        place = 0
        while place < len(args) and args[place].startswith("-") and args[place] != "--":
            option, equals, _ = args[place].partition("=")
            if option not in is_flag and "--profile" in args[:place]:
                args = [*args[:place], "--", *args[place:]]
                break
            place += 1 if equals or is_flag.get(option, True) else 2
        return super().parse_args(ctx, args)


def command(
    program: Annotated[list[str] | None, typer.Argument(
        metavar="SCRIPT", help="The script and its arguments; with --profile a workload and options of charact "
                               "profile.")] = None,
    module: Annotated[str | None, typer.Option(
        "--module", "-m", metavar="MODULE", help="Run a module instead, as python -m does. Its arguments follow.")]
    = None,
    profile: Annotated[bool, typer.Option(
        "--profile", help="Try remedies on a built-in workload or --model, as charact profile measures it.")] = False,
    only: Annotated[str | None, typer.Option(
        metavar="NAME,...", help="Remedies to try, such as workers,fused. Default: those that the findings and "
                                 "operators of a first run suggest.")] = None,
    max_minutes: Annotated[float, typer.Option(min=0.1, max=10_000, help="Limit of the time.")] = 10.0,
    allow_numerics: Annotated[bool, typer.Option(
        "--allow-numerics", help="Also recommend remedies that change results, such as bf16.")] = False,
    scratch: Annotated[bool, typer.Option(
        "--scratch", help="Run trials in a copy of the working directory, which is removed.")] = False,
    write_patch: Annotated[bool, typer.Option(
        "--write-patch", help="Print a unified diff of the lines to change, for what is proven.")] = False,
    nproc: Annotated[int | None, typer.Option(min=1, metavar="N", help="Run the script on N ranks.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    out: Out = Path("runs"),
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the result only.")] = False,
) -> int:
    """Try remedies on an unchanged script, and show which help.

    A first run finds what takes the time. Remedies for it are then applied from outside, such as worker processes of
    the DataLoader or a fused optimizer: each in fresh processes, for some iterations, by turns with the unchanged
    script. Those that help are combined, and the combination is proven on fresh turns. Losses of the first iterations
    are compared, with the same seed.

    Trials run in the working directory, one at a time, each ended after its iterations. Files that they wrote are
    listed. What a script writes to absolute paths or sends over a network is its own.

    \b
      charact try train.py --epochs 2
      charact try --only workers,fused --max-minutes 5 train.py
      charact try --profile resnet50 --input-sizes 224
    """  # noqa: D301  (click wants the character itself)
    from charact.remedies.process import Command as Words
    from charact.remedies.process import cleaned_up_on_signals
    from charact.remedies.remedy import find_remedies
    from charact.remedies.tried import tried
    from charact.remedies.written_files import changed, scratch_copy, snapshot

    words = [*(["-m", module] if module is not None else []), *(program or [])]
    if not words:
        raise UserError("give a script: charact try train.py, or a workload: charact try --profile resnet18")
    if profile and (module is not None or nproc is not None):
        raise UserError("--profile is for built-in workloads: leave out --module and --nproc")
    for option, remedy in _NOT_OF_TRIALS.items() if profile else ():
        if any(word.partition("=")[0] == option for word in words):
            raise UserError(f"{option}: {remedy}")
    if nproc is not None:
        words = ["--nproc", str(nproc), *words]
    chosen = None if only is None else find_remedies([name.strip() for name in only.split(",") if name.strip()])
    directory = out.absolute() / f"{time.strftime('%Y%m%d-%H%M%S')}-try-{os.urandom(3).hex()}"
    here = Path.cwd()
    with cleaned_up_on_signals(), scratch_copy(here) if scratch else nullcontext(here) as place:
        before = {} if scratch else snapshot(here, out)
        stdin = _stdin()
        trials = Words("profile" if profile else "run", tuple(_below(words, here, place)), stdin, place)
        race = _try(trials, directory, chosen, max_minutes, allow_numerics=allow_numerics, quiet=quiet or as_json)
        facts = tried(race.result, [] if scratch else changed(before, snapshot(here, out)),
                      race.program.advice(race.result.tried_findings()))
    script = Path(program[0]).resolve().parent if program and module is None else here
    _show(facts, race, directory, as_json=as_json, patch_below=script if write_patch else None)
    return 130 if facts.ending == "interrupted" else 0


def _below(words: list[str], here: Path, place: Path) -> list[str]:
    """Return words with absolute paths below a directory as those of its copy."""
    return [str(place / Path(word).relative_to(here)) if Path(word).is_relative_to(here) else word for word in words]


def _stdin() -> bytes:
    """Return the whole standard input for each trial; empty for a terminal, or if nothing arrives within a second."""
    if sys.stdin is None or sys.stdin.isatty():
        return b""
    try:
        arrived, _, _ = select.select([sys.stdin], [], [], _STDIN_S)
    except (OSError, ValueError):  # it is closed, or no file
        return b""
    return sys.stdin.buffer.read() if arrived else b""


def _try(trials: Any, directory: Path, chosen: Any, max_minutes: float, *, allow_numerics: bool, quiet: bool
         ) -> "Race":
    from charact.remedies.program import Program
    from charact.remedies.race import LEAST_ITERATIONS, TRIAL_S, Race, iteration_s, trial_options

    def report(line: str) -> None:
        if not quiet:
            warn(line)

    begun = time.monotonic()
    lasted_s: dict[str, float] = {}

    def measured(options: list[str], name: str) -> Program:
        run_begun = time.monotonic()
        trial = trials.measured(options, (), directory / name, 60 * max_minutes * _FIRST_LIMIT_FRAC)
        lasted_s[name] = time.monotonic() - run_begun
        if trial.run is None:
            raise UserError(f"the program failed under charact {trials.kind}: {trial.failure}")
        if trial.run.iterations.empty:
            raise UserError(f"no iteration was found: charact {trials.kind} {' '.join(trials.words)} says why")
        return Program(trial.run)

    report("first run, from which remedies are chosen")
    if trials.kind == "profile":
        program = measured(["--max-seconds", f"{_FIRST_S:g}"], "first")
        names = list(dict.fromkeys(entry.workload for entry in program.run.entries))
        if len(names) > 1:
            raise UserError(f"remedies are tried on one workload: give one of {', '.join(names)}")
    else:
        program = measured([*trial_options(measured(list(_PROBE), "probe"), _FIRST_S), *_PASSES], "first")
        if program.entry.passes.inspection.status == "skipped":
            # The program ended before the passes, which come after a given number of iterations, but as early as they
            # can if all iterations are measured.
            program = measured([], "whole")
    settings, untried = _chosen(program, chosen)
    left_minutes = max_minutes - (time.monotonic() - begun) / 60
    start_s = lasted_s.get("probe", TRIAL_S + LEAST_ITERATIONS * iteration_s(program))  # with the warm-up
    race = Race(trials, program, directory, max(left_minutes, 0.1), trial_s=start_s + TRIAL_S,
                allow_numerics=allow_numerics, report=report)
    race.result.untried = untried
    race.run(settings)
    return race


def _chosen(program: Any, chosen: Any) -> "tuple[list[Setting], list[Any]]":
    """Return the settings to try, and the remedies that are not tried with the reason."""
    from charact.remedies.race import Untried
    from charact.remedies.remedy import all_remedies

    settings, untried = [], []
    for remedy in chosen or all_remedies().values():
        found = remedy.settings(program)
        if isinstance(found, str):
            untried.append(Untried(remedy.name, found))
            continue
        promising = [each for each in found
                     if chosen or remedy.saves_memory or each.expected_frac >= _LEAST_EXPECTED_FRAC]
        settings += promising
        if not promising:
            untried.append(Untried(remedy.name, "it is expected to save little"))
    return settings, untried


def _show(facts: "Tried", race: "Race", directory: Path, *, as_json: bool, patch_below: Path | None) -> None:
    import msgspec

    from charact.commands._shared.publish import REPORT
    from charact.core.files import write_text
    from charact.record.reader import load_run
    from charact.remedies.patch import unified_diff
    from charact.remedies.tried import write_tried
    from charact.remedies.views.answer import answer, items
    from charact.views.html.report import report
    from charact.views.terminal.renderer import print_items

    for path in race.program.run.path.iterdir():  # the result is shown as this run, which has the trials' runs in it
        path.replace(directory / path.name)
    write_tried(facts, directory)
    write_text(directory / REPORT, report([load_run(directory)]), force=True)
    if as_json:
        found = {"answer": answer(facts), **msgspec.to_builtins(facts), "report": str(directory / REPORT)}
        show(*msgspec.json.format(msgspec.json.encode(found), indent=1).decode().split("\n"))
        return
    print_items(items(facts))
    proof = race.result.proof
    if patch_below is not None and facts.proven is None:
        show("# no patch, since nothing is recommended")
    elif patch_below is not None and proof is not None:
        diff, left_out = unified_diff(proof.settings, patch_below)
        OUT.write(printable(diff))
        show(*(f"# by hand: {change}" for change in left_out))
    show(f"Wrote {directory / REPORT}")
