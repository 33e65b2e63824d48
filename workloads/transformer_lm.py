"""Transformer language model: decoder only, in GPT-2's form.

Source: Radford et al., "Language Models are Unsupervised Multitask Learners", 2019, section 2.3: normalization before
each part, learned positions, output layer tied to the embedding.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from charact.core.errors import UserError
from charact.datasets._samples.text_streams import language_model_dataset
from charact.workload import DataRequest, Workload
from charact.workload.metrics import Metric, Perplexity

from ._attention import DROPOUT, Layer, Sizes

SIZES = {
    "small": Sizes(width=256, num_heads=4, num_layers=4, num_words=33_278, context=2048),
    "gpt2": Sizes(width=768, num_heads=12, num_layers=12, num_words=50_257, context=1024),
}


class LanguageModel(nn.Module):
    """GPT-2's form: every place sees those before it; the output layer shares the embedding's weights."""

    def __init__(self, sizes: Sizes, num_words: int) -> None:
        super().__init__()
        assert sizes.context is not None
        self.words = nn.Embedding(num_words, sizes.width)
        self.positions = nn.Embedding(sizes.context, sizes.width)
        self.dropout = nn.Dropout(DROPOUT)
        self.layers = nn.ModuleList(
            Layer(sizes, nn.GELU(approximate="tanh"), causal=True, cross=False, norm_first=True)
            for _ in range(sizes.num_layers)
        )
        self.norm = nn.LayerNorm(sizes.width)
        self.head = nn.Linear(sizes.width, num_words, bias=False)
        self.head.weight = self.words.weight
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                # What is added to the shortcut is scaled down, so that its sum over the layers does not grow.
                added = name.endswith(("attention.out.weight", "mlp.2.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * sizes.num_layers) if added else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, words: Tensor) -> Tensor:
        """Words (N, T) to logits of the next ones, (N, T, vocabulary)."""
        places = torch.arange(words.shape[1], device=words.device)
        x = self.dropout(self.words(words) + self.positions(places))
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


@dataclass(kw_only=True)
class TransformerLM(Workload):
    """A decoder-only language model: `small`, or GPT-2 with 124 million parameters."""

    name: str = "transformer_lm"
    source: str = "Radford et al., Language Models are Unsupervised Multitask Learners, 2019"
    year: int | None = 2019
    input_kind: Literal["image", "sequence"] = "sequence"
    default_batch_size: int = 4
    variants: tuple[str, ...] = tuple(SIZES)

    @property
    def default_input_size(self) -> int:
        """Words that a prediction may look back on."""
        return 128

    @property
    def smallest_input_size(self) -> int:
        """One word, from which the next is predicted."""
        return 1

    def dataset(self, input_size: int, request: DataRequest) -> Any:
        """Return segments of streams, (int64 (size,), int64 (size,)), in batches (size, batch)."""
        sizes = SIZES[self.variant]
        if sizes.context is not None and input_size > sizes.context:
            raise UserError(f"input size {input_size} is too large for {self.name} {self.variant} "
                            f"(takes at most {sizes.context})")
        return language_model_dataset(request, input_size=input_size, num_synthetic_words=sizes.num_words)

    def model(self, dataset: Any) -> LanguageModel:
        """Return the network for the dataset's vocabulary."""
        return LanguageModel(SIZES[self.variant], dataset.num_words)

    def forward(self, model: nn.Module, batch: Any) -> Any:
        """Return logits of the next words, (batch, size, vocabulary)."""
        return model(batch[0].T)

    def loss(self, outputs: Any, batch: Any) -> Tensor:
        """Return the cross-entropy of the next words, in nats a word; its exponential is the perplexity."""
        return functional.cross_entropy(outputs.flatten(0, 1), batch[1].T.flatten())

    def optimizers(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        """Return AdamW, decaying matrices only; GPT-2's settings were not published, these are its predecessor's."""
        matrices = [parameter for parameter in model.parameters() if parameter.dim() == 2]
        others = [parameter for parameter in model.parameters() if parameter.dim() != 2]
        groups = [{"params": matrices, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
        return [torch.optim.AdamW(groups, lr=2.5e-4)]

    def clip_gradients(self, model: nn.Module) -> None:
        """Clip the norm of all gradients together to 1, as in the predecessor's code."""
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    def metrics(self, dataset: Any) -> list[Metric]:
        """Return the perplexity."""
        return [Perplexity(self.loss)]


WORKLOADS = [TransformerLM()]
