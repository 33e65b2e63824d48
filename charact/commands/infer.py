"""`charact infer`."""

from pathlib import Path
from typing import Annotated

import typer

from charact.commands._shared import completion
from charact.commands._shared import options as opt
from charact.core.output import show
from charact.record.schema import PRECISIONS


def command(
    workload: Annotated[str, typer.Argument(
        metavar="WORKLOAD", help="Workload to run, e.g. resnet18; see `charact list`.",
        autocompletion=completion.workload_names)],
    weights: Annotated[Path | None, typer.Option(
        help="File of weights, from torch.save or safetensors. Default: random weights, saved first.")] = None,
    input_sizes: opt.InputSizes = None,
    batch_sizes: opt.BatchSizes = None,
    precision: opt.Precision = "fp32",
    attention: opt.Attention = None,
    variant: opt.Variant = None,
    data: opt.Data = "synthetic",
    data_dir: opt.DataDir = None,
    synthetic: opt.MadeUp = None,
    split: opt.Split = "test",
    max_batches: Annotated[int | None, typer.Option(
        min=1, help="Maximum number of batches. Default: all.")] = None,
    repeats: Annotated[int, typer.Option(min=1, max=10_000, help="Number of warm loads.")] = 5,
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
    """Measure total inference time: load the weights, then predict.

    Every combination of input size, batch size, precision and attention is a case. The weights are loaded once with
    their file not in the page cache (cold), then repeatedly from the cache (warm): build the model, read the file, copy
    the weights to the device. Then the whole split is predicted, which gives throughput, the latency of each batch, and
    the quality of the predictions.

    \b
      charact infer resnet18 --variant cifar --weights resnet18.pt --data cifar10 --data-dir ~/data
      charact infer vgg16 --batch-sizes 1,8,64 --max-batches 50
    """  # noqa: D301  (click wants the character itself)
    sizes = None if input_sizes is None else opt.parse_sizes(input_sizes, "--input-sizes")
    batches = None if batch_sizes is None else opt.parse_sizes(batch_sizes, "--batch-sizes")
    precisions = opt.parse_choices(precision, "--precision", PRECISIONS)
    attentions = opt.parse_attention(attention)
    request = opt.data_request(data, data_dir, synthetic, split, seed)
    opt.check_name(name)
    options = {
        "data": data, "synthetic": synthetic or "", "split": split, "max_batches": max_batches, "repeats": repeats,
        "workers": workers, "seed": seed, "channels_last": channels_last, "compiled": compiled,
        "attention": attention,
    }

    from charact.execution.interrupt import Interrupt

    # Begins before the imports, some of which ignore Ctrl-C. A second Ctrl-C must not lose the record.
    with Interrupt() as interrupt:
        from charact.commands._shared.run_cases import run_and_publish
        from charact.execution.case import cases_of, checked
        from charact.machine.facts import resolve_device
        from charact.measure.training.infer_case import InferencePlan, infer_cases
        from charact.measure.training.weight_files import check_weights
        from charact.workload.registry import find_workload

        prepared = find_workload(workload).prepare(variant)
        cases = checked(cases_of(prepared, sizes, batches, ["infer"], precisions, attentions=attentions,
                                 device=resolve_device(device), data=request, num_workers=workers,
                                 channels_last=channels_last, compiled=compiled))
        if weights is not None:
            check_weights(cases, weights)
        elif not quiet and not as_json:
            show("No --weights: random weights are saved first, to measure loading")
        plan = InferencePlan(weights, repeats, max_batches)
        return run_and_publish(lambda writer, progress: infer_cases(cases, plan, writer, progress, interrupt), out,
                               name or prepared.name, options, threads, quiet, interrupt,
                               [str(case.device) for case in cases], as_json=as_json)
