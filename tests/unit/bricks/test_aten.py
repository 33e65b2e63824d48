"""Which operators a brick may call, and with what."""

from typing import Any

import pytest
import torch
from torch._ops import OpOverload

from charact.bricks.allowlist import OPERATORS
from charact.bricks.aten import check_arguments, literal, operator_of
from charact.bricks.suite.captured_graph import Layer
from charact.core.errors import UserError

X, Y = {"value": 0}, {"value": 1}
CPU = torch.device("cpu")


def layer(operator: str, *args: Any, outputs: tuple[int | None, ...] = (2,), several: bool = False, **kwargs: Any
          ) -> Layer:
    return Layer(f"aten.{operator}", list(args), kwargs, outputs, several)


def overloads(packet: str) -> list[OpOverload]:
    found = getattr(torch.ops.aten, packet, None)
    return [] if found is None else [getattr(found, name) for name in found.overloads()]


def test_every_listed_operator_is_pytorchs() -> None:
    assert [packet for packet in sorted(OPERATORS) if not overloads(packet) and not overloads(f"{packet}_")] == []


def test_no_listed_operator_takes_what_a_brick_may_not_give() -> None:
    """Files, storages and `unsafe` flags; where one overload does, it is none that a layer can name."""
    for packet in sorted(OPERATORS):
        for operator in [*overloads(packet), *overloads(f"{packet}_")]:
            arguments = operator._schema.arguments
            assert not {"filename", "unsafe", "storage", "source_storage"} & {each.name for each in arguments}, operator
            assert not any(each.real_type.kind() == "StorageType" for each in arguments), operator


@pytest.mark.parametrize("name", [
    "from_file", "segment_reduce", "set_", "resize_", "_resize_output_", "data", "record_stream", "sparse_coo_tensor",
    "_unsafe_index", "_unsafe_masked_index_put_accumulate", "_embedding_bag", "quantize_per_tensor", "to_mkldnn",
])
def test_what_reaches_outside_of_tensors_or_trusts_arguments_is_not_listed(name: str) -> None:
    for operator in overloads(name):
        with pytest.raises(UserError, match="a brick may not call"):
            operator_of(str(operator))


@pytest.mark.parametrize("call", [
    layer("add.Tensor", X, Y), layer("add.Tensor", X, 2), layer("add_.Tensor", X, Y, alpha={"float": "inf"}),
    layer("sum.dim_IntList", X, [-1], False, dtype={"dtype": "float64"}), layer("sum.dim_IntList", X, None),
    layer("view.default", X, [3, -1]), layer("slice.Tensor", X, 0, 0, 2**63 - 1), layer("mean.dim", X, 1),
    layer("index.Tensor", X, [None, Y]), layer("cat.default", [X, Y], 1), layer("where.self", Y, X, X),
    layer("conv2d.padding", X, Y, None, [1, 1], "same"), layer("bernoulli_.float", X, 0.5, generator=None),
    layer("empty.memory_format", [2], device={"device": True}, layout={"layout": "strided"}, pin_memory=False),
    layer("full.default", [1], {"complex": [1, 2]}), layer("unbind.int", X, outputs=(1, 2, 3), several=True),
    layer("einsum.default", "ibh,hnd->ibnd", [X, Y]), layer("_local_scalar_dense.default", X, outputs=(None,)),
], ids=lambda call: call.operator)
def test_arguments_that_a_schema_has_are_taken(call: Layer) -> None:
    assert str(check_arguments(call)) == call.operator


@pytest.mark.parametrize(("call", "words"), [
    (layer("add.Tensor", X), "no value for argument 'other'"),
    (layer("add.Tensor", X, Y, 1), "3 arguments, but takes 2"),
    (layer("add.Tensor", X, Y, self=X), "an unknown or repeated argument 'self'"),
    (layer("relu.default", X, mode="x"), "an unknown or repeated argument 'mode'"),
    (layer("add.out", X, Y, out=X), "writes into an `out` argument"),
    (layer("add.int", 1, 2), "a brick may not call"),
    (layer("view.default", X, [2**63]), "'size' that is no"), (layer("view.default", X, [0.5]), "'size' that is no"),
    (layer("view.default", X, [1] * 5000), "'size' that is no"), (layer("view.default", X, "4"), "'size' that is no"),
    (layer("relu.default", "x"), "'self' that is not a Tensor"), (layer("relu.default", None), "'self' that is not a"),
    (layer("relu.default", {"value": 0, "x": 1}), "'self' that is not a"),
    (layer("gelu.default", X, approximate="/etc/passwd"), "'approximate' that is not a str"),
    (layer("sum.default", X, dtype={"dtype": "Tensor"}), "'dtype' that is no"),
    (layer("sum.default", X, dtype={"dtype": "quint8"}), "'dtype' that is no"),
    (layer("to.dtype", X, {"dtype": "float32"}, 1), "'non_blocking' that is not a bool"),
    (layer("empty.memory_format", [2], layout={"layout": "sparse_coo"}), "'layout' that is no"),
    (layer("empty.memory_format", [2], device="cuda:7"), "'device' that is no"),
    (layer("empty.memory_format", [2], pin_memory=True), "'pin_memory' that is no"),
    (layer("bernoulli_.float", X, 0.5, generator={"device": True}), "'generator' that is no"),
    (layer("random_.from", X, **{"from": 0, "to": 5}), "an unknown or repeated argument 'from'"),
    (layer("relu.default", X, outputs=(1, 2)), "2 results, but returns one"),
    (layer("nothing.default", X), "a brick may not call operator aten.nothing.default"),
    (layer("relu.nothing", X), "has no operator aten.relu.nothing"), (layer("__class__.mro"), "a brick may not call"),
    (layer("relu.__class__", X), "has no operator aten.relu.__class__"),
    (Layer("prim.device.default", [X], {}, (2,), False), "a brick may not call"),
    (layer("relu.default", X, **{"x=print(1) or x": 1}), "an unknown or repeated argument"),
    (layer("relu.default", {"dtype": "relu"}), "that is not a Tensor"),
    (layer("relu.default", {"code": "print(1)"}), "that is not a Tensor"),
    (layer("relu.default", {"float": "1"}), "that is not a Tensor"),
])
def test_other_arguments_are_refused_in_one_line(call: Layer, words: str) -> None:
    with pytest.raises(UserError) as caught:
        check_arguments(call)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("thing", [{"dtype": "load"}, {"layout": "ops"}, {"memory_format": "strided"}, {"float": "1"},
                                   {"device": "cuda"}, {"complex": [1]}, {"name": "os.system"}, {}])
def test_literals_name_nothing_else_of_pytorch(thing: Any) -> None:
    with pytest.raises(UserError, match="of an unknown kind"):
        literal(thing, CPU)
