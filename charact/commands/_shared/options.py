"""Options that commands share, and parsers and checks of their values."""

import os
import re
from collections.abc import Collection, Mapping
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
import typer.core

from charact.commands._shared import completion
from charact.core.errors import UserError
from charact.core.text import did_you_mean
from charact.record.schema import ATTENTION, CACHES, GENERATE, GENERATING_MODES, MODES, PARALLEL

if TYPE_CHECKING:
    from charact.datasets._common.request import DataRequest, Synthetic
    from charact.workload.user_model.model import OwnModel

InputSizes = Annotated[str | None, typer.Option(
    help="Side lengths in pixels: 32,224, or a range 32:224:32 (end included). Default: the workload's.")]
BatchSizes = Annotated[str | None, typer.Option(help="Batch sizes, as list or range. Default: the workload's.")]
Modes = Annotated[str, typer.Option(help="train, infer, generate (which is prefill,decode), or several.",
                                    autocompletion=completion.modes)]
OutputSizes = Annotated[str | None, typer.Option(
    metavar="SIZES", help="With --mode generate: words that each request gets. Default: 32.")]
Caches = Annotated[str | None, typer.Option(
    "--cache", help="With --mode generate, how keys and values are kept: static, growing (copied for each word), int8, "
                    "none (all words are read again for each one). Default: static; of your own model growing.",
    autocompletion=completion.caches)]
Precision = Annotated[str, typer.Option(
    help="fp32, tf32 (CUDA), bf16 and fp16 by autocast, pure-bf16 (weights too), int8-weights (inference, by torchao).",
    autocompletion=completion.precisions)]
Attention = Annotated[str | None, typer.Option(
    metavar="NAMES", help="Backend of attention, each a case: flash, efficient (CUDA), cudnn (CUDA), math. Default: "
                          "PyTorch's choice.", autocompletion=completion.attentions)]
Lora = Annotated[str | None, typer.Option(
    "--lora", metavar="RANKS", help="Train low-rank adapters of attention's query and value instead of the model, e.g. "
                                    "8 or 4,16.")]
Data = Annotated[str, typer.Option(
    help="Data set, e.g. synthetic, cifar10, mnist; see `charact list`.", autocompletion=completion.datasets)]
Variant = Annotated[str | None, typer.Option(help="Variant of the model, e.g. cifar. Default: its first.")]
DataDir = Annotated[Path | None, typer.Option(help="Directory of a real data set's files.")]
MadeUp = Annotated[str | None, typer.Option(
    help="Options of synthetic data: classes=100, or vocabulary=5000,zipf=1.2.")]
Workers = Annotated[int, typer.Option(min=0, max=1024, help="Processes that load data; 0 uses the main process.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.", autocompletion=completion.devices)]
Threads = Annotated[int | None, typer.Option(min=1, max=4096, help="Threads inside an operator. Default: PyTorch's.")]
ChannelsLast = Annotated[bool, typer.Option("--channels-last", help="Store images and weights as NHWC.")]
Compiled = Annotated[bool, typer.Option("--compile", help="Run the model through torch.compile.")]
Counters = Annotated[str, typer.Option(
    help="Counter sources: auto for all without overhead, none, or names as in host,nvml or auto,pm; see "
         "`charact doctor`.")]
Split = Annotated[str, typer.Option(help="Split of the data: train, valid or test.")]
Seed = Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed of all random numbers.")]
Out = Annotated[Path, typer.Option(help="Directory in which to create the run's directory.")]
Name = Annotated[str | None, typer.Option(help="Name of the run. Default: the workload's.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors and the run's path only.")]

Model = Annotated[str | None, typer.Option(
    metavar="MODULE:NAME", help="Your own model: an nn.Module class or a function that returns one.")]
ModelArgs = Annotated[str | None, typer.Option(help="Its arguments: depth=50,width=0.5")]
Loss = Annotated[str | None, typer.Option(
    help="A loss of torch.nn.functional, or MODULE:NAME of a function of outputs and target. Default: the model's "
         "own (outputs.loss), else one that fits the target, else a mean.")]
