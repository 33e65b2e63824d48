"""Each call of a layer computes its weights again, although an inference does not change them."""

import json
from collections.abc import Iterator
from typing import NamedTuple

import pandas as pd

from charact.analysis.findings._finding import Finding
from charact.analysis.findings._watched_case import WatchedCase
from charact.core.units import quantity, share

_PRODUCTS = {"aten::mm": (0, 1), "aten::addmm": (1, 2), "aten::mkldnn_convolution": (0, 1),
             "aten::thnn_conv2d": (0, 1), "aten::cudnn_convolution": (0, 1)}
"""Places of the inputs and of the weights among the shapes of operators with weights."""
_COMPUTING = frozenset({"elementwise", "reduction", "normalization", "data movement"})
"""Types of the operators that compute weights from others: normalize, scale or convert them."""


class _Product(NamedTuple):
    """Shapes of the inputs and of the weights of a layer's product; dimensions in order of size."""

    layer: str
    inputs: list[int]
    weights: list[int]


def find(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding if an inference spends much time on tensors of its layers' weights before it uses these."""
    if case.trains:
        return
    rows = case.operators
    rows = rows[(rows["phase"] == "forward") & rows["layer"].notna() & rows["input_shapes"].notna()]
    times = {product.layer: _of_weights_s(rows, product) for product in _products(rows)}
    spent_s = sum(times.values())
    saving = case.saving(0.7 * spent_s, spent_s)
    if saving is None:
        return
    layer = max(times, key=times.__getitem__)
    yield Finding(
        f"each call computes the weights of {layer}" + (" and of other layers" if times[layer] < spent_s else "")
        + " again, such as to normalize or convert them", "compute the weights once before the inference, and keep "
        "them: remove_parametrizations or remove_weight_norm of torch.nn.utils, model.to(torch.bfloat16) instead of a "
        "conversion in each call, or an attribute that eval() fills", saving,
        (f"operators on tensors of the weights' shape take {quantity(spent_s, 's')} of an iteration, "
         f"{share(spent_s / case.iteration_s)} of it",), "medium", phase="forward", layer=layer)


def _products(rows: pd.DataFrame) -> Iterator[_Product]:
    """Yield the first product of each layer whose inputs have another shape than its weights."""
    products = rows[rows["operator"].isin(_PRODUCTS)].drop_duplicates("layer")
    for layer, operator, text in zip(products["layer"], products["operator"], products["input_shapes"], strict=True):
        shapes, places = json.loads(text), _PRODUCTS[operator]
        if len(shapes) > max(places):
            inputs, weights = (sorted(shapes[place]) for place in places)
            if inputs != weights and len(weights) > 1:
                yield _Product(layer, inputs, weights)


def _of_weights_s(rows: pd.DataFrame, product: _Product) -> float:
    """Return the time (s) of operators of a layer, and of modules in it, whose first input has its weights' shape."""
    own = rows[((rows["layer"] == product.layer) | rows["layer"].str.startswith(f"{product.layer}."))
               & rows["operator_type"].isin(_COMPUTING)]
    has_shape = [bool(shapes) and sorted(shapes[0]) == product.weights
                 for shapes in map(json.loads, own["input_shapes"])]
    return float(own.loc[has_shape, "time_s"].sum())
