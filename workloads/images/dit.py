"""Diffusion transformer (DiT): predicts the noise in latents of images, given their class and a timestep.

Source: Peebles and Xie, "Scalable Diffusion Models with Transformers", ICCV 2023, section 3 and table 1 (adaLN-Zero,
patches of 2). As published, the outputs are the noise and a variance for each channel, and a tenth of the labels is
replaced by a null class in training. The loss is the mean squared error of the noise: the small part that trains the
variance is left out, as is the moving average of the weights.
"""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from charact.datasets._samples.latents import NUM_CHANNELS, PIXELS, latent_dataset
from charact.workload import DataRequest, Workload

from .._attention import Attention, LayerSizes
from ..transformer import sinusoids

PATCH = 2
"""Side of a patch in positions of the latents."""
NUM_TIMESTEPS = 1000
NULL_FRAC = 0.1
"""Share of labels that are replaced by the null class in training."""
SIZES = {
    "s2": LayerSizes(width=384, num_heads=6, num_layers=12),
    "b2": LayerSizes(width=768, num_heads=12, num_layers=12),
    "xl2": LayerSizes(width=1152, num_heads=16, num_layers=28),
}


class Prediction(NamedTuple):
    """Outputs of the network, and the noise that it should predict."""

    outputs: Tensor
    """(N, 8, side, side): noise and variance of each channel."""
    noise: Tensor
    """(N, 4, side, side)."""


class Block(nn.Module):
    """Attention and a pointwise network, each shifted, scaled and gated by the condition; the gates begin at zero."""

    def __init__(self, sizes: LayerSizes) -> None:
        super().__init__()
        width = sizes.width
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))
        self.attention_norm = nn.LayerNorm(width, eps=1e-6, elementwise_affine=False)
        self.attention = Attention(width, sizes.num_heads)
        self.mlp_norm = nn.LayerNorm(width, eps=1e-6, elementwise_affine=False)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """(N, T, width) and (N, width) to (N, T, width)."""
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = self.modulation(condition)[:, None].chunk(6, dim=-1)
        y = self.attention_norm(x) * (1 + scale) + shift
        x = x + gate * self.attention(y, y)
        outputs: Tensor = x + mlp_gate * self.mlp(self.mlp_norm(x) * (1 + mlp_scale) + mlp_shift)
        return outputs


class DiffusionTransformer(nn.Module):
    """Noises latents at random timesteps and predicts the noise from their patches."""

    positions: Tensor
    timesteps: Tensor
    signal_scale: Tensor
    noise_scale: Tensor

    def __init__(self, sizes: LayerSizes, side: int, num_classes: int) -> None:
        super().__init__()
        width, num_patches = sizes.width, side // PATCH
        self.null_class = num_classes
        along = sinusoids(num_patches, width // 2)
        rows, columns = along.repeat_interleave(num_patches, 0), along.repeat(num_patches, 1)
        self.register_buffer("positions", torch.cat((rows, columns), dim=1), persistent=False)
        self.register_buffer("timesteps", sinusoids(NUM_TIMESTEPS, 256), persistent=False)
        # Linear schedule of Ho et al. 2020.
        signal = (1 - torch.linspace(1e-4, 0.02, NUM_TIMESTEPS)).cumprod(0)
        self.register_buffer("signal_scale", signal.sqrt(), persistent=False)
        self.register_buffer("noise_scale", (1 - signal).sqrt(), persistent=False)
        self.patches = nn.Conv2d(NUM_CHANNELS, width, PATCH, stride=PATCH)
        self.timestep = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.label = nn.Embedding(num_classes + 1, width)
        self.blocks = nn.ModuleList(Block(sizes) for _ in range(sizes.num_layers))
        self.norm = nn.LayerNorm(width, eps=1e-6, elementwise_affine=False)
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width))
        self.head = nn.Linear(width, PATCH**2 * 2 * NUM_CHANNELS)
        self._initialize()

    def _initialize(self) -> None:
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                if name == "head" or "modulation" in name:
                    nn.init.zeros_(module.weight)
                else:
                    nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        nn.init.normal_(self.label.weight, std=0.02)

    def forward(self, latents: Tensor, labels: Tensor) -> Prediction:
        """Noise the latents (N, 4, side, side) of images with labels (N,), and predict the noise."""
        steps = torch.randint(NUM_TIMESTEPS, labels.shape, device=labels.device)
        noise = torch.randn_like(latents)
        signal_scale, noise_scale = (table[steps][:, None, None, None] for table in
                                     (self.signal_scale, self.noise_scale))
        if self.training:
            is_null = torch.rand(labels.shape, device=labels.device) < NULL_FRAC
            labels = labels.masked_fill(is_null, self.null_class)
        return Prediction(self.predict(signal_scale * latents + noise_scale * noise, steps, labels), noise)

    def predict(self, latents: Tensor, steps: Tensor, labels: Tensor) -> Tensor:
        """Return noise and variance (N, 8, side, side) of noised latents at their timesteps (N,)."""
        condition = self.timestep(self.timesteps[steps]) + self.label(labels)
        x = self.patches(latents).flatten(2).transpose(1, 2) + self.positions
        for block in self.blocks:
            x = block(x, condition)
        shift, scale = self.modulation(condition)[:, None].chunk(2, dim=-1)
        pixels = self.head(self.norm(x) * (1 + scale) + shift)
        num_patches = latents.shape[-1] // PATCH
        pixels = pixels.unflatten(2, (PATCH, PATCH, -1)).unflatten(1, (num_patches, num_patches))
        outputs: Tensor = pixels.permute(0, 5, 1, 3, 2, 4).flatten(4, 5).flatten(2, 3)
        return outputs


@dataclass(kw_only=True)
class DiTWorkload(Workload):
    """A size of DiT; inference is one evaluation of the network, a step of a sampler.

    The input size is the side of the image in pixels, eight times that of the latents.
    """

    name: str = "dit"
    source: str = "Peebles and Xie, Scalable Diffusion Models with Transformers, ICCV 2023"
    year: int | None = 2023
    input_kind: Literal["image"] = "image"
    default_batch_size: int = 2
    variants: tuple[str, ...] = tuple(SIZES)

    @property
    def default_input_size(self) -> int:
        """Side in pixels of the published images."""
        return 256

    @property
    def smallest_input_size(self) -> int:
        """One patch of latents."""
        return self.input_size_step

    @property
    def input_size_step(self) -> int:
        """Side in pixels of the image of a patch: latents are cut into whole patches."""
        return PIXELS * PATCH

    def dataset(self, input_size: int, request: DataRequest) -> Any:
        """Return latents with labels, (float32 (4, size / 8, size / 8), int64)."""
        return latent_dataset(request, input_size=input_size, num_synthetic_classes=1000)

    def model(self, dataset: Any) -> DiffusionTransformer:
        """Return the network for the dataset's classes and latents."""
        return DiffusionTransformer(SIZES[self.variant], dataset.input_size, dataset.num_classes)

    def forward(self, model: nn.Module, batch: Any) -> Any:
        """Return the prediction for latents that are noised at random timesteps."""
        return model(*batch)

    def loss(self, outputs: Any, batch: Any) -> Tensor:
        """Return the mean squared error of the predicted noise."""
        return functional.mse_loss(outputs.outputs[:, :NUM_CHANNELS], outputs.noise)

    def optimizers(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        """Return AdamW with the published settings."""
        return [torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.0)]


WORKLOADS = [DiTWorkload()]
