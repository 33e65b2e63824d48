"""Options that commands share, and reading lists and ranges from them."""

import re
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from charact.core.errors import UserError

if TYPE_CHECKING:
    from charact.datasets._common.request import Synthetic

InputSizes = Annotated[str | None, typer.Option(
    help="Side lengths in pixels: 32,224, or a range 32:224:32 (end included). Default: the workload's.")]
BatchSizes = Annotated[str | None, typer.Option(help="Batch sizes, likewise. Default: the workload's.")]
Modes = Annotated[str, typer.Option(help="train, infer or both.")]
Precision = Annotated[str, typer.Option(
    help="fp32, tf32 (CUDA), bf16 and fp16 by autocast, pure-bf16 (weights too).")]
Data = Annotated[str, typer.Option(help="Data set, e.g. synthetic, cifar10, mnist; see `charact list`.")]
Variant = Annotated[str | None, typer.Option(help="Form of the model, e.g. cifar. Default: its first.")]
DataDir = Annotated[Path | None, typer.Option(help="Where the files of a real data set are.")]
MadeUp = Annotated[str | None, typer.Option(
    help="Made-up data otherwise than the default: classes=100, or vocabulary=5000,zipf=1.2.")]
Workers = Annotated[int, typer.Option(min=0, max=1024, help="Processes that load data; 0 loads in the main one.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Threads = Annotated[int | None, typer.Option(min=1, max=4096, help="Threads inside an operator. Default: PyTorch's.")]
ChannelsLast = Annotated[bool, typer.Option("--channels-last", help="Keep images and weights in NHWC.")]
Compiled = Annotated[bool, typer.Option("--compile", help="Run the model through torch.compile.")]
Counters = Annotated[str, typer.Option(
    help="Counter sources: auto for all that cost nothing, none, or names as in host,nvml or auto,pm; see "
         "`charact doctor`.")]
Seed = Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed of all that is random.")]
Out = Annotated[Path, typer.Option(help="Directory that the run's directory is made in.")]
Name = Annotated[str | None, typer.Option(help="Name of the run. Default: the workload's.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors and the run's path only.")]

SPLITS = ("train", "valid", "test")
_MAX_SIZES = 10_000
_LARGEST = 10**9
_SYNTHETIC_RANGES: dict[str, tuple[int, int] | tuple[float, float]] = {
    "classes": (1, 10**7),
    "vocabulary": (4, 10**7),  # the marks of a text are up to three words of it
    "zipf": (0.0, 100.0),
    "length-mean": (0.001, 1.0),
    "length-spread": (0.0, 1.0),
}


def parse_sizes(text: str, option: str) -> list[int]:
    """Positive whole numbers from `32,224` or, with the end included, a range `32:224:32`; each once, in order.

    Raises:
        UserError: a number is zero, negative or none, the list is empty, or a range goes nowhere.
    """
    sizes: list[int] = []
    for part in _parts(text, option):
        sizes += _range(part, option) if ":" in part else [_positive(part, option)]
    return list(dict.fromkeys(sizes))


def parse_choices(text: str, option: str, choices: Collection[str]) -> list[str]:
    """Words from a comma-separated list, each one of the choices; each once, in order.

    Raises:
        UserError: a word is none of the choices, or the list is empty.
    """
    words = parse_list(text, option)
    for word in words:
        if word not in choices:
            raise UserError(f"{option}: '{word}' is not one of {', '.join(choices)}")
    return words


def parse_counters(text: str) -> list[str]:
    """Names of counter sources, `auto` among them where that was asked for.

    Raises:
        UserError: the list is empty.
    """
    return [] if text == "none" else parse_list(text, "--counters")


def parse_choice(text: str, option: str, choices: Collection[str]) -> str:
    """The one word that an option takes.

    Raises:
        UserError: it is none of the choices.
    """
    if text not in choices:
        raise UserError(f"{option}: '{text}' is not one of {', '.join(choices)}")
    return text


def parse_list(text: str, option: str) -> list[str]:
    """Words from a comma-separated list; each once, in order.

    Raises:
        UserError: the list or a place in it is empty.
    """
    return list(dict.fromkeys(_parts(text, option)))


def parse_synthetic(text: str) -> "Synthetic":
    """What made-up data are to look like, from `classes=100,zipf=1.2`; what is not named keeps its default.

    Raises:
        UserError: a key is unknown or repeated, or its value is no number or out of its range.
    """
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
        raise UserError(f"--synthetic {key}: '{text[:40]}' is no {'whole ' if whole else ''}number "
                        f"(as in {key}={smallest})") from error
    if not smallest <= number <= largest:
        raise UserError(f"--synthetic {key}: {text[:40]} is not from {smallest:,} to {largest:,}")
    return number


def _parts(text: str, option: str) -> list[str]:
    parts = [part.strip() for part in text.split(",")]
    if not any(parts):
        raise UserError(f"{option} is empty: give at least one value")
    if not all(parts):
        raise UserError(f"{option} '{text}' has an empty place between commas: remove it")
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


def check_data(data: str, data_dir: str | Path | None, synthetic: str | None) -> None:
    """Refuse what is said of real data beside made-up ones, and the other way round.

    Raises:
        UserError: one of them is.
    """
    if data == "synthetic" and data_dir is not None:
        raise UserError("--data-dir is for real data: name them with --data, or leave it out")
    if data != "synthetic" and synthetic is not None:
        raise UserError(f"--synthetic is for made-up data, not for {data}: leave one of them out")


def check_name(name: str | None) -> None:
    """Refuse an empty name of a run.

    Raises:
        UserError: it is.
    """
    if name is not None and not name.strip():
        raise UserError("--name is empty: give the run a name, or leave it out")
