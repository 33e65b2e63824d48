"""`charact sweep`."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from charact.commands._shared import options as opt
from charact.core.errors import UserError

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="Directory of the sweep.")]


class _FileOrSubcommand(TyperGroup):
    """A group whose default command may be left out: `charact sweep my_sweep.yaml`."""

    default = "run"

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert the default command before the arguments of a sweep file."""
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = [self.default, *args]
        return super().parse_args(ctx, args)


group = typer.Typer(cls=_FileOrSubcommand, rich_markup_mode=None, help="""Run many cases from a file, resumably.

The file describes cases in YAML. Each case is one command in a process of its own, so that its crash or memory cannot
harm the next. The same command again runs what is missing: after Ctrl-C, a kill, or a lost machine.

\b
  charact sweep my_sweep.yaml             run the cases one after another
  charact sweep my_sweep.yaml --dry-run   list them, with the times of finished ones
  charact sweep status sweeps/my_sweep    what is done, also while it runs
  charact sweep merge sweeps/my_sweep     one report and one table of all cases

A sweep file:

\b
  command: profile            # or train, infer, memory, ops, bricks run
  matrix:                     # every combination is a case
    workload: [resnet18, vgg16]
    input-sizes: [32, 64]
  options: {mode: train}      # of every case
  exclude:
    - {workload: vgg16, input-sizes: 64}
  include:
    - {workload: mlp}
  repeats: 3

Keys are the options of the command, without dashes. `parts:` holds a list of such descriptions with several commands.
On Slurm, `nodes:` gives options of sbatch to types of node, and `node` is one more key of a case.
""")


@group.command()
def run(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Sweep file (YAML).")],
    out: Annotated[Path | None, typer.Option(
        help="Directory of the sweep. Default: sweeps/NAME, the name in the file or of the file.")] = None,
    launcher: Annotated[str, typer.Option(help="local, one case after another here; or slurm, a job per case.")]
    = "local",
    slurm: Annotated[str | None, typer.Option(
        metavar="NAME=VALUE,...", help="Options of sbatch: partition=gpu,gpus_per_node=1,exclusive=true. time is in "
                                       "minutes, by default 60.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the cases and their states; run nothing.")] = False,
    retry: Annotated[bool, typer.Option("--retry", help="Also run failed cases again, and replace their runs.")]
    = False,
    quiet: opt.Quiet = False,
) -> int:
    """Run the cases of a sweep file that have not ended.

    A case that fails is recorded with its reason, and the others continue; --retry runs it again. A case that was
    killed runs again without it.

    Jobs of Slurm continue when this command is interrupted; the same command follows them again. Every node must see
    the directory of the sweep under the same path.

    \b
      charact sweep my_sweep.yaml --out /data/sweeps/first
      charact sweep my_sweep.yaml --launcher slurm --slurm partition=gpu,gpus_per_node=1,exclusive=true
    """  # noqa: D301  (click wants the character itself)
    from charact.commands.sweep.known import known_options, problem_of
    from charact.commands.sweep.run import parameters_of, run_sweep
    from charact.sweeps.definition import read_definition

    chosen = opt.parse_choice(launcher, "--launcher", ("local", "slurm"))
    if slurm is not None and chosen != "slurm":
        raise UserError("--slurm is for jobs of Slurm: add --launcher slurm, or leave it out")
    return run_sweep(read_definition(file, known_options(), problem_of), out,
                     parameters_of(slurm) if chosen == "slurm" else None, dry_run=dry_run, retry=retry, quiet=quiet)


@group.command()
def status(
    directory: Directory,
    as_json: Annotated[bool, typer.Option("--json", help="Print all cases as JSON.")] = False,
) -> int:
    """Show which cases are done, failed, running and waiting, and the expected time of the rest.

    \b
      charact sweep status sweeps/my_sweep
    """  # noqa: D301  (click wants the character itself)
    from charact.commands.sweep.status import show_status

    return show_status(directory, as_json=as_json)


@group.command()
def merge(
    directory: Directory,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that charact did not write.")] = False,
) -> int:
    """Write report.html and cases.csv of all finished cases, also while the sweep runs.

    \b
      charact sweep merge sweeps/my_sweep
    """  # noqa: D301  (click wants the character itself)
    from charact.commands.sweep.status import merge_runs

    return merge_runs(directory, force=force)
