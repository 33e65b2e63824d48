"""`charact infer`."""

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from charact.commands._options import parse_choice, parse_choices, parse_sizes, parse_synthetic
from charact.errors import UserError
from charact.schema import PRECISIONS

if TYPE_CHECKING:
    from charact.measure.case import Case
    from charact.workload import DataRequest, Workload


def command(
    workload: Annotated[str, typer.Argument(help="Workload to run, e.g. resnet18; see `charact list`.")],
    weights: Annotated[Path | None, typer.Option(
        help="File of its weights, by torch.save or safetensors. Default: random ones, saved first.")] = None,
    input_sizes: Annotated[str | None, typer.Option(
        help="Side lengths in pixels: 32,224, or a range 32:224:32 (end included). Default: the workload's.")] = None,
    batch_sizes: Annotated[str | None, typer.Option(help="Batch sizes, likewise. Default: the workload's.")] = None,
    precision: Annotated[str, typer.Option(
        help="fp32, tf32 (CUDA), bf16 and fp16 by autocast, pure-bf16 (weights too).")] = "fp32",
    variant: Annotated[str | None, typer.Option(help="Form of the model, e.g. cifar. Default: its first.")] = None,
    data: Annotated[str, typer.Option(help="Data set, e.g. synthetic, cifar10, mnist; see `charact list`.")]
    = "synthetic",
    data_dir: Annotated[Path | None, typer.Option(help="Where the files of a real data set are.")] = None,
    synthetic: Annotated[str | None, typer.Option(
        help="Made-up data otherwise than the default: classes=100, or vocabulary=5000,zipf=1.2.")] = None,
    split: Annotated[str, typer.Option(help="Split of the data: train, valid or test.")] = "test",
    max_batches: Annotated[int | None, typer.Option(
        min=1, help="Predict so many batches of it at most. Default: all.")] = None,
    repeats: Annotated[int, typer.Option(min=1, max=10_000, help="Loads with the file in memory.")] = 5,
    workers: Annotated[int, typer.Option(
        min=0, max=1024, help="Processes that load data; 0 loads in the main one.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    threads: Annotated[int | None, typer.Option(
        min=1, max=4096, help="Threads inside an operator. Default: PyTorch's.")] = None,
    channels_last: Annotated[bool, typer.Option("--channels-last", help="Keep images and weights in NHWC.")] = False,
    compiled: Annotated[bool, typer.Option("--compile", help="Run the model through torch.compile.")] = False,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed of random weights and made-up data.")] = 0,
    out: Annotated[Path, typer.Option(help="Directory that the run's directory is made in.")] = Path("runs"),
    name: Annotated[str | None, typer.Option(help="Name of the run. Default: the workload's.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors and the run's path only.")] = False,
) -> int:
    """Measure total inference time: load the weights, then predict a data set.

    Every combination of input size, batch size and precision is a case. The weights are loaded once with their file
    out of the system's memory (cold), then repeatedly from there (warm): the model is built, the file is read, the
    weights are put onto the device. Then the whole split is predicted, which gives throughput, the latency of each
    batch, and how well the task is done.

    \b
      charact infer resnet18 --variant cifar --weights resnet18.pt --data cifar10 --data-dir ~/data
      charact infer vgg16 --batch-sizes 1,8,64 --max-batches 50
    """  # noqa: D301  (click wants the character itself)
    sizes = None if input_sizes is None else parse_sizes(input_sizes, "--input-sizes")
    batches = None if batch_sizes is None else parse_sizes(batch_sizes, "--batch-sizes")
    precisions = parse_choices(precision, "--precision", PRECISIONS)
    chosen_split = parse_choice(split, "--split", ("train", "valid", "test"))
    if data != "synthetic" and synthetic is not None:
        raise UserError(f"--synthetic is for made-up data, not for {data}: leave one of them out")
    made_up = None if synthetic is None else parse_synthetic(synthetic)
    if data == "synthetic" and data_dir is not None:
        raise UserError("--data-dir is for real data: name them with --data, or leave it out")
    if name is not None and not name.strip():
        raise UserError("--name is empty: give the run a name, or leave it out")
    options = {
        "data": data, "synthetic": synthetic or "", "split": split, "max_batches": max_batches, "repeats": repeats,
        "workers": workers, "seed": seed, "channels_last": channels_last, "compiled": compiled,
    }

    from charact.measure.interrupt import Interrupt

    # From before the imports, some of which swallow Ctrl-C, to the end: a second one must not lose what is kept.
    with Interrupt() as interrupt:
        from charact.commands._running import run_and_publish
        from charact.measure.inference import InferencePlan, check_weights, infer_cases
        from charact.workload import DataRequest, Synthetic, find_workload

        request = DataRequest(name=data, directory=data_dir, split=chosen_split,  # type: ignore[arg-type]
                              seed=seed, synthetic=made_up or Synthetic())
        prepared = find_workload(workload).prepare(variant)
        cases = _cases(prepared, sizes, batches, precisions, request, device, workers, channels_last, compiled)
        if weights is not None:
            check_weights(cases, weights)
        elif not quiet:
            print("No --weights: random ones are saved first, so that loading is measured all the same")
        plan = InferencePlan(weights, repeats, max_batches)
        return run_and_publish(lambda writer, progress: infer_cases(cases, plan, writer, progress, interrupt), out,
                               name or prepared.name, options, threads, quiet, interrupt)


def _cases(workload: "Workload", sizes: list[int] | None, batches: list[int] | None, precisions: list[str],
           request: "DataRequest", device: str, workers: int, channels_last: bool, compiled: bool) -> "list[Case]":
    """The cross product, each case checked before anything is written."""
    from charact.hardware import resolve_device
    from charact.measure.case import Case

    resolved = resolve_device(device)
    cases = [
        Case(workload, size, batch, "infer", precision, resolved, request, workers, channels_last, compiled)
        for size, batch, precision in itertools.product(
            sizes or [workload.default_input_size], batches or [workload.default_batch_size], precisions)
    ]
    for case in cases:
        case.check()
    return cases
