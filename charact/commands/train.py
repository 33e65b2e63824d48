"""`charact train`."""

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from charact.commands._shared import completion
from charact.commands._shared import options as opt
from charact.commands._shared.training import Options, parse_target, resume_training, start
from charact.core.errors import UserError
from charact.record.schema import PRECISIONS

_NAMES = {"workloads": "WORKLOADS", "compiled": "--compile"}
"""Names of options that differ from their parameters."""


def command(
    context: typer.Context,
    workloads: Annotated[list[str] | None, typer.Argument(
        metavar="WORKLOAD", help="Workloads to train, e.g. resnet18 mlp; see `charact list`.",
        autocompletion=completion.workloads)] = None,
    epochs: Annotated[int | None, typer.Option(min=1, max=1_000_000, help="Epochs.  [default: 1]")] = None,
    max_batches: Annotated[int | None, typer.Option(
        min=1, help="Train and validate on the first N batches of each epoch only. Default: all.", metavar="N",
        show_default=False)] = None,
    input_sizes: opt.InputSizes = None,
    batch_sizes: opt.BatchSizes = None,
    precision: Annotated[str | None, typer.Option(
        help="fp32, tf32 (CUDA), bf16 and fp16 by autocast, pure-bf16 (weights too).  [default: fp32]",
        autocompletion=completion.precisions)] = None,
    variant: opt.Variant = None,
    data: Annotated[str | None, typer.Option(
        help="Data set, e.g. cifar10, mnist; see `charact list`.  [default: synthetic]",
        autocompletion=completion.datasets)] = None,
    data_dir: opt.DataDir = None,
    synthetic: opt.MadeUp = None,
    split: Annotated[str | None, typer.Option(
        help="Split to train on: train, valid or test.  [default: train]")] = None,
    validation: Annotated[str | None, typer.Option(
        help="Split to validate on. Default: valid where the data have it, else test.")] = None,
    holdout: Annotated[float | None, typer.Option(
        help="Or hold out this share of the training split for validation, e.g. 0.1.")] = None,
    until: Annotated[str | None, typer.Option(
        help="Stop at the first epoch whose validation reaches this target, e.g. accuracy=0.95 or loss=0.3.",
        autocompletion=completion.training_metrics)] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Default: the workload's.")] = None,
    weights: Annotated[Path | None, typer.Option(help="File of initial weights. Default: random weights.")] = None,
    protocol: Annotated[str | None, typer.Option(
        help="Train as in a study: northeastern or vo; the record lists deviations.")] = None,
    nproc: Annotated[int | None, typer.Option(
        min=2, max=1024, metavar="N", help="Train data-parallel (DDP) on N ranks of this machine. --batch-sizes are "
                                           "those of each rank.")] = None,
    resume: Annotated[Path | None, typer.Option(
        help="Resume a killed or interrupted training: its directory, runs/.partial-...",
        autocompletion=completion.partial_runs)] = None,
    workers: opt.Workers = 0,
    device: opt.Device = "auto",
    threads: opt.Threads = None,
    channels_last: opt.ChannelsLast = False,
    compiled: opt.Compiled = False,
    seed: opt.Seed = 0,
    out: opt.Out = Path("runs"),
    name: opt.Name = None,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> int:
    """Train workloads: total time, and learning curves.

    Every combination of workload, input size, batch size and precision is a case, trained for all epochs. Each epoch is
    a training, a validation and a checkpoint, timed separately and by phase. An interrupted training resumes after its
    last complete epoch. The run's directory has the tables, the best weights and report.html.

    \b
      charact train resnet18 --variant cifar --data cifar10 --data-dir ~/data --epochs 10
      charact train mlp --data mnist --data-dir ~/data --epochs 50 --until accuracy=0.97
      charact train model_a --protocol vo --data-dir ~/data --epochs 5
      charact train resnet18 --variant cifar --data cifar10 --data-dir ~/data --nproc 2
      charact train --resume runs/.partial-20261121-100000-mlp-0a1b2c
    """  # noqa: D301  (click wants the character itself)
    said: Options = {
        "workloads": [part for workload in workloads or [] for part in opt.parse_list(workload, "WORKLOADS")],
        "num_epochs": epochs, "max_batches": max_batches, "variant": variant, "data": data, "synthetic": synthetic,
        "holdout_frac": holdout,
        "learning_rate": learning_rate, "protocol": protocol, "workers": workers, "device": device, "nproc": nproc,
        "threads": threads, "channels_last": channels_last, "compiled": compiled, "seed": seed,
        "input_sizes": _parsed(opt.parse_sizes, input_sizes, "--input-sizes"),
        "batch_sizes": _parsed(opt.parse_sizes, batch_sizes, "--batch-sizes"),
        "precisions": _parsed(opt.parse_choices, precision, "--precision", PRECISIONS),
        "split": _parsed(opt.parse_choice, split, "--split", opt.SPLITS),
        "validation": _parsed(opt.parse_choice, validation, "--validation", opt.SPLITS),
        "until": _parsed(parse_target, until),
        # A training may be resumed from another directory.
        "data_dir": _parsed(_absolute, data_dir), "weights": _parsed(_absolute, weights),
    }
    options = {option: value for option, value in said.items() if value is not None}
    if resume is None:
        _check(options, name)
    else:
        _check_alone(context)

    from charact.execution.interrupt import Interrupt

    # Begins before the imports, some of which ignore Ctrl-C. A second Ctrl-C must not lose the record.
    with Interrupt() as interrupt:
        if resume is not None:
            return resume_training(resume, quiet, interrupt, as_json=as_json)
        return start(options, out, name, quiet, interrupt, as_json=as_json)


def _parsed(parse: Any, value: Any, *arguments: Any) -> Any:
    return None if value is None else parse(value, *arguments)


def _absolute(path: Path) -> str:
    return str(path.absolute())


def _check(options: Options, name: str | None) -> None:
    """Check that options do not contradict each other."""
    if not options["workloads"]:
        raise UserError("give a workload, as in `charact train mlp`, or resume a training with --resume")
    if "holdout_frac" in options and "validation" in options:
        raise UserError("--holdout and --validation both select validation data: leave one out")
    if not 0 < options.get("holdout_frac", 0.5) < 1:
        raise UserError(f"--holdout: {options['holdout_frac']} is not between 0 and 1")
    if not 0 < options.get("learning_rate", 1.0) < math.inf:
        raise UserError(f"--learning-rate: {options['learning_rate']} is not positive")
    for option, why in (("compiled", "--compile makes ranks wait for each other's compilers"),
                        ("protocol", "--protocol is that of a study on one process")):
        if "nproc" in options and options.get(option):
            raise UserError(f"--nproc: {why}: leave one of them out")
    opt.check_name(name)


def _check_alone(context: typer.Context) -> None:
    """Check that `--resume` is the only option."""
    for option in context.params:
        source = context.get_parameter_source(option)
        if option not in ("resume", "quiet", "as_json") and source is not None and source.name == "COMMANDLINE":
            raise UserError(f"--resume takes all options from the resumed training: leave "
                            f"{_NAMES.get(option, '--' + option.replace('_', '-'))} out")
