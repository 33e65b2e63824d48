"""`charact run`."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from charact.commands._shared.options import Command, Out, check_forks, parse_choices
from charact.core.errors import UserError

CONTEXT = {"allow_interspersed_args": False}
"""Arguments after the script belong to the script."""
PASSES = ("timing", "operators", "memory", "inspection", "counters")
"""Passes in the order in which they run."""
DEFAULT_PASSES = ["operators", "memory", "inspection"]
"""Passes that run if neither these nor the number of iterations are chosen."""
DEFAULT_BUDGET_FRAC = 0.2
TIMED_BEFORE_PASSES = 50
"""Number of iterations to time if other passes follow."""


class CLASS(Command):
    """Command that leaves the arguments after a module to the module."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Split the arguments of charact from those of the module."""
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
        metavar="SCRIPT", help="The script and its arguments.")] = None,
    module: Annotated[str | None, typer.Option(
        "--module", "-m", metavar="MODULE", help="Run a module instead, as python -m does.")] = None,
    iterations: Annotated[int | None, typer.Option(
        min=1, help="Number of iterations to measure; then the script continues unmeasured. Default: all.")] = None,
    skip: Annotated[int | None, typer.Option(
        min=0, help="Warm-up iterations to leave out. Default: a quarter, at most 3.")] = None,
    passes: Annotated[str | None, typer.Option(
        help="What to measure after timing, each in iterations of its own: operators (with FLOP), memory, inspection "
             "(of gradients, optimizer state and inputs), counters; or only timing. Timing then takes 50 iterations, "
             "unless --iterations is given. Default with --iterations: timing only. Default without: operators, memory "
             "and inspection take the 14th to the 20th, or earlier ones if they are long; all others are timed.",
        show_default=False)] = None,
    budget: Annotated[float | None, typer.Option(
        min=0, max=1000, metavar="SHARE",
        help="Share of the script's time that the passes' own work may take, but at least 5 s; passes beyond it are "
             "skipped. "
             "Default: 0.2; without limit if --passes is given.", show_default=False)] = None,
    stop: Annotated[bool, typer.Option("--stop", help="End the script after --iterations and passes.")] = False,
    sample: Annotated[bool, typer.Option(
        "--sample", help="Sample the script's line every 10 ms, not every 100 ms.")] = False,
    live: Annotated[bool, typer.Option(
        "--live", help="Show where time goes at the bottom of the terminal while it runs.")] = False,
    hang_after: Annotated[float | None, typer.Option(
        "--hang-after", min=1, metavar="SECONDS",
        help="Print and record where the script, or a rank of it, is after this time without progress.")] = None,
    nproc: Annotated[int | None, typer.Option(
        min=1, metavar="N", help="Run the script on N ranks of this machine, as torchrun does. All ranks have one "
                                 "record.")] = None,
    out: Out = Path("runs"),
    name: Annotated[str | None, typer.Option(
        help="Name of the run and its cases; compare matches cases by it. Default: the script's.")] = None,
    keep_arguments: Annotated[bool, typer.Option(
        "--keep-arguments", help="Record the script's arguments unchanged, including any secrets.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")] = False,
) -> None:
    """Run a training script unchanged, and show where time goes.

    The script's arguments, input, output and exit status stay its own. charact finds iterations and phases by watching
    calls into PyTorch: loaders, modules, losses, backward, optimizers. The record is written however the script ends;
    messages of charact go to standard error.

    \b
      charact run train.py --epochs 1
      charact run --iterations 50 --stop train.py --batch-size 64
      charact run --passes operators,memory train.py
      charact run -m my_package.train --config small.yaml
      charact run --nproc 2 train.py
    """  # noqa: D301  (click wants the character itself)
    program = [*(script or [])]
    if module is None and not program:
        raise UserError("give a script: charact run train.py, or a module: charact run -m package.module")
    if passes is None:
        further = DEFAULT_PASSES if iterations is None else []
        budget = DEFAULT_BUDGET_FRAC if budget is None else budget
    else:
        chosen = parse_choices(passes, "--passes", PASSES)
        further = [one for one in PASSES if one in chosen and one != "timing"]
        if further and iterations is None:
            iterations = TIMED_BEFORE_PASSES
    if stop and iterations is None:
        raise UserError("--stop ends the script after --iterations: give a number")
    label = name or (module if module is not None else Path(program[0]).stem)

    if nproc is not None:
        from charact.measure.script.ranks.launcher import launch

        raise SystemExit(launch(nproc, sys.argv[1:]))
    from charact.measure.script.ranks.launcher import end_with_agent

    end_with_agent(os.environ)
    check_forks("charact run")
    # Measuring sets environment variables for PyTorch; the program must not see them.
    environment = dict(os.environ)
    from charact.measure.script.run_script import Program, run_program

    run_program(
        Program(module, None if module is not None else program[0], program[module is None:]), skip=skip,
        iterations=iterations, stop=stop, passes=further, budget_frac=budget, sample=sample,
        live=live and os.environ.get("LOCAL_RANK", "0") == "0",  # ranks share a terminal: only one draws
        hang_after_s=hang_after, out=out, label=label,
        quiet=quiet, keep_arguments=keep_arguments, command_line=sys.argv[1:], environment=environment)
