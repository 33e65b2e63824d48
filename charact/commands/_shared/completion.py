"""Completion of values in the shell. It starts at every press of Tab, so it imports neither PyTorch nor pandas."""

import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from charact.core.declared_names import declared_names
from charact.record.schema import ATTENTION, CACHES, GENERATE, MODES, PHASES, PRECISIONS

_PACKAGE = Path(__file__).parents[2]
_PARTIAL = ".partial-"


def listed(complete: Callable[[str], Iterable[str]]) -> Callable[[str], list[str]]:
    """Return a completion of the last item of a list with commas."""
    def complete_last(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{value}" for value in complete(last)]

    return complete_last


def workload_names(incomplete: str) -> list[str]:
    """Return names and aliases of workloads that their files declare as literals, here and in other packages."""
    return sorted(name for path in _workload_files() for name in declared_names(path, "WORKLOADS"))


workloads = listed(workload_names)


def datasets(incomplete: str) -> list[str]:
    """Return names of data sets."""
    return sorted(name for path in _files(_PACKAGE / "datasets") for name in declared_names(path, "DATASETS"))


def stored_datasets(incomplete: str) -> list[str]:
    """Return names of data sets that are read from files."""
    return [name for name in datasets(incomplete) if name != "synthetic"]


def devices(incomplete: str) -> list[str]:
    """Return names of devices; those of CUDA on Linux only, by their device files."""
    try:
        numbers = sorted(int(name[6:]) for name in os.listdir("/dev") if re.fullmatch(r"nvidia\d+", name))
    except OSError:
        numbers = []
    return ["auto", "cpu", *(["cuda"] if numbers else []), *(f"cuda:{number}" for number in numbers)]


def target_devices(incomplete: str) -> list[str]:
    """Return names of GPUs for which memory can be estimated."""
    from charact.measure.memory_estimate.target_devices import target_names

    return target_names()


modes = listed(lambda incomplete: (*MODES, GENERATE))
caches = listed(lambda incomplete: CACHES)
attentions = listed(lambda incomplete: ATTENTION)
precisions = listed(lambda incomplete: PRECISIONS)


def export_formats(incomplete: str) -> list[str]:
    """Return formats of exports."""
    trackers = _files(_PACKAGE / "views" / "export" / "trackers")
    return ["csv", "json", "parquet", "perfetto", *sorted(path.stem for path in trackers)]


def training_metrics(incomplete: str) -> list[str]:
    """Return metrics of trainings, with the sign after which their target follows."""
    source = (_PACKAGE / "workload" / "metrics.py").read_text(encoding="utf-8")
    return [f"{name}=" for name in ("loss", *re.findall(r'\bname(?:: str)? = "(\w+)"', source))]


def compared_metrics(incomplete: str) -> list[str]:
    """Return metrics of comparisons."""
    return [*metric_names(), *(f"phase.{phase}" for phase in PHASES)]


def metric_names() -> list[str]:
    """Return the names of metrics, by their files."""
    return sorted(path.stem for path in _files(_PACKAGE / "analysis" / "compare" / "metrics"))


def runs(incomplete: str) -> list[str]:
    """Return directories with a record: those of `runs`, or those next to what is typed already."""
    return list(_records(incomplete, partial=False))


def partial_runs(incomplete: str) -> list[str]:
    """Return hidden directories of unfinished runs."""
    return list(_records(incomplete, partial=True))


def compared_runs(incomplete: str) -> list[str]:
    """Return runs, and the names of published tables."""
    published = _PACKAGE / "record" / "published"
    return [*runs(incomplete), *sorted(f"reference:{path.stem}" for path in published.glob("*.json"))]


def _records(incomplete: str, *, partial: bool) -> Iterator[str]:
    folder, slash, _ = incomplete.rpartition("/")
    prefix = f"{folder}/" if slash else "runs/"
    try:
        names = sorted(os.listdir(os.path.expanduser(prefix)))
    except OSError:
        return
    for name in names:
        place = os.path.join(os.path.expanduser(prefix), name)
        if name.startswith(_PARTIAL) == partial and os.path.isfile(os.path.join(place, "run.json")):
            yield f"{prefix}{name}"


def _workload_files() -> Iterator[Path]:
    from importlib.metadata import entry_points
    from importlib.util import find_spec

    spec = find_spec("charact.workloads")  # in a clone, the folder is next to the package
    for place in (spec.submodule_search_locations or []) if spec else []:
        yield from (path for path in Path(place).rglob("*.py") if not path.name.startswith("_"))
    for point in entry_points(group="charact.workloads"):
        path = point.dist.locate_file(f"{point.module.replace('.', '/')}.py") if point.dist else None
        if path is not None and os.path.isfile(str(path)):
            yield Path(str(path))


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.glob("*.py") if not path.name.startswith("_"))
