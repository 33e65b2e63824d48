"""Llama: decoder-only language models in the form of Llama 3.

Source: Grattafiori et al., "The Llama 3 Herd of Models", 2024, section 3.2 and table 3; sizes of `3.2-1b` from its
model card. Rotary frequencies are not rescaled for long contexts as in Llama 3.1, which changes no work.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

from ._decoder import Decoder, DecoderSizes, GatedNetwork
from ._language_model import LanguageModelWorkload

CONTEXT, BASE = 131_072, 500_000.0
SIZES = {
    "tiny": DecoderSizes(width=256, num_heads=8, num_kv_heads=2, num_layers=4, inner=688, num_words=4096,
                         context=CONTEXT, base=BASE),
    "3.2-1b": DecoderSizes(width=2048, num_heads=32, num_kv_heads=8, num_layers=16, inner=8192, num_words=128_256,
                           context=CONTEXT, base=BASE, tied=True),
    "3.1-8b": DecoderSizes(width=4096, num_heads=32, num_kv_heads=8, num_layers=32, inner=14_336, num_words=128_256,
                           context=CONTEXT, base=BASE),
}


@dataclass(kw_only=True)
class Llama(LanguageModelWorkload):
    """A decoder-only language model: `tiny`, or one of Llama's published sizes."""

    name: str = "llama"
    source: str = "Grattafiori et al., The Llama 3 Herd of Models, 2024"
    year: int | None = 2024
    variants: tuple[str, ...] = tuple(SIZES)

    @property
    def sizes(self) -> DecoderSizes:
        """Sizes of the variant."""
        return SIZES[self.variant]

    def model(self, dataset: Any) -> Decoder:
        """Return the network for the dataset's vocabulary."""
        return Decoder(self.sizes, dataset.num_words, partial(GatedNetwork, self.sizes))


WORKLOADS = [Llama()]
