"""Protocols of published studies: options that `charact train --protocol` sets, and recorded deviations."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from charact.core.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """A study's settings for some workloads; None for unstated ones. A tuple has alternatives."""

    name: str
    source: str
    workload: tuple[str, ...]
    data: tuple[str, ...]
    num_epochs: int
    batch_size: int
    input_size: int
    split: str = "train"
    validation: str = "test"
    precision: str | None = None
    learning_rate: float | None = None
    weights: str | None = None
    """Initial weights."""
    until: str = "none"
    """Criterion to stop before the last epoch."""
    unstated: str
    """Settings that the study does not state, as text."""

    def options(self) -> dict[str, Any]:
        """Return the options of `charact train` that it sets."""
        stated = {} if self.precision is None else {"precisions": [self.precision]}
        return stated | {"data": self.data[0], "split": self.split, "validation": self.validation,
                         "num_epochs": self.num_epochs, "batch_sizes": [self.batch_size],
                         "input_sizes": [self.input_size]}

    def facts(self, used: Mapping[str, Any]) -> dict[str, Any]:
        """Return the facts for the record: the protocol, and deviations as [published, used].

        `used` has values by field name, and `variant` as [the published one, the one used].
        """
        published = {field.name: getattr(self, field.name) for field in fields(self)}
        changed = {}
        for option, value in used.items():
            if option == "variant":
                alternatives, value = (value[0],), value[1]
            else:
                stated = published[option]
                alternatives = stated if isinstance(stated, tuple) else (stated,)
            if None not in alternatives and value not in alternatives:
                changed[option] = [alternatives[0] if len(alternatives) == 1 else " or ".join(alternatives), value]
        return {"name": self.name, "source": self.source, "changed": changed, "unstated": self.unstated}


_NORTHEASTERN = "Northeastern University: training time of GoogLeNet and ResNet-18 on K80 and P100"
_VO = "Vo, Deep Learning Hardware Benchmark (layo02/Deep-Learning-Hardware-Benchmark)"
_GREY = ("mnist", "fashion_mnist")

PROTOCOLS = (
    Protocol(
        name="northeastern", source=_NORTHEASTERN, workload=("googlenet", "resnet18"),
        data=("cifar10", "mnist", "kmnist"), num_epochs=10, batch_size=10, input_size=224,
        unstated="optimizer, learning rate, loss, precision and initial weights",
    ),
    Protocol(
        name="vo", source=_VO, workload=("model_a",), data=_GREY, num_epochs=100, batch_size=64, input_size=32,
        precision="fp32", learning_rate=1e-3, weights="ImageNet's in the frozen base", unstated="nothing known",
    ),
    Protocol(
        name="vo", source=_VO, workload=("model_b",), data=_GREY, num_epochs=100, batch_size=64, input_size=32,
        precision="fp32", learning_rate=1e-3, unstated="initial weights",
    ),
    Protocol(
        name="vo", source=_VO, workload=("convolve2d",), data=("fashion_mnist",), num_epochs=10, batch_size=64,
        input_size=32, precision="fp16", learning_rate=1e-3, unstated="nothing known",
    ),
)


def find_protocol(name: str, workload: str) -> Protocol:
    """Return the protocol of a study for a workload; if the study has none for it, that of its first workload."""
    named = [protocol for protocol in PROTOCOLS if protocol.name == name]
    if not named:
        names = ", ".join(dict.fromkeys(protocol.name for protocol in PROTOCOLS))
        raise UserError(f"--protocol: '{name}' is not one of {names}")
    return next((protocol for protocol in named if workload in protocol.workload), named[0])
