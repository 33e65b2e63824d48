"""Text as a PyTorch dataset for language models: parallel streams that successive batches continue."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from charact.core.errors import UserError
from charact.datasets._common.registry import stored_content
from charact.datasets._common.vocabulary import Tokens, zipf_tokens

if TYPE_CHECKING:
    from charact.datasets._common.request import DataRequest

NUM_SYNTHETIC_BATCHES = 512
"""Number of batches in synthetic text: many more than a profile needs, and drawn in a fraction of a second."""
_SPLIT_SEEDS = {"train": 0, "valid": 1, "test": 2}


class TokenStreams(Dataset[tuple[Tensor, Tensor]]):
    """A text cut into as many equal streams as the batch size; leftover words are dropped.

    Sample i is segment i // batch_size of stream i % batch_size, so that a batch in order has the same segment of every
    stream and the next batch continues it: a model may carry its state over. The last segment is shorter if the length
    of the streams is not a multiple of the segment length, as in pytorch/examples.
    """

    shuffled = False

    def __init__(self, tokens: Tokens, num_words: int, input_size: int, request: "DataRequest") -> None:
        self.num_words = num_words
        self.input_size = input_size
        stream_length = len(tokens) // request.batch_size
        if stream_length <= input_size:
            raise UserError(f"{request.name} ({request.split}) has {len(tokens):,} words, too few for batch size "
                            f"{request.batch_size} and input size {input_size}: choose a smaller one")
        # An array, because the FLOP pass reads the dataset under fake tensors.
        self.streams = tokens[: request.batch_size * stream_length].reshape(request.batch_size, stream_length)

    def __len__(self) -> int:
        num_streams, stream_length = self.streams.shape
        return num_streams * -(-(stream_length - 1) // self.input_size)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        segment, stream = divmod(index, len(self.streams))
        first = segment * self.input_size
        words = torch.from_numpy(self.streams[stream, first : first + self.input_size + 1].copy())
        return words[:-1], words[1:]

    def collate(self, samples: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of a batch, both int64 (size, batch): steps first, as recurrent layers expect."""
        inputs, targets = zip(*samples, strict=True)
        return torch.stack(inputs, dim=1), torch.stack(targets, dim=1)


def make_tokens(request: "DataRequest", input_size: int, num_words: int) -> Tokens:
    """Return synthetic text for a whole number of segments; depends only on the arguments."""
    generator = np.random.default_rng((request.seed, _SPLIT_SEEDS[request.split]))
    # Long segments get fewer batches: a million words of 8 bytes are enough.
    num_segments = max(8, min(NUM_SYNTHETIC_BATCHES, 1_000_000 // (request.batch_size * input_size)))
    num_tokens = request.batch_size * (num_segments * input_size + 1)
    return zipf_tokens(generator, num_tokens, num_words, request.synthetic.zipf_exponent)


def language_model_dataset(request: "DataRequest", *, input_size: int, num_synthetic_words: int) -> TokenStreams:
    """Return a text for next-word prediction, cut into as many parallel streams as the batch size.

    Samples are (int64 (size,), int64 (size,)): a segment of one stream, and the same one word later.
    `num_synthetic_words` is the default vocabulary size of synthetic data.
    """
    stored = stored_content(request, "language_model")
    if stored is None:
        num_words = request.synthetic.num_words or num_synthetic_words
        return TokenStreams(make_tokens(request, input_size, num_words), num_words, input_size, request)
    _, (tokens, vocabulary) = stored
    return TokenStreams(tokens, len(vocabulary), input_size, request)
