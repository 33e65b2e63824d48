"""`charact profile`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from charact.commands._shared import completion
from charact.commands._shared import options as opt
from charact.core.errors import UserError
from charact.core.output import warn
from charact.record.schema import PRECISIONS

PASSES = ("timing", "operators", "memory", "flop", "counters")
"""Passes in the order in which they run."""

if TYPE_CHECKING:
    from charact.commands._shared.run_cases import Measure
    from charact.execution.case import Case
    from charact.execution.interrupt import Interrupt
    from charact.measure.passes.timing import StopRule
    from charact.record.writer import RunWriter
    from charact.views.terminal.progress import LiveProgress


def command(
    workloads: Annotated[list[str] | None, typer.Argument(
        metavar="WORKLOAD", help="Workloads to run, e.g. resnet50 vgg16; see `charact list`.",
        autocompletion=completion.workloads)] = None,
    model: opt.Model = None,
    model_args: opt.ModelArgs = None,
    input_spec: Annotated[str | None, typer.Option(help="Inputs of your model; see above.")] = None,
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
    variant: opt.Variant = None,
    data: opt.Data = "synthetic",
    data_dir: opt.DataDir = None,
    synthetic: Annotated[str | None, typer.Option(
        help="Synthetic data: classes=9, or vocabulary=5000,zipf=1.2,length-mean=0.5,length-spread=0.1, the lengths of "
             "sentences as shares of the input size. Default: the workload's.")] = None,
    split: opt.Split = "train",
    workers: opt.Workers = 0,
    device: opt.Device = "auto",
    threads: opt.Threads = None,
    channels_last: opt.ChannelsLast = False,
    compiled: opt.Compiled = False,
    parallel: opt.Parallel = None,
    nproc: opt.NumRanks = None,
    counters: opt.Counters = "auto",
    passes: Annotated[str | None, typer.Option(
        help="What to measure after timing: operators, memory, flop, counters; or only timing. Default: all.",
        show_default=False)] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed of weights and synthetic data.")] = 0,
    precision_target: Annotated[float, typer.Option(
        min=0, max=1, help="Stop a case when the 95 % interval of its median is within this share.")] = 0.02,
    max_iterations: Annotated[int, typer.Option(min=1, help="Or after this many iterations.")] = 100,
    max_seconds: Annotated[float, typer.Option(
        min=0, max=86_400, help="Or after this many seconds and 6 iterations.")] = 15.0,
    out: opt.Out = Path("runs"),
    name: Annotated[str | None, typer.Option(help="Name of the run. Default: the workloads'.")] = None,
    as_json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> int:
    """Characterize workloads: their time, memory and FLOP.

    Every combination of workload, input size, batch size, mode, precision and attention is a case. Each instrument
    measures in a run of its own, so that none slows another. The command prints a summary, and writes a directory with
    tables, traces and report.html.

    \b
      charact profile resnet --input-sizes 32,224
      charact profile vgg16 resnet50 --batch-sizes 1,8 --mode infer --precision fp32,bf16
      charact profile llama --mode generate --input-sizes 128,512 --output-sizes 64
      charact profile resnet18 --variant cifar --data cifar10 --data-dir ~/data --workers 2

    With --mode generate, language models read prompts of the input size (prefill) and then one word after another
    (decode), each of which is a case: its iterations are prompts, or words. The most likely word is chosen each time,
    and an end mark ends nothing.

    With --parallel, workloads or your own model train on several ranks of this machine, and only their time is
    measured, on each rank. --nproc 1,2 also measures a single process, from which the scaling efficiency follows: weak
    for equal --batch-sizes, which are those of each rank, and strong for an equal batch of all ranks.

    \b
      charact profile resnet18 --parallel ddp,fsdp2 --nproc 1,2 --batch-sizes 4,8 --input-sizes 32

    Your own model is any importable nn.Module. --input-spec lists its inputs, separated by commas:
    [name=][type[range]] shape. A shape joins numbers and S, the input size, by x. The batch is the first dimension, or
    the position of B. Types are float32 (the default), int64, int32, uint8 and bool; a range is as in Python. The
    target of the loss follows after ->.

    \b
      charact profile --model torchvision.models:resnet18 --input-spec "3xSxS -> int64[1000]" --input-sizes 64,224
      charact profile --model nets:Tagger --model-args words=5000 --input-spec "int64[5000] S -> int64[9] S"
                      --input-sizes 32
      charact profile --model nets:tiny_bert --input-spec "input_ids=int64[500] S, attention_mask=int64[1:2] S,
                      labels=int64[2]" --input-sizes 16:64:16 --optimizer AdamW --learning-rate 1e-4
      charact profile --model nets:tiny_llama --input-spec "input_ids=int64[500] S" --input-sizes 32 --mode generate

    Your own model generates if its forward takes past_key_values, and its output has logits and past_key_values, as in
    Hugging Face's transformers; with --cache none, if it returns logits.
    """  # noqa: D301  (click wants the character itself)
    sizes = None if input_sizes is None else opt.parse_sizes(input_sizes, "--input-sizes")
    batches = None if batch_sizes is None else opt.parse_sizes(batch_sizes, "--batch-sizes")
    modes, axes = opt.parse_modes(mode, output_sizes, cache)
    precisions = opt.parse_choices(precision, "--precision", PRECISIONS)
    axes |= {"attentions": opt.parse_attention(attention), "lora_ranks": opt.parse_lora(lora, modes, parallel)}
    wanted = list(PASSES) if passes is None else opt.parse_choices(passes, "--passes", PASSES)
    sources_named = [] if counters == "none" else opt.parse_list(counters, "--counters")
    request = opt.data_request(data, data_dir, synthetic, split, seed)
    names = [part for workload in workloads or [] for part in opt.parse_list(workload, "WORKLOADS")]
    own = {"--model": model, "--model-args": model_args, "--input-spec": input_spec, "--loss": loss,
           "--optimizer": optimizer, "--learning-rate": learning_rate}
    opt.check_own_options(own, {"WORKLOADS": workloads, "--variant": variant, "--data": data != "synthetic",
                                "--synthetic": synthetic, "--split": split != "train"})
    opt.check_name(name)
    ranks = opt.parse_ranks(parallel, nproc, with_one=True)
    if ranks and "train" not in modes:
        raise UserError("--parallel is for training: leave --mode infer out")
    if ranks and passes is not None:
        raise UserError("--parallel measures time only: leave --passes out")
    if ranks and compiled:
        raise UserError("--parallel and --compile exclude each other: leave one of them out")
    if ranks:
        modes = ["train"]
    options: dict[str, Any] = {
        "data": data, "synthetic": synthetic or "", "split": split, "workers": workers, "seed": seed,
        "channels_last": channels_last, "compiled": compiled, "counters": counters, "parallel": parallel,
        "nproc": nproc, "output_sizes": output_sizes, "attention": attention, "lora": lora,
        "precision_target_frac": precision_target, "max_iterations": max_iterations, "max_seconds": max_seconds,
    } | {option[2:].replace("-", "_"): value for option, value in own.items() if value is not None}
    if passes is not None:
        options["passes"] = wanted

    from charact.execution.interrupt import Interrupt

    # Begins before the imports, some of which ignore Ctrl-C. A second Ctrl-C must not lose the record.
    with Interrupt() as interrupt:
        from charact.commands._shared.run_cases import run_and_publish
        from charact.execution.case import cases_of, checked
        from charact.machine.facts import resolve_device
        from charact.measure.counters import chosen_sources
        from charact.measure.passes.runner import run_cases
        from charact.measure.passes.timing import StopRule
        from charact.workload.registry import find_workload

        prepared = ([find_workload(workload).prepare(variant) for workload in names]
                    or [opt.load_own_model(own).prepare()])
        cases = checked(case for workload in prepared for case in cases_of(
            workload, sizes, batches, modes, precisions, **axes, device=resolve_device(device), data=request,
            num_workers=workers, channels_last=channels_last, compiled=compiled))
        sources = chosen_sources(sources_named)
        rule = StopRule(precision_target, max_iterations, max_seconds)
        label = name or "+".join(workload.name for workload in prepared[:3])
        if ranks:
            return run_and_publish(_on_ranks(cases, ranks, rule, interrupt), out, label, options, threads, quiet,
                                   interrupt, [], as_json=as_json)
        return run_and_publish(
            lambda writer, progress: run_cases(cases, rule, writer, progress, interrupt, sources, wanted), out, label,
            options, threads, quiet, interrupt, [str(case.device) for case in cases],
            measures_ceilings="flop" in wanted, as_json=as_json)


def _on_ranks(cases: "list[Case]", ranks: list[tuple[str | None, int]], rule: "StopRule", interrupt: "Interrupt"
              ) -> "Measure":
    """Return the function that times the cases on ranks; the largest number of ranks divides the threads."""
    from dataclasses import replace

    import torch

    from charact.machine.ceilings_cache import best_collectives
    from charact.measure.ranks.processes import backend_of, threads_of_rank
    from charact.measure.ranks.timed_case import run_rank_cases

    most, num_cores = max(number for _, number in ranks), torch.get_num_threads()
    if most > num_cores and cases[0].device.type == "cpu":
        warn(f"charact: --nproc {most} is more than the {num_cores} threads of this process: ranks wait for each "
             "other's cores, so the scaling is that of this machine, not of the program")
    on_ranks = [replace(case, parallel=name, num_ranks=number) for case in cases for name, number in ranks]
    wanted = {(number, backend_of(cases[0].device.type)): None for _, number in ranks if number > 1}

    def measure(writer: "RunWriter", progress: "LiveProgress") -> None:
        writer.manifest |= best_collectives(writer.manifest["machine"]["fingerprint"], torch.__version__, wanted)
        run_rank_cases(on_ranks, rule, threads_of_rank(most), writer, progress, interrupt)

    return measure
