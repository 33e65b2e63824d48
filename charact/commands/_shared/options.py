"""Options that commands share, and parsers of lists and ranges."""

import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from charact.commands._shared import completion
from charact.core.errors import UserError

if TYPE_CHECKING:
    from charact.datasets._common.request import DataRequest, Synthetic

InputSizes = Annotated[str | None, typer.Option(
    help="Side lengths in pixels: 32,224, or a range 32:224:32 (end included). Default: the workload's.")]
BatchSizes = Annotated[str | None, typer.Option(help="Batch sizes, as list or range. Default: the workload's.")]
Modes = Annotated[str, typer.Option(help="train, infer, or train,infer for both.", autocompletion=completion.modes)]
Precision = Annotated[str, typer.Option(
    help="fp32, tf32 (CUDA), bf16 and fp16 by autocast, pure-bf16 (weights too).",
    autocompletion=completion.precisions)]
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
Seed = Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed of all random numbers.")]
Out = Annotated[Path, typer.Option(help="Directory in which to create the run's directory.")]
Name = Annotated[str | None, typer.Option(help="Name of the run. Default: the workload's.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors and the run's path only.")]

Json = Annotated[bool, typer.Option(
    "--json", help="Print only the summary of the finished run, as charact show --json does.")]

SPLITS = ("train", "valid", "test")
_MAX_SIZES = 10_000
_LARGEST = 10**9
_SYNTHETIC_RANGES: dict[str, tuple[int, int] | tuple[float, float]] = {
    "classes": (1, 10**7),
    "vocabulary": (4, 10**7),  # up to three words are special tokens
    "zipf": (0.0, 100.0),
    "length-mean": (0.001, 1.0),
    "length-spread": (0.0, 1.0),
}


def parse_sizes(text: str, option: str) -> list[int]:
    """Parse positive integers from `32,224` or a range `32:224:32` (end included); without duplicates, in order."""
    sizes: list[int] = []
    for part in _parts(text, option):
        sizes += _range(part, option) if ":" in part else [_positive(part, option)]
    return list(dict.fromkeys(sizes))


def parse_choices(text: str, option: str, choices: Collection[str]) -> list[str]:
    """Parse a comma-separated list of choices; without duplicates, in order."""
    words = parse_list(text, option)
    for word in words:
        if word not in choices:
            raise UserError(f"{option}: '{word}' is not one of {', '.join(choices)}")
    return words


def parse_counters(text: str) -> list[str]:
    """Parse names of counter sources, including `auto`."""
    return [] if text == "none" else parse_list(text, "--counters")


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
        values[KEYS[key]] = _synthetic_number(key, value)
    return Synthetic(**values)


def _synthetic_number(key: str, text: str) -> int | float:
    smallest, largest = _SYNTHETIC_RANGES[key]
    whole = isinstance(smallest, int)
    try:
        number = int(text) if whole else float(text)
    except ValueError as error:
        raise UserError(f"--synthetic {key}: '{text[:40]}' is not a {'whole ' if whole else ''}number "
                        f"(as in {key}={smallest})") from error
    if not smallest <= number <= largest:
        raise UserError(f"--synthetic {key}: {text[:40]} is not from {smallest:,} to {largest:,}")
    return number


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

    chosen = parse_choice(split, "--split", SPLITS)
    check_data(data, data_dir, synthetic)
    made_up = Synthetic() if synthetic is None else parse_synthetic(synthetic)
    return DataRequest(data, data_dir, chosen, seed, synthetic=made_up)  # type: ignore[arg-type]


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
