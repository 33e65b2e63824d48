"""Models that bricks are held against: this project's workloads, and families of other libraries where installed.

All have random weights. What torchvision, timm and transformers give is named as a user names a model of his own:
`brick_zoo:torchvision_resnet18`. torchvision's operators are not there beside a CPU build of PyTorch; the two that its
import asks for are declared before, which is for benchmarks alone.
"""

import hashlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from charact.bricks.capture.recording import Source
from charact.bricks.commands._models import sources_of
from charact.workload.registry import all_workloads

_VISION = """
    alexnet convnext_small convnext_tiny densenet121 densenet161 densenet169 densenet201 efficientnet_b0
    efficientnet_b1 efficientnet_b2 efficientnet_v2_s googlenet inception_v3 mnasnet0_5 mnasnet0_75 mnasnet1_0
    mnasnet1_3 mobilenet_v2 mobilenet_v3_large mobilenet_v3_small regnet_x_1_6gf regnet_x_400mf regnet_x_800mf
    regnet_y_1_6gf regnet_y_400mf regnet_y_800mf resnet18 resnet34 resnet50 resnext50_32x4d shufflenet_v2_x0_5
    shufflenet_v2_x1_0 shufflenet_v2_x1_5 shufflenet_v2_x2_0 squeezenet1_0 squeezenet1_1 swin_t swin_v2_t swin_s
    vit_b_32 vgg11 wide_resnet50_2
"""
_IMAGE = """
    convmixer_768_32 convnext_nano cspresnet50 darknet53 deit_small_patch16_224 deit_tiny_patch16_224 dla34 dpn68
    efficientnet_lite0 edgenext_small fbnetc_100 gernet_s ghostnet_100 gmlp_s16_224 hardcorenas_a hrnet_w18_small
    lcnet_100 mixer_s16_224 mixer_s32_224 mixnet_s mobilevit_s mobilenetv3_large_100 nf_resnet50 poolformer_s12
    regnetx_002 regnety_002 repvgg_a0 resmlp_12_224 resnest14d rexnet_100 selecsls42 semnasnet_100 seresnet50
    skresnet18 tf_efficientnet_b0 tinynet_a tnt_s_patch16_224 vit_small_patch32_224 vit_tiny_patch16_224
    xcit_nano_12_p16_224
"""
_TEXT = """
    Albert Bert DistilBert Electra GPT2 GPTNeo MobileBert OPT Roberta SqueezeBert XLNet
"""
_HELD_OUT_FRAC = 0.3


@dataclass(frozen=True)
class Member:
    """A model of the zoo, and whether it was left out while the method was made."""

    family: str
    source: Source
    held_out: bool


def members(batch_size: int, mode: str, families: set[str]) -> list[Member]:
    """Every model that is installed, with its usual input."""
    found: list[Member] = []
    for workload in all_workloads().values():
        for variant in workload.variants if "charact" in families else ():
            sources = sources_of([workload.name], variant=variant, batch_sizes=[batch_size], modes=[mode])
            found += [_member("charact", source) for source in sources]
    for family, names, spec, size in (
        ("torchvision", _VISION.split(), "3xSxS -> int64[1000]", 224),
        ("timm", _IMAGE.split(), "3xSxS -> int64[1000]", 224),
        ("transformers", _TEXT.split(), "input_ids=int64[5:1000] S", 64),
    ):
        if family not in families or importlib.util.find_spec(family) is None:
            continue
        for name in names:
            sources = sources_of([f"brick_zoo:{family}_{name}"], input_spec=spec, batch_sizes=[batch_size],
                                 modes=[mode], input_sizes=[299 if name == "inception_v3" else size])
            found += [_member(family, source) for source in sources]
    return found


def _member(family: str, source: Source) -> Member:
    workload = source.case.workload
    number = int(hashlib.sha256(f"{workload.name}.{workload.variant}".encode()).hexdigest()[:8], 16)
    return Member(family, source, number < _HELD_OUT_FRAC * 2**32)


def _torchvision(name: str) -> torch.nn.Module:
    _declare()
    import torchvision.models as models  # type: ignore[import-not-found]

    options: dict[str, Any] = {"aux_logits": False, "init_weights": False} if name in ("googlenet", "inception_v3") \
        else {}
    made: torch.nn.Module = models.get_model(name, weights=None, **options)
    return made


def _timm(name: str) -> torch.nn.Module:
    _declare()
    import timm  # type: ignore[import-not-found]

    made: torch.nn.Module = timm.create_model(name, pretrained=False)
    return made


def _transformers(name: str) -> torch.nn.Module:
    import transformers

    config = getattr(transformers, f"{name}Config")()
    for count in ("num_hidden_layers", "num_layers", "n_layers", "n_layer"):
        if isinstance(getattr(config, count, None), int) and name != "GPTNeo":
            setattr(config, count, min(6, getattr(config, count)))
    made: torch.nn.Module = getattr(transformers, f"{name}Model")(config)
    return made


_declared: list[torch.library.Library] = []


def _declare() -> None:
    """Declare the operators that importing torchvision asks for."""
    if not _declared:
        _declared.append(torch.library.Library("torchvision", "DEF"))  # type: ignore[no-untyped-call]
        for name in ("nms", "qnms"):
            _declared[0].define(  # type: ignore[no-untyped-call]
                f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


_MAKERS: dict[str, Callable[[str], torch.nn.Module]] = {
    "torchvision": _torchvision, "timm": _timm, "transformers": _transformers}


def __getattr__(name: str) -> Callable[[], torch.nn.Module]:
    family, _, model = name.partition("_")
    if family not in _MAKERS:
        raise AttributeError(name)
    return lambda: _MAKERS[family](model)
