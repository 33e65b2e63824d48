"""Mixture of experts: a decoder in the form of Mixtral, whose pointwise networks each see a part of the words.

Source: Jiang et al., "Mixtral of Experts", 2024, section 2 and table 1. There is no loss that balances the experts.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ._decoder import STD, Decoder, DecoderSizes, Matrix
from ._grouped_gemm import grouped_gemm
from ._language_model import LanguageModelWorkload


@dataclass(frozen=True, kw_only=True)
class MixtureSizes(DecoderSizes):
    """Sizes of a decoder with experts; `inner` is the width inside of one."""

    num_experts: int = 8
    num_chosen: int = 2
    """Experts of a word."""


SIZES = {
    "tiny": MixtureSizes(width=256, num_heads=8, num_kv_heads=2, num_layers=4, inner=344, num_words=4096,
                         context=32_768, base=1e6),
    "8x7b": MixtureSizes(width=4096, num_heads=32, num_kv_heads=8, num_layers=32, inner=14_336, num_words=32_000,
                         context=32_768, base=1e6),
}


class Experts(nn.Module):
    """Gated networks of which each word takes the best few, weighted by a softmax over their scores.

    No word is dropped, whatever the load of an expert. Words are sorted by expert, so that no shape depends on the
    choice, and on CUDA the host need not wait for it.
    """

    def __init__(self, sizes: MixtureSizes) -> None:
        super().__init__()
        self.num_chosen = sizes.num_chosen
        self.router = Matrix(sizes.width, sizes.num_experts)
        self.gate = nn.Parameter(torch.empty(sizes.num_experts, sizes.inner, sizes.width))
        self.up = nn.Parameter(torch.empty(sizes.num_experts, sizes.inner, sizes.width))
        self.down = nn.Parameter(torch.empty(sizes.num_experts, sizes.width, sizes.inner))
        for weights, std in ((self.gate, STD), (self.up, STD), (self.down, sizes.added_std)):
            nn.init.normal_(weights, std=std)
        # No buffer, since DistributedDataParallel would replace it by that of the first rank.
        self.num_routed = torch.zeros(sizes.num_experts, dtype=torch.int64)
        """Words that each expert got in all calls."""

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.num_routed = fn(self.num_routed)
        return self

    def forward(self, x: Tensor) -> Tensor:
        """(..., width) to the same."""
        words = x.flatten(0, -2)
        scores, chosen = self.router(words).topk(self.num_chosen)
        expert = chosen.flatten()
        num_routed = (expert[:, None] == torch.arange(len(self.gate), device=x.device)).sum(0)
        self.num_routed += num_routed
        order = expert.argsort(stable=True)
        word = order // self.num_chosen
        outputs = self._networks(words.index_select(0, word), num_routed.cumsum(0, dtype=torch.int32))
        weighted = outputs * scores.softmax(-1).flatten().index_select(0, order)[:, None]
        return torch.zeros_like(words).index_add(0, word, weighted.to(x.dtype)).view_as(x)

    def _networks(self, x: Tensor, ends: Tensor) -> Tensor:
        """Apply the experts to rows (rows, width) in their order; `ends` has the end of each expert's rows."""
        # Autocast does not know the operator.
        device = x.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
        x, gate, up, down = (each.to(dtype) for each in (x, self.gate, self.up, self.down))
        hidden = functional.silu(grouped_gemm(x, gate, ends)) * grouped_gemm(x, up, ends)
        outputs: Tensor = grouped_gemm(hidden, down, ends)
        return outputs


@dataclass(kw_only=True)
class MixtureOfExperts(LanguageModelWorkload):
    """A decoder-only language model of 8 experts, of which each word takes 2: `tiny`, or Mixtral 8x7B."""

    name: str = "moe"
    source: str = "Jiang et al., Mixtral of Experts, 2024"
    year: int | None = 2024
    variants: tuple[str, ...] = tuple(SIZES)
    _experts: list[Experts] = field(default_factory=list, init=False, repr=False)

    @property
    def sizes(self) -> MixtureSizes:
        """Sizes of the variant."""
        return SIZES[self.variant]

    def model(self, dataset: Any) -> Decoder:
        """Return the network for the dataset's vocabulary."""
        model = Decoder(self.sizes, dataset.num_words, partial(Experts, self.sizes))
        self._experts = [module for module in model.modules() if isinstance(module, Experts)]
        return model

    def facts(self) -> dict[str, Any]:
        """Return the words that each expert got in all iterations so far, by layer, and how uneven they are.

        `imbalance_of_experts`: by layer, the largest number of words over the mean, 1 for a balanced load.
        """
        counts = [experts.num_routed.tolist() for experts in self._experts]
        return {"words_of_experts": counts,
                "imbalance_of_experts": [round(max(each) * len(each) / max(sum(each), 1), 3) for each in counts]}


WORKLOADS = [MixtureOfExperts()]
