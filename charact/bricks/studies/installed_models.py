"""Models of other packages that the full study includes where these packages are installed.

A model of transformers has the default configuration of its architecture and random weights: nothing is downloaded. Its
factory is an attribute of this module, as in `charact.bricks.studies.installed_models:bert`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any


@dataclass(frozen=True)
class ModelGroup:
    """Models of one package with equal inputs."""

    package: str
    module: str
    """Module with a factory for each name."""
    names: tuple[str, ...]
    input_spec: str
    input_size: int

    @property
    def targets(self) -> list[str]:
        """The models as commands name them: package.module:factory."""
        return [f"{self.module}:{name}" for name in self.names]


GROUPS = (
    ModelGroup("transformers", __name__, ("bert", "distilbert", "electra", "gpt2", "mpnet", "roberta"),
               "int64[1000] S", 128),
    ModelGroup("transformers", __name__, ("t5",), "input_ids=int64[1000] S, decoder_input_ids=int64[1000] S", 128),
    ModelGroup("transformers", __name__, ("convnext", "deit", "mobilenet_v2", "regnet", "resnet", "segformer", "swin",
                                          "vit"), "3xSxS", 224),
    ModelGroup("torchvision", "torchvision.models",
               ("alexnet", "convnext_tiny", "densenet121", "densenet169", "efficientnet_b0", "mnasnet1_0",
                "mobilenet_v2", "mobilenet_v3_large", "regnet_y_400mf", "resnext50_32x4d", "shufflenet_v2_x1_0",
                "squeezenet1_0", "squeezenet1_1", "wide_resnet50_2"), "3xSxS", 224))


def installed_groups() -> list[ModelGroup]:
    """Return the groups whose packages are installed."""
    return [group for group in GROUPS if find_spec(group.package) is not None]


def __getattr__(name: str) -> Callable[[], Any]:
    """Return the factory of a model of transformers."""
    if not any(name in group.names for group in GROUPS if group.module == __name__):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return partial(_default_model, name)


def _default_model(name: str) -> Any:
    """Return a model of transformers with the default configuration of its architecture."""
    from transformers import AutoConfig, AutoModel  # optional

    config = AutoConfig.for_model(name)
    config.use_cache = False
    return AutoModel.from_config(config)
