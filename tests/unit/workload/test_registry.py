"""The registry of workloads, and what image classifiers share."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from charact.core.errors import UserError
from charact.workload import registry
from charact.workload.base import Workload
from charact.workload.image_classification import ImageClassification

RESNET: Any = registry.find_workload("resnet18")


def test_workloads_are_found_by_name_and_alias(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = replace(RESNET, name="one", aliases=("first", "uno")), replace(RESNET, name="two", aliases=())
    modules = [SimpleNamespace(__name__="charact.workloads.a", WORKLOADS=[one])]
    point = SimpleNamespace(value="mine:all", load=lambda: SimpleNamespace(WORKLOADS=[two]))
    monkeypatch.setattr(registry, "modules_below", lambda _: modules)
    monkeypatch.setattr(registry, "entry_points", lambda group: [point] if group == "charact.workloads" else [])
    assert registry.all_workloads() == {"one": one, "two": two}
    assert [registry.find_workload(name) for name in ("one", "uno", "two")] == [one, one, two]
    for name, hint in (("frst", "did you mean first? `charact list workloads` names all"),
                       ("zzzz", "`charact list workloads` names all")):
        with pytest.raises(UserError, match=f"^unknown workload '{name}': {hint.replace('?', '.')}$"):
            registry.find_workload(name)
    modules.append(SimpleNamespace(__name__="charact.workloads.b", WORKLOADS=[one]))
    with pytest.raises(UserError, match=r"^workloads/b\.py repeats the workload one: rename it$"):
        registry.all_workloads()
    modules[1] = SimpleNamespace(__name__="charact.workloads.b")
    with pytest.raises(UserError, match=r"^workloads/b\.py has no list named WORKLOADS"):
        registry.all_workloads()


@pytest.mark.parametrize(("variant", "size", "classes"), [
    ("imagenet", 224, 1000), ("cifar", 32, 10), (None, 224, 1000)])
def test_what_image_classifiers_share(variant: str | None, size: int, classes: int) -> None:
    workload = RESNET.prepare(variant)
    assert isinstance(workload, ImageClassification)
    assert (workload.default_input_size, workload.num_synthetic_classes) == (size, classes)
    model = torch.nn.Linear(3, 4)
    batch = torch.randn(5, 3), torch.tensor([0, 1, 2, 3, 0])
    outputs = workload.forward(model, batch)
    torch.testing.assert_close(outputs, batch[0] @ model.weight.T + model.bias)
    by_hand = -outputs.log_softmax(1)[range(5), batch[1]].mean()
    torch.testing.assert_close(workload.loss(outputs, batch), by_hand)
    (optimizer,) = workload.optimizers(model)
    assert optimizer.param_groups[0]["params"] == list(model.parameters())
    assert [metric.name for metric in workload.metrics(batch)] == ["accuracy"]
    assert (Workload.schedulers(workload, [optimizer], 3), Workload.metrics(workload, []), workload.facts()) == (
        [], [], {})
    with pytest.raises(UserError, match="has no variant 'x': choose from imagenet, cifar"):
        RESNET.prepare("x")
