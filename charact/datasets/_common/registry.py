"""Registry of data sets by name, and loading of stored ones."""


import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from charact.core.errors import UserError
from charact.core.plugins import modules_in
from charact.core.text import did_you_mean
from charact.datasets._common.spec import DatasetSpec, Kind, Split, StoredDatasetSpec
from charact.datasets.synthetic import check_synthetic

if TYPE_CHECKING:
    from charact.datasets._common.request import DataRequest


def all_datasets() -> dict[str, DatasetSpec]:
    """Return every data set by name."""
    return {spec.name: spec for module in modules_in("charact.datasets") for spec in module.DATASETS}


def find_dataset(name: str) -> DatasetSpec:
    """Return the data set with a name."""
    datasets = all_datasets()
    if name in datasets:
        return datasets[name]
    hint = did_you_mean(name, datasets, f"choose from {', '.join(datasets)}")
    raise UserError(f"unknown dataset '{name}': {hint}")


def stored_content(request: "DataRequest", kind: Kind) -> tuple[StoredDatasetSpec, Any] | None:
    """Return spec and content of the stored data set in a request; None for synthetic data.

    The content depends on the kind: images and labels, or the words of a text. It is shared and must not be changed.
    """
    spec = find_dataset(request.name)
    if spec.kind not in (kind, None):
        fitting = [other.name for other in all_datasets().values() if other.kind in (kind, None)]
        raise UserError(f"{spec.name} has {spec.kind} data, this workload reads {kind} data: "
                        f"choose from {', '.join(fitting)}")
    if request.split not in spec.splits:
        raise UserError(f"{spec.name} has no split '{request.split}': choose from {', '.join(spec.splits)}")
    if not isinstance(spec, StoredDatasetSpec):
        check_synthetic(request.synthetic, kind)
        return None
    if request.directory is None:
        raise UserError(f"{spec.name} is read from files: name their directory with --data-dir "
                        f"(`charact data fetch {spec.name}` downloads them from {spec.source})")
    return spec, _load(spec, request.directory, request.split)


@functools.lru_cache(maxsize=1)
def _load(spec: StoredDatasetSpec, directory: Path, split: Split) -> Any:
    return spec.load(directory, split)
