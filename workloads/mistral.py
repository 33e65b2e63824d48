"""Mistral: a decoder-only language model whose words attend to a sliding window of the words before them.

Source: Jiang et al., "Mistral 7B", 2023, section 2 and table 1, which has a context of 8,192 words; the released code
allows 32,768. A window of W words has the word itself, so that the cache of keys and values holds W words at most. A
prompt's attention computes the products of all pairs of words and masks those outside of the window: PyTorch's kernels
cannot leave them out.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

from ._decoder import Decoder, DecoderSizes, GatedNetwork
from ._language_model import LanguageModelWorkload

CONTEXT, BASE = 32_768, 10_000.0
SIZES = {
    "tiny": DecoderSizes(width=256, num_heads=8, num_kv_heads=2, num_layers=4, inner=688, num_words=4096,
                         context=CONTEXT, base=BASE, window=16),
    "7b": DecoderSizes(width=4096, num_heads=32, num_kv_heads=8, num_layers=32, inner=14_336, num_words=32_000,
                       context=CONTEXT, base=BASE, window=4096),
}


@dataclass(kw_only=True)
class Mistral(LanguageModelWorkload):
    """A decoder-only language model with a sliding window: `tiny`, or Mistral 7B."""

    name: str = "mistral"
    source: str = "Jiang et al., Mistral 7B, 2023"
    year: int | None = 2023
    variants: tuple[str, ...] = tuple(SIZES)

    @property
    def sizes(self) -> DecoderSizes:
        """Sizes of the variant."""
        return SIZES[self.variant]

    @property
    def window(self) -> int | None:
        """Words that a word attends to."""
        return self.sizes.window

    def model(self, dataset: Any) -> Decoder:
        """Return the network for the dataset's vocabulary."""
        return Decoder(self.sizes, dataset.num_words, partial(GatedNetwork, self.sizes))


WORKLOADS = [Mistral()]
