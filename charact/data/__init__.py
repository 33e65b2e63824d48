"""Datasets that workloads are fed: one file a format, found by scanning; each holds a list named DATASETS.

Nothing here imports torch before samples are asked for.
"""

import difflib
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from charact.data._spec import DatasetSpec, Kind, Split, StoredDatasetSpec
from charact.data.synthetic import check_synthetic
from charact.errors import UserError
from charact.plugins import modules_in

if TYPE_CHECKING:
    from charact.data._images import ImageDataset
    from charact.workload import DataRequest


def all_datasets() -> dict[str, DatasetSpec]:
    """Every dataset by name."""
    return {spec.name: spec for module in modules_in("charact.data") for spec in module.DATASETS}


def find_dataset(name: str) -> DatasetSpec:
    """Data set of a name.

    Raises:
        UserError: there is none; the nearest names are suggested.
    """
    datasets = all_datasets()
    if name in datasets:
        return datasets[name]
    near = difflib.get_close_matches(name, datasets, n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(near)}?" if near else f"choose from {', '.join(datasets)}"
    raise UserError(f"unknown dataset '{name}': {hint}")


def stored_content(request: "DataRequest", kind: Kind) -> tuple[StoredDatasetSpec, Any] | None:
    """Spec and content of the stored dataset that a request names; None where it asks for made-up data.

    What the content is, the kind decides: pictures and labels, or the words of a text. It is shared, not to be changed.

    Raises:
        UserError: the dataset is unknown, of another kind, has no such split, its directory was not named, or a file
            is missing, truncated or foreign; or made-up data of the kind do not heed what was asked of them.
    """
    spec = find_dataset(request.name)
    if spec.kind not in (kind, None):
        fitting = [other.name for other in all_datasets().values() if other.kind in (kind, None)]
        raise UserError(f"{spec.name} holds {spec.kind} data, this workload reads {kind} data: "
                        f"choose from {', '.join(fitting)}")
    if request.split not in spec.splits:
        raise UserError(f"{spec.name} has no split '{request.split}': choose from {', '.join(spec.splits)}")
    if not isinstance(spec, StoredDatasetSpec):
        check_synthetic(request.synthetic, kind)
        return None
    if request.directory is None:
        raise UserError(f"{spec.name} is read from files: name their directory with --data-dir "
                        f"(`charact data fetch {spec.name}` gets them from {spec.source})")
    return spec, _load(spec, request.directory, request.split)


def image_dataset(request: "DataRequest", *, input_size: int, num_synthetic_classes: int) -> "ImageDataset":
    """Labelled pictures at an input size: samples (float32 (3, size, size) in [0, 1], int label).

    Pictures from files are scaled bilinearly to the input size, grey ones get three equal channels. Values are divided
    by 255 and not standardized to a mean and deviation. The number of classes is for made-up data of which the request
    asks none.

    Raises:
        UserError: as `stored_content`.
    """
    from charact.data._images import StoredImages, SyntheticImages

    stored = stored_content(request, "image")
    if stored is None:
        num_classes = request.synthetic.num_classes or num_synthetic_classes
        return SyntheticImages(request.seed, request.split, input_size, num_classes)
    spec, (images, labels) = stored
    assert spec.num_classes is not None
    return StoredImages(images, labels, input_size, spec.num_classes)


@functools.lru_cache(maxsize=1)
def _load(spec: StoredDatasetSpec, directory: Path, split: Split) -> Any:
    """The cases of a sweep share the content: it is read and held once."""
    return spec.load(directory, split)
