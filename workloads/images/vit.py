"""Vision transformer (ViT): an encoder over the patches of an image.

Source: Dosovitskiy et al., "An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale", ICLR 2021,
section 3.1 and table 1; `s16` and `tiny` are the sizes of Touvron et al. 2021 ("DeiT"), table 1, without distillation.
The classifier is one linear layer, as in the paper's fine-tuning.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from charact.workload import ImageClassification

from .._attention import DROPOUT, Layer, LayerSizes

PATCH = 16
"""Side of a patch in pixels."""
SIZES = {
    "tiny": LayerSizes(width=192, num_heads=3, num_layers=12),
    "s16": LayerSizes(width=384, num_heads=6, num_layers=12),
    "b16": LayerSizes(width=768, num_heads=12, num_layers=12),
}


class VisionTransformer(nn.Module):
    """Patches and a class token, layers with the norm first, and a classifier of the class token."""

    def __init__(self, sizes: LayerSizes, input_size: int, num_classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, sizes.width, PATCH, stride=PATCH)
        self.class_token = nn.Parameter(torch.zeros(1, 1, sizes.width))
        self.positions = nn.Parameter(torch.empty(1, 1 + (input_size // PATCH) ** 2, sizes.width))
        self.dropout = nn.Dropout(DROPOUT)
        self.layers = nn.ModuleList(
            Layer(sizes, nn.GELU(), causal=False, cross=False, norm_first=True) for _ in range(sizes.num_layers))
        self.norm = nn.LayerNorm(sizes.width)
        self.head = nn.Linear(sizes.width, num_classes)
        nn.init.normal_(self.positions, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)

    def forward(self, images: Tensor) -> Tensor:
        """(N, 3, size, size) to logits, (N, classes)."""
        patches = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.class_token.expand(len(images), -1, -1), patches), dim=1)
        x = self.dropout(x + self.positions)
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(self.norm(x[:, 0]))
        return logits


@dataclass(kw_only=True)
class ViTWorkload(ImageClassification):
    """A size of ViT with patches of 16 pixels."""

    name: str = "vit"
    source: str = "Dosovitskiy et al., An Image is Worth 16x16 Words, ICLR 2021"
    year: int | None = 2021
    default_batch_size: int = 8
    variants: tuple[str, ...] = tuple(SIZES)

    @property
    def smallest_input_size(self) -> int:
        """One patch."""
        return PATCH

    @property
    def input_size_step(self) -> int:
        """Side of a patch: an image is cut into whole patches."""
        return PATCH

    def model(self, dataset: Any) -> VisionTransformer:
        """Return the network for the dataset's classes, with positions for its images' size."""
        return VisionTransformer(SIZES[self.variant], dataset.input_size, dataset.num_classes)

    def optimizers(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        """Return AdamW with the settings of training on ImageNet from scratch (table 3), without warm-up."""
        return [torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.3)]

    def clip_gradients(self, model: nn.Module) -> None:
        """Clip the norm of all gradients together to 1, as in the training on ImageNet (table 3)."""
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)


WORKLOADS = [ViTWorkload()]
