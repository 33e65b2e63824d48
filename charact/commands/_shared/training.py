"""Steps of `charact train`: build the cases, train them into a record, or resume one."""

import itertools
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from charact.commands._shared.options import check_data, parse_synthetic
from charact.core.errors import UserError

if TYPE_CHECKING:
    from charact.execution.interrupt import Interrupt
    from charact.measure.training.plan import Training
    from charact.record.writer import RunWriter
    from charact.workload.base import Workload
    from charact.workload.protocols import Protocol

Options = dict[str, Any]
"""The user's options, as in the manifest: options that were not given are absent."""


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
        _training(workload, size, batch, precision, chosen, protocol)
        for workload in (find_workload(name).prepare(options.get("variant")) for name in options["workloads"])
        for chosen, protocol in [_chosen(options, workload)]
        for size, batch, precision in itertools.product(
            chosen["input_sizes"], chosen["batch_sizes"], chosen["precisions"])
    ]
    for training in trainings:
        training.check()
    return list({training.case.id: training for training in trainings}.values())


def _chosen(options: Options, workload: "Workload") -> tuple[Options, "Protocol | None"]:
    """Return every option: the user's, else the protocol's, else the default."""
    from charact.workload.protocols import find_protocol

    protocol = find_protocol(options["protocol"], workload.name) if "protocol" in options else None
    chosen: Options = {
        "input_sizes": [workload.default_input_size], "batch_sizes": [workload.default_batch_size],
        "precisions": ["fp32"], "num_epochs": 1, "data": "synthetic", "split": "train",
        **({} if protocol is None else protocol.options()), **options,
    }
    check_data(chosen["data"], chosen.get("data_dir"), chosen.get("synthetic"))
    if "holdout_frac" in options:
        chosen.pop("validation", None)
    elif "validation" not in chosen:
        chosen["validation"] = _other_split(chosen["data"], chosen["split"])
    return chosen, protocol


def _other_split(data: str, split: str) -> str:
    """Return the split to validate on by default."""
    from charact.datasets._common.registry import find_dataset

    other = "valid" if "valid" in find_dataset(data).splits else "test"
    if other == split:
        raise UserError(f"--split {split} is also the validation split of {data}: hold out a share of it with "
                        "--holdout 0.1, or choose another with --validation")
    return other


def _training(workload: "Workload", size: int, batch: int, precision: str, chosen: Options, protocol: "Protocol | None"
              ) -> "Training":
    from charact.datasets._common.request import DataRequest, Synthetic
    from charact.execution.case import Case
    from charact.machine.facts import resolve_device
    from charact.measure.training.plan import Target, Training
    from charact.record.redaction import expanded_path

    directory, weights = chosen.get("data_dir"), chosen.get("weights")
    made_up = parse_synthetic(chosen["synthetic"]) if "synthetic" in chosen else Synthetic()
    request = DataRequest(chosen["data"], None if directory is None else expanded_path(directory), chosen["split"],
                          chosen["seed"], synthetic=made_up)
    case = Case(workload, size, batch, "train", precision, resolve_device(chosen["device"]), request,
                chosen["workers"], chosen["channels_last"], chosen["compiled"],
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

    quiet = quiet or as_json
    console = Console(stderr=True)

    def measure() -> None:
        with TrainingProgress(console, enabled=not quiet, lines=not quiet) as progress:
            train_cases(trainings, writer, progress, interrupt)

    return measure_resumably(writer, measure, interrupt, quiet, command="train", unit="epoch",
                             as_json=as_json)


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
