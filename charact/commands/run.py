"""`charact run`."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

from charact.commands._shared.options import parse_choices
from charact.core.errors import UserError

CONTEXT = {"allow_interspersed_args": False}
"""What stands after the script is the script's."""
PASSES = ("timing", "operators", "memory", "counters")
"""In the order in which they are run."""
TIMED_BEFORE_PASSES = 50
"""So many iterations are timed where further passes follow."""


class CLASS(typer.core.TyperCommand):
    """What stands after a module is the module's, too."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Part what is charact's from what is the module's."""
        with_value = {name for one in self.params if not getattr(one, "is_flag", True) for name in one.opts}
        place = 0
        while place < len(args) and args[place].startswith("-") and args[place] != "--":
            option = args[place]
            place += 2 if option in with_value else 1
            if option.startswith(("-m", "--module")) and place <= len(args):
                args = [*args[:place], "--", *args[place:]]
                break
        return super().parse_args(ctx, args)


def command(
    script: Annotated[list[str] | None, typer.Argument(
        metavar="SCRIPT [ARGS]...", help="The script, and its own arguments.")] = None,
    module: Annotated[str | None, typer.Option(
        "--module", "-m", metavar="MODULE", help="Run a module instead, as python -m does.")] = None,
    iterations: Annotated[int | None, typer.Option(
        min=1, help="Measure so many iterations; then the script goes on alone. Default: all.")] = None,
    skip: Annotated[int | None, typer.Option(
        min=0, help="Iterations to leave out first. Default: a quarter, at most 3, as warm-up.")] = None,
    passes: Annotated[str, typer.Option(
        help="What to measure besides the timing, each on iterations of its own that follow: operators, memory, "
             "counters. The timing then has 50 where --iterations says no other number.")] = "timing",
    stop: Annotated[bool, typer.Option("--stop", help="End the script after --iterations and passes.")] = False,
    sample: Annotated[bool, typer.Option(
        "--sample", help="Look every 10 ms where the script is while no phase runs: the report then tells.")] = False,
    live: Annotated[bool, typer.Option(
        "--live", help="Show meanwhile where the time goes, at the bottom of the terminal.")] = False,
    out: Annotated[Path, typer.Option(help="Directory that the run's directory is made in.")] = Path("runs"),
    name: Annotated[str | None, typer.Option(
        help="Name of the run and its cases, by which compare matches them. Default: the script's.")] = None,
    keep_arguments: Annotated[bool, typer.Option(
        "--keep-arguments", help="Record the script's arguments as they are, with any secrets among them.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")] = False,
) -> None:
    """Run a training script as it is, and tell where time goes.

    The script is not changed, and its arguments, input, output and exit status are its own. Its iterations and their
    phases are found by watching what it calls of PyTorch: loaders, modules, losses, backward, optimizers. The record
    is written whatever way it ends; what charact itself says goes to standard error.

    \b
      charact run train.py --epochs 1
      charact run --iterations 50 --stop train.py --batch-size 64
      charact run --passes operators,memory train.py
      charact run -m my_package.train --config small.yaml
    """  # noqa: D301  (click wants the character itself)
    program = [*(script or [])]
    if module is None and not program:
        raise UserError("name a script: charact run train.py, or a module: charact run -m package.module")
    chosen = parse_choices(passes, "--passes", PASSES)
    further = [one for one in PASSES if one in chosen and one != "timing"]
    if further and iterations is None:
        iterations = TIMED_BEFORE_PASSES
    if stop and iterations is None:
        raise UserError("--stop ends the script after --iterations: give their number")
    label = name or (module if module is not None else Path(program[0]).stem)

    # Measuring sets variables for PyTorch, which are nothing to the program.
    environment = dict(os.environ)
    from charact.measure.script.run_script import Program, run_program

    run_program(
        Program(module, None if module is not None else program[0], program[module is None:]), skip=skip,
        iterations=iterations, stop=stop, passes=further, sample=sample,
        live=live and os.environ.get("LOCAL_RANK", "0") == "0",  # of several ranks, which share a terminal, one draws
        out=out, label=label,
        quiet=quiet, keep_arguments=keep_arguments, command_line=sys.argv[1:], environment=environment)