Optimizer = Annotated[str | None, typer.Option(help="A class of torch.optim, for your model. Default: SGD.")]
LearningRate = Annotated[float | None, typer.Option(min=0, help="Learning rate of this optimizer. Default: 0.01.")]
Parallel = Annotated[str | None, typer.Option(
    metavar="NAMES", help="Data-parallel training: ddp, fsdp2, or both; with --nproc.")]
NumRanks = Annotated[str | None, typer.Option(
    "--nproc", metavar="N", help="Number of ranks for --parallel, e.g. 8 or 2,4,8. --batch-sizes are those of each "
                                 "rank.")]
Json = Annotated[bool, typer.Option(
    "--json", help="Print only the summary of the finished run, as charact show --json does.")]

Run = Annotated[Path, typer.Argument(
    metavar="RUN", help="Run directory, such as one below runs/.", autocompletion=completion.runs)]
Runs = Annotated[list[Path] | None, typer.Argument(
    metavar="RUN", help="Run directories, or directories of runs. Default: runs.", autocompletion=completion.runs)]
Partial = Annotated[bool, typer.Option("--partial", help="Read a killed run.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite files that exist.")]

SPLITS = ("train", "valid", "test")
_MAX_SIZES = 10_000
_LARGEST = 10**9
_MAX_RANKS = 65_536
_SYNTHETIC_RANGES: dict[str, tuple[int, int] | tuple[float, float]] = {
    "classes": (1, 10**7),
    "vocabulary": (4, 10**7),  # up to three words are special tokens
    "zipf": (0.0, 100.0),
    "length-mean": (0.001, 1.0),
    "length-spread": (0.0, 1.0),
}


class Command(typer.core.TyperCommand):
    """A command that rejects empty paths: "" would become the current directory."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Check the paths before Typer converts the arguments."""
        values, _, _ = self.make_parser(ctx).parse_args(args=list(args))
        for parameter in self.params:
            value = values.get(parameter.name)
            if takes(parameter, Path) and (value == "" or (isinstance(value, list | tuple) and "" in value)):
                option = parameter.opts[0]
                name = option if option.startswith("-") else parameter.metavar or option.upper()
                raise UserError(f"{name} is empty: name a file or directory, or leave it out")
        return super().parse_args(ctx, args)


def takes(parameter: Any, kind: type) -> bool:
    """Return whether the values of an option or argument have a type."""
    annotation = parameter.type_descriptor.annotation
    return kind in (annotation, *get_args(annotation))


def parse_sizes(text: str, option: str) -> list[int]:
    """Parse positive integers from `32,224` or a range `32:224:32` (end included); without duplicates, in order."""
    sizes: list[int] = []
    for part in _parts(text, option):
        sizes += _range(part, option) if ":" in part else [_positive(part, option)]
    return list(dict.fromkeys(sizes))


def parse_choices(text: str, option: str, choices: Collection[str]) -> list[str]:
    """Parse a comma-separated list of choices; without duplicates, in order."""
    return [parse_choice(word, option, choices) for word in parse_list(text, option)]


def parse_modes(text: str, output_sizes: str | None, caches: str | None) -> tuple[list[str], dict[str, list[Any]]]:
    """Return the modes of --mode, and for those that generate the arguments of `cases_of`."""
    words = [mode for word in parse_list(text, "--mode") for mode in (GENERATING_MODES if word == GENERATE else [word])]
    for word in words:
        parse_choice(word, "--mode", [*MODES, GENERATE])
    modes = list(dict.fromkeys(words))
    if not set(modes) & set(GENERATING_MODES):
        for option, is_given in (("--output-sizes", output_sizes is not None), ("--cache", caches is not None)):
            if is_given:
                raise UserError(f"{option} is for --mode generate: add that, or leave {option} out")
        return modes, {}
    sizes = [] if output_sizes is None else parse_sizes(output_sizes, "--output-sizes")
    return modes, {"output_sizes": sizes, "caches": [] if caches is None else parse_choices(caches, "--cache", CACHES)}


