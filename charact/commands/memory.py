"""`charact memory`."""

import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from charact.commands._shared import completion
from charact.commands._shared import options as opt
from charact.core.errors import UserError
from charact.record.schema import PRECISIONS

if TYPE_CHECKING:
    from charact.record.writer import RunWriter
    from charact.views.terminal.progress import LiveProgress

_AXES = {"batch-size": "batch_size", "input-size": "input_size", "context": "input_size"}
_AMOUNT = re.compile(r"[\d.]+([kmgtp]i?b?|b)?", re.IGNORECASE)
"""An amount of memory, complete or not: no workload has such a name."""
_SMALLEST_BYTES = 2**20
"""Smallest limit without a unit: a smaller one was meant in another unit."""


def command(
    workloads: Annotated[list[str] | None, typer.Argument(
        metavar="WORKLOAD", help="Workloads, e.g. resnet50 rnn_lm; see `charact list`.",
        autocompletion=completion.workloads)] = None,
    model: opt.Model = None,
    model_args: opt.ModelArgs = None,
    input_spec: Annotated[str | None, typer.Option(help="Inputs of your model; see `charact profile --help`.")]
    = None,
    loss: opt.Loss = None,
    optimizer: opt.Optimizer = None,
    learning_rate: opt.LearningRate = None,
    input_sizes: opt.InputSizes = None,
    batch_sizes: opt.BatchSizes = None,
    output_sizes: opt.OutputSizes = None,
    mode: opt.Modes = "train,infer",
    cache: opt.Caches = None,
    precision: opt.Precision = "fp32",
    attention: opt.Attention = None,
    lora: opt.Lora = None,
    accumulate: Annotated[int, typer.Option(
        min=1, max=10_000, help="Batches per update (gradient accumulation) in training.")] = 1,
    parallel: opt.Parallel = None,
    nproc: opt.NumRanks = None,
    predict: Annotated[bool, typer.Option("--predict", help="Only estimate: run no case but small ones.")] = False,
    measure: Annotated[bool, typer.Option("--measure", help="Only measure.")] = False,
    device_memory: Annotated[str | None, typer.Option(
        metavar="AMOUNT", help="Memory limit of the device, e.g. 16GiB. Default: its memory.")] = None,
    device_like: Annotated[str | None, typer.Option(
        metavar="GPU", help="Estimate for this GPU, e.g. a100-80gb; it need not be present.",
        autocompletion=completion.target_devices)] = None,
    fit: Annotated[bool, typer.Option(
        "--fit", help="Search the largest batch that fits the device, or an amount: --fit 16GiB.")] = False,
    fit_by: Annotated[str | None, typer.Option(
        metavar="AXIS", help="What to search: batch-size at each input size (default), or input-size (context) at "
                             "each batch size.")] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Run the result, and the next larger value.")] = False,
    variant: opt.Variant = None,
    data: opt.Data = "synthetic",
    data_dir: opt.DataDir = None,
    synthetic: opt.MadeUp = None,
    device: opt.Device = "auto",
    threads: opt.Threads = None,
    seed: opt.Seed = 0,
    out: opt.Out = Path("runs"),
    name: opt.Name = None,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> int:
    """Estimate and measure memory against input size.

    Every combination of workload, input size, batch size, mode and precision is a case. Its memory is estimated on
    tensors without data, at any size and for any device. It is also measured if the device is present and has enough
    memory. A case that runs out of memory is recorded with the requested size. --fit searches what would fit.
    With --parallel, one rank of --nproc is estimated, and nothing runs on several processes.

    Exit status: 0 if at least one case was measured or is estimated to fit, 1 if none was, 2 for a wrong option.

    \b
      charact memory resnet18 --input-sizes 32:224:32 --batch-sizes 1,8
      charact memory vgg16 --predict --device-like a100-80gb --batch-sizes 256 --mode train
      charact memory transformer --fit 16GiB --input-sizes 32,64 --mode train
      charact memory resnet18 --device-memory 500MiB --fit --verify
      charact memory llama --mode generate --fit 80GiB --fit-by context
      charact memory resnet50 --parallel ddp,fsdp2 --nproc 8 --mode train
    """  # noqa: D301  (click wants the character itself)
    from charact.measure.memory_estimate.target_devices import target_names

    names = [part for workload in workloads or [] for part in opt.parse_list(workload, "WORKLOADS")]
    amounts = [part for part in names if _AMOUNT.fullmatch(part)]
    names = [part for part in names if part not in amounts]
    axis = _AXES[opt.parse_choice(fit_by or "batch-size", "--fit-by", _AXES)]
    _check({
        **{f"{option} goes with --fit: add that, or leave {option} out": not fit and bool(value)
           for option, value in (("--fit-by", fit_by), ("--verify", verify))},
        **{f"'{name}' is a GPU, not a workload: write --device-like {name}": name.lower() in target_names()
           for name in names},
        "--predict and --measure exclude each other: leave both out to do both": predict and measure,
        "--fit searches with estimates: leave --measure out; --verify runs the result": fit and measure,
        "--verify runs the result: leave --predict out": verify and predict,
        "--fit searches the batch size: leave --batch-sizes out, or search with --fit-by input-size":
            fit and axis == "batch_size" and batch_sizes is not None,
        "--fit-by input-size searches the input size: leave --input-sizes out":
            fit and axis == "input_size" and input_sizes is not None,
    })
    limit_bytes = _limit_bytes(fit, device_memory, amounts)
    sizes = None if input_sizes is None else opt.parse_sizes(input_sizes, "--input-sizes")
    batches = None if batch_sizes is None else opt.parse_sizes(batch_sizes, "--batch-sizes")
    modes, axes = opt.parse_modes(mode, output_sizes, cache)
    precisions = opt.parse_choices(precision, "--precision", PRECISIONS)
    axes |= {"attentions": opt.parse_attention(attention), "lora_ranks": opt.parse_lora(lora, modes, parallel)}
    if accumulate > 1 and "train" not in modes:
        raise UserError("--accumulate is for training: add train to --mode, or leave it out")
    request = opt.data_request(data, data_dir, synthetic, "train", seed)
    own = {"--model": model, "--model-args": model_args, "--input-spec": input_spec, "--loss": loss,
           "--optimizer": optimizer, "--learning-rate": learning_rate}
    opt.check_own_options(own, {"WORKLOADS": names, "--variant": variant, "--data": data != "synthetic",
                                      "--synthetic": synthetic}, "memory")
    opt.check_name(name)
    ranks = opt.parse_ranks(parallel, nproc)
    if ranks and (measure or verify):
        raise UserError(f"--parallel estimates, and runs nothing: leave {'--measure' if measure else '--verify'} out")
    options: dict[str, Any] = {
        "command": "memory", "predict": not measure, "measure": not predict, "fit": axis if fit else None,
        "verify": verify, "device_like": device_like, "device_memory_bytes": limit_bytes, "accumulate": accumulate,
        "data": data, "synthetic": synthetic or "", "seed": seed, "parallel": parallel, "nproc": nproc,
        "output_sizes": output_sizes, "attention": attention, "lora": lora,
    } | {option[2:].replace("-", "_"): value for option, value in own.items() if value is not None}

    from charact.execution.interrupt import Interrupt

    # Begins before the imports, some of which ignore Ctrl-C. A second Ctrl-C must not lose the record.
    with Interrupt() as interrupt:
        from charact.commands._shared.memory_target import chosen_device
        from charact.commands._shared.publish import program
        from charact.commands._shared.run_cases import run_and_publish
        from charact.execution.case import cases_of, checked
        from charact.measure.memory_estimate.target_devices import targets_of_about
        from charact.measure.memory_sweep.largest_fit import FitPlan, run_fits
        from charact.measure.memory_sweep.sweep import MemoryPlan, run_memory_cases
        from charact.views.terminal.progress import MemoryProgress
        from charact.workload.registry import find_workload

        prepared = ([find_workload(workload).prepare(variant) for workload in names]
                    or [opt.load_own_model(own).prepare()])
        runs = verify if fit else not (predict or ranks)
        chosen = chosen_device(device, device_like, limit_bytes, runs=runs,
                               limit_option="--device-memory" if device_memory else "the amount of --fit")
        if (measure or verify) and not chosen.here:
            raise UserError(f"{chosen.target.name} is not present: leave {'--measure' if measure else '--verify'} out")
        if limit_bytes is not None and device == "auto" and chosen.target.kind == "cpu":
            options["gpus_of_that_memory"] = targets_of_about(limit_bytes)
        cases = []
        for workload in prepared:
            if fit and axis == "input_size":  # a search begins at the smallest value
                sizes = [workload.smallest_input_size]
            elif fit:
                batches = [1]
            cases += cases_of(workload, sizes, batches, modes, precisions, **axes, device=chosen.device,
                              data=request)
        cases = [replace(case, accumulate=accumulate) if case.mode == "train" else case for case in cases]
        if ranks:
            cases = [replace(case, parallel=name, num_ranks=number) for case in cases for name, number in ranks]
        cases = checked(cases, here=chosen.here)
        if fit:
            fitting = FitPlan(axis, MemoryPlan(chosen.target, measure=verify, limit_bytes=limit_bytes))
        else:
            measures = chosen.here and not (predict or ranks)
            plan = MemoryPlan(chosen.target, not measure, measures, limit_bytes,
                              f"{program()} {shlex.join(with_fit(sys.argv[1:]))}")

        def runner(writer: "RunWriter", progress: "LiveProgress") -> None:
            if fit:
                run_fits(cases, fitting, writer, progress, interrupt)
            else:
                run_memory_cases(cases, plan, writer, progress, interrupt)

        label = name or "+".join(workload.name for workload in prepared[:3])
        devices = [str(chosen.device)] if chosen.here else []
        return run_and_publish(runner, out, label, options, threads, quiet, interrupt, devices, MemoryProgress,
                               as_json=as_json)


def _limit_bytes(fit: bool, device_memory: str | None, amounts: list[str]) -> int | None:
    """Return the requested memory limit; None for the device's memory."""
    from charact.measure.memory_estimate.target_devices import parse_memory

    if not fit and amounts:
        raise UserError(f"'{amounts[0]}' is not a workload: write --fit {amounts[0]}, or --device-memory {amounts[0]}")
    given = amounts if device_memory is None else [device_memory, *amounts]
    if len(given) > 1:
        raise UserError("the memory to fit is given twice: leave one of them out")
    if not given:
        return None
    limit_bytes = parse_memory(given[0])
    if given[0].strip().isdecimal() and limit_bytes < _SMALLEST_BYTES:
        raise UserError(f"'{given[0]}' is in bytes: write {given[0]}GiB or {given[0]}MiB")
    return limit_bytes


def _check(problems: dict[str, bool]) -> None:
    for problem, occurs in problems.items():
        if occurs:
            raise UserError(problem)


_NOT_OF_A_SEARCH = {"--batch-sizes": 1, "--out": 1, "--name": 1, "--measure": 0, "--predict": 0, "--quiet": 0, "-q": 0,
                    "--json": 0}
"""Options that a search does not take, or that only name or reduce the output, with their number of values."""


def with_fit(arguments: Sequence[str]) -> list[str]:
    """Return the command line that searches the largest batch instead of estimating given ones."""
    kept: list[str] = []
    left = list(arguments)
    while left:
        argument = left.pop(0)
        option, equals, _ = argument.partition("=")
        if option not in _NOT_OF_A_SEARCH:
            kept.append(argument)
        elif not equals:
            del left[:_NOT_OF_A_SEARCH[option]]
    return [*kept, "--fit"]
