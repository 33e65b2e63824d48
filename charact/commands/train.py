"""`charact train`."""

import itertools
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from charact.commands._shared import completion
from charact.commands._shared import options as opt
from charact.core.errors import UserError
from charact.record.schema import PRECISIONS

if TYPE_CHECKING:
    from charact.execution.interrupt import Interrupt
    from charact.measure.training.plan import Training
    from charact.record.writer import RunWriter
    from charact.workload.base import Workload
    from charact.workload.protocols import Protocol

Options = dict[str, Any]
"""The user's options, as in the manifest: options that were not given are absent."""
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
    attention: opt.Attention = None,
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
    given: Options = {
        "workloads": [part for workload in workloads or [] for part in opt.parse_list(workload, "WORKLOADS")],
        "num_epochs": epochs, "max_batches": max_batches, "variant": variant, "data": data, "synthetic": synthetic,
        "holdout_frac": holdout, "learning_rate": learning_rate, "protocol": protocol, "nproc": nproc,
        "workers": workers, "device": device, "threads": threads, "seed": seed,
        "channels_last": channels_last, "compiled": compiled,
        "input_sizes": _parsed(opt.parse_sizes, input_sizes, "--input-sizes"),
        "batch_sizes": _parsed(opt.parse_sizes, batch_sizes, "--batch-sizes"),
        "precisions": _parsed(opt.parse_choices, precision, "--precision", PRECISIONS),
        "attentions": None if attention is None else opt.parse_attention(attention),
        "split": _parsed(opt.parse_choice, split, "--split", opt.SPLITS),
        "validation": _parsed(opt.parse_choice, validation, "--validation", opt.SPLITS),
        "until": _parsed(parse_target, until),
        # A training may be resumed from another directory.
        "data_dir": None if data_dir is None else str(data_dir.absolute()),
        "weights": None if weights is None else str(weights.absolute()),
    }
    options = {option: value for option, value in given.items() if value is not None}
    if resume is None:
        _check(options, name)
    else:
        for option in context.params:
            source = context.get_parameter_source(option)
            if option not in ("resume", "quiet", "as_json") and source is not None and source.name == "COMMANDLINE":
                raise UserError(f"--resume takes all options from the resumed training: leave "
                                f"{_NAMES.get(option, '--' + option.replace('_', '-'))} out")

    from charact.execution.interrupt import Interrupt

    # Begins before the imports, some of which ignore Ctrl-C. A second Ctrl-C must not lose the record.
    with Interrupt() as interrupt:
        if resume is not None:
            return resume_training(resume, quiet or as_json, interrupt, as_json=as_json)
        return start(options, out, name, quiet or as_json, interrupt, as_json=as_json)


def _parsed(parse: Any, value: Any, *arguments: Any) -> Any:
    return None if value is None else parse(value, *arguments)


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


def start(options: Options, out: Path, name: str | None, quiet: bool, interrupt: "Interrupt", *,
          as_json: bool = False) -> int:
    """Train into a new record in `out`; return the exit status."""
    from charact.commands._shared.ceilings import recorded_ceilings
    from charact.commands._shared.publish import keeping_finished
    from charact.commands._shared.run_cases import open_record
    from charact.machine.facts import usable_cores
    from charact.measure.script.ranks.launcher import warn_of_few_cores

    trainings = make_trainings(options)
    if trainings[0].case.device.type == "cpu":
        warn_of_few_cores(trainings[0].case.num_ranks, usable_cores())
    label = name or "+".join(list(dict.fromkeys(training.case.workload.name for training in trainings))[:3])
    # Resolve "auto": on another machine it may be another device, and the case another one.
    options = options | {"device": str(trainings[0].case.device)}
    writer = open_record(out, label, options, options.get("threads"))
    with keeping_finished([writer]):
        writer.manifest |= recorded_ceilings(writer.manifest["machine"]["fingerprint"], [options["device"]])
    return _train(writer, trainings, quiet, interrupt, as_json)


def resume_training(directory: Path, quiet: bool, interrupt: "Interrupt", *, as_json: bool = False) -> int:
    """Resume a killed or interrupted training; return the exit status."""
    import torch

    from charact.commands._shared.publish import publish_and_report
    from charact.record.manifest import check_holds
    from charact.record.reader import load_run
    from charact.record.writer import RunWriter

    if "workloads" not in load_run(directory, partial=True).manifest.get("options", {}):
        raise UserError(f"{directory} is not a training: --resume needs an unfinished directory of `charact train`")
    writer = RunWriter.reopen(directory)
    if writer.manifest["status"] != "running":  # killed after training, before its views were written
        writer.close("complete")
        return 0 if publish_and_report(writer, quiet, as_json=as_json) else 1
    check_holds(writer.manifest, directory, options=("threads",))
    options = writer.manifest["options"]
    torch.set_num_threads(options["threads"])
    return _train(writer, make_trainings(options), quiet, interrupt, as_json)