def parse_attention(text: str | None) -> list[str | None]:
    """Return the backends of --attention; only None, for PyTorch's choice, if it is not given."""
    return [None] if text is None else [*parse_choices(text, "--attention", ATTENTION)]


def parse_lora(text: str | None, modes: Collection[str], parallel: str | None) -> list[int]:
    """Return the ranks of --lora; only 0, for none, if it is not given."""
    if text is None:
        return [0]
    ranks = parse_sizes(text, "--lora")
    if "train" not in modes:
        raise UserError("--lora is for training: add train to --mode, or leave --lora out")
    if parallel is not None:
        raise UserError("--lora and --parallel exclude each other: leave one of them out")
    return ranks


def parse_choice(text: str, option: str, choices: Collection[str]) -> str:
    """Return the choice of an option."""
    if text not in choices:
        raise UserError(f"{option}: '{text}' is not one of {', '.join(choices)}")
    return text


def parse_list(text: str, option: str) -> list[str]:
    """Parse a comma-separated list; without duplicates, in order."""
    return list(dict.fromkeys(_parts(text, option)))


def parse_synthetic(text: str) -> "Synthetic":
    """Parse options of synthetic data from `classes=100,zipf=1.2`; others keep their default."""
    from charact.datasets._common.request import Synthetic
    from charact.datasets.synthetic import KEYS

    values: dict[str, Any] = {}
    for part in _parts(text, "--synthetic"):
        key, _, value = (word.strip() for word in part.partition("="))
        if key not in KEYS:
            raise UserError(f"--synthetic: '{key}' is not one of {', '.join(KEYS)}")
        if KEYS[key] in values:
            raise UserError(f"--synthetic: {key} is given twice: remove one")
        smallest, largest = _SYNTHETIC_RANGES[key]
        whole = isinstance(smallest, int)
        try:
            number = int(value) if whole else float(value)
        except ValueError as error:
            raise UserError(f"--synthetic {key}: '{value[:40]}' is not a {'whole ' if whole else ''}number "
                            f"(as in {key}={smallest})") from error
        if not smallest <= number <= largest:
            raise UserError(f"--synthetic {key}: {value[:40]} is not from {smallest:,} to {largest:,}")
        values[KEYS[key]] = number
    return Synthetic(**values)


def _parts(text: str, option: str) -> list[str]:
    parts = [part.strip() for part in text.split(",")]
    if not any(parts):
        raise UserError(f"{option} is empty: give at least one value")
    if not all(parts):
        raise UserError(f"{option} '{text}' has an empty item between commas: remove it")
    return parts


def _positive(text: str, option: str) -> int:
    if not re.fullmatch(r"[+-]?\d{1,1000}", text):
        raise UserError(f"{option}: '{text}' is not a whole number (as in 32,224 or 32:224:32)")
    if int(text) < 1:
        raise UserError(f"{option}: {text} is not positive")
    if int(text) > _LARGEST:
        raise UserError(f"{option}: {text} is too large (at most {_LARGEST:,})")
    return int(text)


def _range(text: str, option: str) -> list[int]:
    numbers = text.split(":")
    if len(numbers) != 3:
        raise UserError(f"{option}: '{text}' is not a range; write start:end:step, as in 32:224:32")
    start, end, step = (_positive(number, option) for number in numbers)
    if end < start:
        raise UserError(f"{option}: range {text} ends before it starts")
    if (end - start) // step >= _MAX_SIZES:
        raise UserError(f"{option}: range {text} has over {_MAX_SIZES} values: choose a larger step")
    return list(range(start, end + 1, step))


