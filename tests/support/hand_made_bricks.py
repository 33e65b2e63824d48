"""Bricks and suites that are written by hand, so that what they do is known."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from charact.bricks.suite.brick import Brick, brick_from_json
from charact.bricks.suite.composition import Composition, CutModel
from charact.bricks.suite.suite import Suite, add_models, load_suite

QUANTILES = {"quantiles": [-1.0, 1.0]}


def an_input(*shape: int, kind: str = "activation", stride: Sequence[int] | None = None, dtype: str = "float32",
             grad: bool = False, sample: Any = None, repeated: int | None = None) -> dict[str, Any]:
    """An input as a brick's file holds it; weights are normal numbers, others -1 and 1."""
    usual = torch.empty(shape).stride()
    sample = sample or ({"weight": "normal"} if kind in ("weight", "buffer") else QUANTILES)
    return {"kind": kind, "dtype": dtype, "shape": list(shape), "stride": list(stride or usual), "requires_grad": grad,
            "sample": sample, "repeated": repeated}


def a_layer(operator: str, args: Sequence[Any], *outputs: int, **kwargs: Any) -> dict[str, Any]:
    """A layer likewise; whole numbers from 0 on stand for values where they are wrapped by `value`."""
    return {"operator": f"aten.{operator}", "args": list(args), "kwargs": kwargs, "outputs": list(outputs),
            "several": False}


def value(number: int) -> dict[str, int]:
    return {"value": number}


def a_brick(inputs: Sequence[dict[str, Any]], layers: Sequence[dict[str, Any]], outputs: Sequence[int], *,
            mode: str = "infer", written: Sequence[int] = (), context_bytes: int = 0, kind: str = "sequence",
            precision: str = "fp32") -> Brick:
    """A brick of inputs and layers."""
    return brick_from_json({"kind": kind, "mode": mode, "precision": precision, "inputs": list(inputs),
                            "layers": list(layers), "outputs": list(outputs), "written": list(written),
                            "context_bytes": context_bytes})


def product(rows: int = 8, width: int = 16, *, context_bytes: int = 0, mode: str = "infer") -> Brick:
    """A matrix product with a square weight: 2 rows width^2 FLOP."""
    grad = mode == "train"
    return a_brick([an_input(rows, width, grad=grad), an_input(width, width, kind="weight", grad=grad)],
                   [a_layer("mm.default", [value(0), value(1)], 2)], [2], context_bytes=context_bytes, mode=mode)


def pointwise(operator: str, rows: int = 8, width: int = 16, *, mode: str = "infer") -> Brick:
    """One operator on one activation."""
    written = [0] if operator.endswith("_.default") else []
    return a_brick([an_input(rows, width, grad=mode == "train")], [a_layer(operator, [value(0)], 1)], [1],
                   mode=mode, written=written)


def an_update(*shape: int, optimizer: str = "SGD", **options: Any) -> Brick:
    """An optimizer's step for a parameter."""
    layer = {"operator": "charact.update.default", "args": [value(0)],
             "kwargs": {"optimizer": optimizer, "options": options or {"lr": 0.1}}, "outputs": [], "several": False}
    return a_brick([an_input(*shape, kind="weight")], [layer], [], mode="train", written=[0], kind="update")


def a_gradient_sum(*shape: int) -> Brick:
    gradient = an_input(*shape, sample={"weight": "normal"})
    return a_brick([gradient, gradient], [a_layer("add.Tensor", [value(0), value(1)], 2)], [2], kind="gradient_sum")


def a_suite(directory: Path, *bricks: Brick, mode: str = "infer", batch_size: int | None = 8) -> Suite:
    """A suite of one made-up model with these bricks."""
    model = Composition(
        case=f"made-up-8-b{batch_size}-{mode}-fp32", model="made-up", variant=None, input_size=8, batch_size=batch_size,
        mode=mode, precision="fp32", g=1, method="chains", num_parameters=0, num_layers=1,
        num_module_calls=1, weights_bytes=0, pieces=(), updates=(), gradient_sums=(), outputs=())
    add_models(directory, [CutModel(model, bricks)], 1, "chains", torch.__version__)
    return load_suite(directory)
