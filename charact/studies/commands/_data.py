"""The data that the cases of a study read: real where the directory has them, else synthetic."""

from dataclasses import replace
from functools import cache
from pathlib import Path

from charact.core.errors import UserError
from charact.datasets._common.registry import find_dataset
from charact.datasets._common.spec import Split, StoredDatasetSpec
from charact.sweeps.definition import SweepCase

_HOLDOUT = "0.1"
"""Share of the test split that validates a training on the rest, if there is no training split."""


def with_data(case: SweepCase, data_dir: Path | None) -> SweepCase:
    """Return the case with options that name its data.

    A data set that the directory lacks is replaced by synthetic data. If the directory has the test split alone, that
    is read, and a training is validated on a tenth of it.
    """
    options = dict(case.options)
    name = options.get("data")
    if name is None:
        return case
    directory = None if data_dir is None else _directory(data_dir, name)
    split = next((split for split in ("train", "test") if directory is not None and _has(name, directory, split)), None)
    if directory is None or split is None:
        for option in ("data", "protocol"):
            options.pop(option, None)
        if find_dataset(name).num_classes is not None:
            options["synthetic"] = f"classes={find_dataset(name).num_classes}"
    else:
        options["data-dir"] = str(directory)
        if split == "test" and case.command != "infer":
            options["split"] = split
            options.pop("protocol", None)
            if case.command == "train":
                options["holdout"] = _HOLDOUT
    return replace(case, options=tuple(sorted(options.items())))


def _directory(data_dir: Path, name: str) -> Path:
    """Return the directory of a data set: the one of its name, with or without `_` and `-`, or the given one."""
    plain = name.replace("_", "").replace("-", "")
    found = [path for path in sorted(data_dir.iterdir()) if path.is_dir()
             and path.name.replace("_", "").replace("-", "").lower() == plain] if data_dir.is_dir() else []
    return found[0] if found else data_dir


@cache
def _has(name: str, directory: Path, split: Split) -> bool:
    """Return whether a directory has a split of a data set, undamaged."""
    spec = find_dataset(name)
    try:
        return isinstance(spec, StoredDatasetSpec) and spec.load(directory, split) is not None
    except UserError:
        return False