def data_request(data: str, data_dir: Path | None, synthetic: str | None, split: str, seed: int) -> "DataRequest":
    """Return the data that options select."""
    from charact.datasets._common.request import DataRequest, Synthetic

    check_data(data, data_dir, synthetic)
    return DataRequest(data, data_dir, parse_choice(split, "--split", SPLITS), seed,  # type: ignore[arg-type]
                       synthetic=Synthetic() if synthetic is None else parse_synthetic(synthetic))


def check_data(data: str, data_dir: str | Path | None, synthetic: str | None) -> None:
    """Check that options of real and synthetic data are not mixed."""
    if data == "synthetic" and data_dir is not None:
        raise UserError("--data-dir is for real data: select it with --data, or leave it out")
    if data != "synthetic" and synthetic is not None:
        raise UserError(f"--synthetic is for synthetic data, not for {data}: leave one of them out")


def check_forks(command: str) -> None:
    """Check that this system can fork processes."""
    if not hasattr(os, "fork"):
        raise UserError(f"{command} needs a system that forks processes, such as Linux or macOS: use one, or WSL")


def check_name(name: str | None) -> None:
    """Check that the name of a run is not empty."""
    if name is not None and not name.strip():
        raise UserError("--name is empty: give the run a name, or leave it out")


def check_own_options(own: Mapping[str, Any], of_workloads: Mapping[str, Any], command: str = "profile") -> None:
    """Check that options of workloads and of the user's model are not mixed.

    `own` has `--model` and its options, None if not given; `of_workloads` those of built-in workloads only, false if
    not given.
    """
    given = [option for option, value in of_workloads.items() if value]
    if own["--model"] is None:
        if stray := [option for option, value in own.items() if value is not None]:
            raise UserError(f"{stray[0]} is for your own model: add --model, or leave {stray[0]} out")
        if "WORKLOADS" not in given:
            raise UserError(f"give a workload, as in charact {command} resnet50, or your own model with --model")
    elif "WORKLOADS" in given:
        raise UserError("--model replaces workloads: measure workloads in a separate run")
    elif given:
        raise UserError(f"{given[0]} is for the built-in workloads, not for --model: leave it out")
    elif own["--input-spec"] is None:
        raise UserError("--model needs its inputs: add --input-spec, as in --input-spec 3xSxS")


def load_own_model(own: Mapping[str, Any]) -> "OwnModel":
    """Return the workload of the user's model."""
    from charact.workload.user_model.input_spec import parse_input_spec
    from charact.workload.user_model.model import own_model

    learning_rate = own["--learning-rate"]
    return own_model(
        own["--model"], own["--model-args"] or "", parse_input_spec(own["--input-spec"]), own["--loss"],
        own["--optimizer"] or "SGD", 0.01 if learning_rate is None else learning_rate)


def parse_ranks(parallel: str | None, nproc: str | None, *, with_one: bool = False) -> list[tuple[str | None, int]]:
    """Return each combination of how ranks train together and how many there are; none without the options.

    With `with_one`, a single process is a number of ranks, too; it comes first, without a name.
    """
    if parallel is None and nproc is None:
        return []
    if nproc is None:
        raise UserError(f"--parallel {parallel} needs the number of ranks: add --nproc 8")
    if parallel is None:
        raise UserError(f"--nproc {nproc} needs --parallel: add --parallel ddp or --parallel fsdp2")
    names = parse_list(parallel, "--parallel")
    for name in names:
        if name not in PARALLEL:
            known = f"use {' or '.join(PARALLEL)}"
            raise UserError(f"--parallel: '{name}' is unknown: {did_you_mean(name, PARALLEL, known)}")
    numbers = parse_sizes(nproc, "--nproc")
    if 1 in numbers and not with_one:
        raise UserError("--nproc 1 is a single process: leave --parallel and --nproc out, or give 2 ranks or more")
    if max(numbers) > _MAX_RANKS:
        raise UserError(f"--nproc {max(numbers)} is more than {_MAX_RANKS:,} ranks: give fewer")
    alone: list[tuple[str | None, int]] = [(None, 1)] if 1 in numbers else []
    return [*alone, *product(names, [number for number in numbers if number > 1])]