def make_trainings(options: Options) -> "list[Training]":
    """Return the cross product of workloads, sizes and precisions; each is checked before anything is written."""
    from charact.workload.registry import find_workload

    trainings = [
        _training(workload, size, batch, precision, attention, chosen, protocol)
        for workload in (find_workload(name).prepare(options.get("variant")) for name in options["workloads"])
        for chosen, protocol in [_chosen(options, workload)]
        for size, batch, precision, attention in itertools.product(
            chosen["input_sizes"], chosen["batch_sizes"], chosen["precisions"], chosen["attentions"])
    ]
    for training in trainings:
        training.check()
    return list({training.case.id: training for training in trainings}.values())


def _chosen(options: Options, workload: "Workload") -> tuple[Options, "Protocol | None"]:
    """Return every option: the user's, else the protocol's, else the default."""
    from charact.datasets._common.registry import find_dataset
    from charact.workload.protocols import find_protocol

    protocol = find_protocol(options["protocol"], workload.name) if "protocol" in options else None
    chosen: Options = {
        "input_sizes": [workload.default_input_size], "batch_sizes": [workload.default_batch_size],
        "precisions": ["fp32"], "attentions": [None], "num_epochs": 1, "data": "synthetic", "split": "train",
        **({} if protocol is None else protocol.options()), **options,
    }
    opt.check_data(chosen["data"], chosen.get("data_dir"), chosen.get("synthetic"))
    if "holdout_frac" in options:
        chosen.pop("validation", None)
    elif "validation" not in chosen:
        chosen["validation"] = "valid" if "valid" in find_dataset(chosen["data"]).splits else "test"
        if chosen["validation"] == chosen["split"]:
            raise UserError(f"--split {chosen['split']} is also the validation split of {chosen['data']}: hold out a "
                            "share of it with --holdout 0.1, or choose another with --validation")
    return chosen, protocol


def _training(workload: "Workload", size: int, batch: int, precision: str, attention: str | None, chosen: Options,
              protocol: "Protocol | None") -> "Training":
    from charact.datasets._common.request import DataRequest, Synthetic
    from charact.execution.case import Case
    from charact.machine.facts import resolve_device
    from charact.measure.training.plan import Target, Training
    from charact.record.redaction import expanded_path

    directory, weights = chosen.get("data_dir"), chosen.get("weights")
    made_up = opt.parse_synthetic(chosen["synthetic"]) if "synthetic" in chosen else Synthetic()
    request = DataRequest(chosen["data"], None if directory is None else expanded_path(directory), chosen["split"],
                          chosen["seed"], synthetic=made_up)
    case = Case(workload, size, batch, "train", precision, resolve_device(chosen["device"]), request,
                chosen["workers"], chosen["channels_last"], chosen["compiled"], attention=attention,
                **({"parallel": "ddp", "num_ranks": chosen["nproc"]} if "nproc" in chosen else {}))
    return Training(
        case, chosen["num_epochs"], chosen.get("validation"), chosen.get("holdout_frac"),
        Target(*chosen["until"]) if "until" in chosen else None, chosen.get("learning_rate"),
        None if weights is None else expanded_path(weights), chosen.get("max_batches"),
        None if protocol is None else protocol.facts(_used(case, chosen)))


def _used(case: Any, chosen: Options) -> dict[str, Any]:
    """Return the options that are compared with a protocol."""
    held_out = chosen.get("holdout_frac")
    used = {
        "workload": case.workload.name, "variant": [case.workload.variants[0], case.workload.variant],
        "data": chosen["data"], "split": chosen["split"],
        "validation": chosen["validation"] if held_out is None else f"{held_out:g} of {chosen['split']}, held out",
        "num_epochs": chosen["num_epochs"], "batch_size": case.batch_size, "input_size": case.input_size,
        "precision": case.precision, "weights": chosen.get("weights", "random"),
        "until": "{} {:g}".format(*chosen["until"]) if "until" in chosen else "none",
    }
    return used | ({"learning_rate": chosen["learning_rate"]} if "learning_rate" in chosen else {})


def _train(writer: "RunWriter", trainings: "list[Training]", quiet: bool, interrupt: "Interrupt",
           as_json: bool) -> int:
    from charact.commands._shared.publish import measure_resumably
    from charact.core.console import Console
    from charact.measure.training.train_case import train_cases
    from charact.views.terminal.progress import TrainingProgress

    def measure() -> None:
        with TrainingProgress(Console(stderr=True), enabled=not quiet, lines=not quiet) as progress:
            train_cases(trainings, writer, progress, interrupt)

    return measure_resumably(writer, measure, interrupt, quiet, command="train", unit="epoch", as_json=as_json)


def parse_target(text: str) -> tuple[str, float]:
    """Parse metric and value of `accuracy=0.95`."""
    metric, _, value = (part.strip() for part in text.partition("="))
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not metric or not math.isfinite(number):
        raise UserError(f"--until: '{text}' is not a metric and a value; write it as in accuracy=0.95")
    return metric, number
