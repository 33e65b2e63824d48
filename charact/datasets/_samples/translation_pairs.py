"""Sentence pairs as a PyTorch dataset."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils.data import Dataset

from charact.datasets._common.registry import stored_content
from charact.datasets.tatoeba import EncodedPairs, encode_pairs, make_pairs

if TYPE_CHECKING:
    from charact.datasets._common.request import DataRequest


class SentencePairs(Dataset[tuple[Tensor, Tensor]]):
    """Samples (int64 (length,), int64 (length,)): a sentence and its translation, with end mark and padding."""

    def __init__(self, pairs: EncodedPairs) -> None:
        # Arrays, because the FLOP pass reads the dataset under fake tensors.
        self.pairs = pairs
        self.source_vocabulary = pairs.source_vocabulary
        self.target_vocabulary = pairs.target_vocabulary
        self.sentence_length = pairs.sources.shape[1]

    def __len__(self) -> int:
        return len(self.pairs.sources)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(self.pairs.sources[index]), torch.from_numpy(self.pairs.targets[index])


def translation_dataset(
    request: "DataRequest", *, input_size: int, num_source_words: int, num_target_words: int
) -> SentencePairs:
    """Return sentence pairs of at most `input_size` words including the end mark.

    `num_source_words` and `num_target_words` are the default vocabulary sizes of synthetic data.
    """
    stored = stored_content(request, "translation")
    if stored is None:
        asked = request.synthetic.num_words
        return SentencePairs(make_pairs(request, input_size, asked or num_source_words, asked or num_target_words))
    return SentencePairs(encode_pairs(stored[1], request.split, input_size))
