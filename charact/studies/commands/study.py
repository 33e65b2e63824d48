"""`charact study`."""

from pathlib import Path
from typing import Annotated

import typer

from charact.commands._shared import options as opt
from charact.core.errors import UserError
from charact.core.plugins import module_names


def _names(incomplete: str) -> list[str]:
    return [*(name.rpartition(".")[2] for name in module_names("charact.studies.chapters")), "all"]


def command(
    name: Annotated[str, typer.Argument(metavar="STUDY", help="deep500, aalto, northeastern, dlbricks, or all.",
                                        autocompletion=_names)],
    full: Annotated[bool, typer.Option("--full/--quick", help="As published, which takes days on a CPU; or minutes on "
                                                              "two cores.")] = False,
    data_dir: Annotated[Path | None, typer.Option(
        help="Directory with a data set, or with a directory for each data set. Default: synthetic data.")] = None,
    out: Annotated[Path, typer.Option(help="Directory for the runs and report.html.")] = Path("studies"),
    machine: Annotated[list[Path] | None, typer.Option(
        metavar="DIRECTORY", help="Directory (--out) of dlbricks on another machine, to compare latencies and "
                                  "speedups; several are possible.")] = None,
    launcher: Annotated[str, typer.Option(help="local, one case after another here; or slurm, a job per case.")]
    = "local",
    slurm: Annotated[str | None, typer.Option(
        metavar="NAME=VALUE,...", help="Options of sbatch, as for `charact sweep`.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List cases, states and times; run nothing.")] = False,
    retry: Annotated[bool, typer.Option("--retry", help="Also run failed cases again, and replace their runs.")]
    = False,
    quiet: opt.Quiet = False,
) -> int:
    """Repeat a published study, next to its published values.

    Each study is a sweep: the same command continues it after an interruption. The report has a chapter for each study,
    with the study's figures in its order, the published values, and how this run differs from the published protocol.

    \b
      charact study northeastern                  time and speedup against a K80 and a P100
      charact study all --data-dir ~/data         all four, on real data where the directory has them
      charact study dlbricks --full --launcher slurm --slurm partition=cpu
      charact study dlbricks --machine laptop     the models here and on another machine

    \b
    deep500       time by operator and phase, memory, and counters of five workloads
    aalto         total execution and inference time, FLOPS, memory, and basic operations
    northeastern  time, accuracy and speedup of GoogLeNet and ResNet-18
    dlbricks      latencies of models, constructed from their unique layers
    """  # noqa: D301  (click wants the character itself)
    from charact.commands.sweep.run import parameters_of
    from charact.studies.commands._run import repeat_studies

    if not name:
        raise UserError("STUDY is empty: name deep500, aalto, northeastern, dlbricks or all")
    chosen = opt.parse_choice(launcher, "--launcher", ("local", "slurm"))
    if slurm is not None and chosen != "slurm":
        raise UserError("--slurm is for jobs of Slurm: add --launcher slurm, or leave it out")
    return repeat_studies(name, "full" if full else "quick", out, data_dir,
                          parameters_of(slurm) if chosen == "slurm" else None, machines=machine or [],
                          dry_run=dry_run, retry=retry, quiet=quiet)
