"""Published protocols: what they set, and what the record says is done otherwise."""

from pathlib import Path
from typing import Any

import pytest

from charact.commands.train import _chosen, make_trainings, parse_target
from charact.core.errors import UserError
from charact.datasets._common.registry import find_dataset
from charact.workload.protocols import PROTOCOLS, find_protocol
from charact.workload.registry import find_workload

ALWAYS: dict[str, Any] = {"workers": 0, "device": "cpu", "channels_last": False, "compiled": False, "seed": 0}
MNIST = Path(__file__).parents[4] / "shared" / "data" / "mnist"


def chosen(workload: str, **options: Any) -> dict[str, Any]:
    return _chosen({"workloads": [workload], **ALWAYS, **options}, find_workload(workload).prepare())[0]


@pytest.mark.parametrize(("protocol", "workload", "epochs", "batch", "size", "data", "precisions"), [
    ("northeastern", "googlenet", 10, 10, 224, "cifar10", ["fp32"]),
    ("northeastern", "resnet18", 10, 10, 224, "cifar10", ["fp32"]),
    ("vo", "model_a", 100, 64, 32, "mnist", ["fp32"]),
    ("vo", "model_b", 100, 64, 32, "mnist", ["fp32"]),
    ("vo", "convolve2d", 10, 64, 32, "fashion_mnist", ["fp16"]),
])
def test_it_sets_what_was_published(protocol: str, workload: str, epochs: int, batch: int, size: int, data: str,
                                    precisions: list[str]) -> None:
    options = chosen(workload, protocol=protocol)
    assert {name: options[name] for name in ("num_epochs", "batch_sizes", "input_sizes", "data", "precisions", "split",
                                             "validation")} == {
        "num_epochs": epochs, "batch_sizes": [batch], "input_sizes": [size], "data": data, "precisions": precisions,
        "split": "train", "validation": "test"}


def test_what_the_user_says_goes_before() -> None:
    options = chosen("model_a", protocol="vo", num_epochs=3, batch_sizes=[8, 16], data="fashion_mnist")
    assert (options["num_epochs"], options["batch_sizes"], options["data"]) == (3, [8, 16], "fashion_mnist")
    assert options["input_sizes"] == [32]


def used(**changed: Any) -> dict[str, Any]:
    as_published = {"workload": "model_a", "variant": ["vo", "vo"], "data": "mnist", "split": "train",
                    "validation": "test", "num_epochs": 100, "batch_size": 64, "input_size": 32, "precision": "fp32",
                    "weights": "random", "until": "none"}
    return as_published | changed


def test_weights_that_cannot_be_had_are_always_told() -> None:
    facts = find_protocol("vo", "model_a").facts(used())
    assert facts["changed"] == {"weights": ["ImageNet's in the frozen base", "random"]}
    assert find_protocol("vo", "model_b").facts(used(workload="model_b"))["changed"] == {}


@pytest.mark.parametrize(("option", "value", "published", "told"), [
    ("workload", "vgg16", "model_b", "vgg16"), ("variant", ["vo", "rahimzadeh"], "vo", "rahimzadeh"),
    ("data", "kmnist", "mnist or fashion_mnist", "kmnist"), ("split", "test", "train", "test"),
    ("validation", "0.2 of test, held out", "test", "0.2 of test, held out"), ("num_epochs", 3, 100, 3),
    ("batch_size", 8, 64, 8), ("input_size", 64, 32, 64), ("precision", "bf16", "fp32", "bf16"),
    ("learning_rate", 0.1, 1e-3, 0.1), ("until", "accuracy 0.9", "none", "accuracy 0.9"),
])
def test_everything_that_is_done_otherwise_is_told(option: str, value: Any, published: Any, told: Any) -> None:
    facts = find_protocol("vo", "model_b").facts(used(workload="model_b") | {option: value})
    assert facts["changed"] == {option: [published, told]}


def test_what_a_study_does_not_tell_is_no_change() -> None:
    protocol = find_protocol("northeastern", "resnet18")
    facts = protocol.facts(used(workload="resnet18", data="kmnist", num_epochs=10, batch_size=10, input_size=224,
                                learning_rate=0.5, precision="bf16"))
    assert facts["changed"] == {}
    assert "learning rate" in facts["unstated"]


@pytest.mark.skipif(not MNIST.is_dir(), reason="needs MNIST in ../shared/data")
def test_a_subset_of_the_data_is_recorded_as_a_change() -> None:
    (training,) = make_trainings(ALWAYS | {
        "workloads": ["resnet18"], "protocol": "northeastern", "data": "mnist", "data_dir": str(MNIST), "split": "test",
        "holdout_frac": 0.1, "num_epochs": 2})
    assert training.case.id == "resnet18-224-b10-train-fp32-cpu"
    assert training.protocol is not None
    assert training.protocol["changed"] == {
        "num_epochs": [10, 2], "split": ["train", "test"], "validation": ["test", "0.1 of test, held out"]}


def test_every_protocol_names_what_is_there() -> None:
    for protocol in PROTOCOLS:
        for workload in protocol.workload:
            find_workload(workload)
        for data in protocol.data:
            assert {protocol.split, protocol.validation} <= set(find_dataset(data).splits)


def test_an_unknown_protocol_is_refused() -> None:
    with pytest.raises(UserError, match=r"^--protocol: 'voo' is not one of northeastern, vo$"):
        find_protocol("voo", "model_a")


def test_a_target_is_a_metric_and_a_number() -> None:
    assert parse_target("accuracy=0.95") == ("accuracy", 0.95)
    for text in ("accuracy", "accuracy=", "=0.9", "accuracy=high", "accuracy=nan", "loss=inf", ""):
        with pytest.raises(UserError, match=r"^--until: '.*' is not a metric and a value; write it as in accuracy"):
            parse_target(text)


@pytest.mark.parametrize(("data", "split", "other"), [
    ("synthetic", "train", "valid"), ("mnist", "train", "test"), ("wikitext2", "train", "valid"),
    ("wikitext2", "test", "valid"),
])
def test_what_validates_where_nothing_is_said(data: str, split: str, other: str) -> None:
    assert chosen("mlp", data=data, split=split)["validation"] == other


def test_what_is_trained_on_does_not_validate_by_default() -> None:
    with pytest.raises(UserError, match=r"^--split test is also the validation split of mnist: .*--holdout 0\.1"):
        chosen("mlp", data="mnist", split="test")
    assert chosen("mlp", data="mnist", split="test", validation="test")["validation"] == "test"
