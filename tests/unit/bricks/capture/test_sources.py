"""Configurations of models by name."""

import re

import pytest
import torch

from charact.bricks.commands._models import sources_of
from charact.core.errors import UserError


def test_every_combination_is_a_source() -> None:
    found = sources_of(["mlp", "vgg11"], input_sizes=[32, 64], batch_sizes=[1, 8], modes=["infer", "train"],
                       precisions=["fp32", "bf16"])
    assert len(found) == 2 * 2 * 2 * 2 * 2
    assert len({source.id for source in found}) == 32
    assert found[0].id == "mlp-32-b1-infer-fp32"


def test_a_source_is_called_as_a_case_is() -> None:
    source, = sources_of(["resnet18"], variant="cifar", batch_sizes=[4], modes=["train"])
    assert source.id == "resnet18.cifar-32-b4-train-fp32"


def test_defaults_are_the_workloads() -> None:
    source, = sources_of(["rnn_lm"])
    case = source.case
    assert (case.input_size, case.batch_size, case.mode, case.precision) == (35, 20, "infer", "fp32")


def test_a_source_comes_to_life_alike_each_time() -> None:
    source, = sources_of(["mlp"], input_sizes=[28], batch_sizes=[2], modes=["train"])
    first, second = source.build(), source.build()
    assert all(map(torch.equal, first.model.parameters(), second.model.parameters()))
    assert torch.equal(first.batch[0], second.batch[0])
    assert first.model.training
    losses = []
    for built in (first, second):
        torch.manual_seed(0)  # of the dropout
        losses.append(built.workload.loss(built.workload.forward(built.model, built.batch), built.batch).item())
    assert losses[0] == losses[1]
    assert [type(optimizer).__name__ for optimizer in first.optimizers] == ["RMSprop"]


def test_an_imported_model_is_fed_what_the_spec_says() -> None:
    source, = sources_of(["torch.nn:Linear"], input_sizes=[6], batch_sizes=[3], input_spec="S",
                         model_args="in_features=6,out_features=2")
    built = source.build()
    assert re.fullmatch(r"Linear\.[0-9a-f]{6}-6-b3-infer-fp32", source.id)
    assert built.workload.forward(built.model, built.batch).shape == (3, 2)
    assert not built.model.training


@pytest.mark.parametrize(("names", "options", "message"), [
    (["resnet19"], {}, "unknown workload 'resnet19': did you mean"),
    (["mlp"], {"variant": "wide"}, "mlp has no variant 'wide'"),
    (["vgg16"], {"input_sizes": [7]}, "input size 7 is too small for vgg16"),
    (["torch.nn:Linear"], {}, "torch.nn:Linear needs --input-spec"),
    (["torch.nn:Linaer"], {"input_spec": "S", "input_sizes": [4]}, "did you mean Linear"),
    (["torch.nn:Linear"], {"input_spec": "S"}, "no default input size"),
    (["no_such_module:make"], {"input_spec": "S", "input_sizes": [4]}, "there is no module no_such_module"),
])
def test_what_cannot_be_is_one_line(names: list[str], options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError) as raised:
        sources_of(names, **options)  # type: ignore[arg-type]
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_own_models_of_one_name_are_told_apart() -> None:
    def found(name: str, arguments: str) -> str:
        source, = sources_of([name], input_spec="S", input_sizes=[4], model_args=arguments)
        return source.id

    four, eight = "in_features=4,out_features=4", "in_features=4,out_features=8"
    ids = [found("torch.nn:Linear", four), found("torch.nn:Linear", eight),
           found("torch.nn.modules.linear:Linear", four)]
    assert len(set(ids)) == 3
    assert ids[0] == found("torch.nn:Linear", four)


def test_a_workload_may_be_named_twice() -> None:
    assert len(sources_of(["resnet50", "resnet"], input_sizes=[32], batch_sizes=[1])) == 2
