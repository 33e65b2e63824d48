"""Translation with attention, one GRU to read and one to write: PyTorch's tutorial, in its present and an older form.

Source: pytorch/tutorials, "Translation with a Sequence to Sequence Network and Attention", as published in 2024
(attention after Bahdanau et al., ICLR 2015) and, for `tutorial2017`, its first form (commit 05e7ce2).
"""

from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from charact.datasets._samples.translation_pairs import translation_dataset
from charact.datasets.tatoeba import PADDING, SOS
from charact.workload import DataRequest, Generator, Workload
from charact.workload.metrics import Bleu, Metric, TokenAccuracy


class Encoder(nn.Module):
    """Embedding, dropout and a GRU over the whole sentence, padding included as in the source."""

    def __init__(self, num_words: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_words, width)
        self.dropout = nn.Dropout(0.1)
        self.gru = nn.GRU(width, width, batch_first=True)

    def forward(self, sources: Tensor) -> tuple[Tensor, Tensor]:
        """(N, T) words to the states after each, (N, T, width), and after the last, (1, N, width)."""
        states: Tensor
        last: Tensor
        states, last = self.gru(self.dropout(self.embedding(sources)))
        return states, last


class BahdanauAttention(nn.Module):
    """Additive attention: a small network scores every encoder state against the decoder's.

    It projects the encoder's states again for every word, as the source does.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.score = nn.Linear(width, 1)

    def forward(self, query: Tensor, states: Tensor) -> Tensor:
        """Weighted sum of the states, (N, 1, width), for a query of that shape; padding is not masked."""
        scores: Tensor = self.score(torch.tanh(self.query(query) + self.key(states)))
        return scores.softmax(1).transpose(1, 2) @ states


class Decoder(nn.Module):
    """Attention by the last state; a GRU over the last word joined to what the attention gives."""

    def __init__(self, num_words: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_words, width)
        self.dropout = nn.Dropout(0.1)
        self.attention = BahdanauAttention(width)
        self.gru = nn.GRU(2 * width, width, batch_first=True)
        self.out = nn.Linear(width, num_words)

    def forward(self, words: Tensor, hidden: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """One step: last words (N, 1) to logits (N, 1, words) and the new state."""
        embedded = self.dropout(self.embedding(words))
        context = self.attention(hidden.transpose(0, 1), states)
        output, hidden = self.gru(torch.cat((embedded, context), 2), hidden)
        return self.out(output), hidden


class SteppedEncoder(nn.Module):
    """The older form: one call of the GRU a word. It stops at the sentence's end, beyond which states are zero."""

    def __init__(self, num_words: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_words, width)
        self.gru = nn.GRU(width, width, batch_first=True)

    def forward(self, sources: Tensor) -> tuple[Tensor, Tensor]:
        """(N, T) words to the states after each, (N, T, width), and after the sentence's end, (1, N, width)."""
        embedded = self.embedding(sources)
        hidden = embedded.new_zeros(1, sources.shape[0], embedded.shape[2])
        states = []
        for step in range(sources.shape[1]):
            inside = (sources[:, step] != PADDING)[:, None]
            state, after = self.gru(embedded[:, step:step + 1], hidden)
            # Sentences of a batch end at different steps: a mask keeps the shapes fixed.
            hidden = torch.where(inside, after, hidden)
            states.append(torch.where(inside[:, None], state, 0.0))
        return torch.cat(states, 1), hidden


class PositionDecoder(nn.Module):
    """The older form: a linear layer on word and state weighs positions, so it is built for one sentence length."""

    def __init__(self, num_words: int, width: int, length: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_words, width)
        self.dropout = nn.Dropout(0.1)
        self.attn = nn.Linear(2 * width, length)
        self.attn_combine = nn.Linear(2 * width, width)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, num_words)

    def forward(self, words: Tensor, hidden: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """One step: last words (N, 1) to logits (N, 1, words) and the new state."""
        embedded = self.dropout(self.embedding(words))
        weights = self.attn(torch.cat((embedded, hidden.transpose(0, 1)), 2)).softmax(2)
        output = self.attn_combine(torch.cat((embedded, weights @ states), 2)).relu()
        output, hidden = self.gru(output, hidden)
        return self.out(output), hidden


class Translator(nn.Module):
    """An encoder and a decoder that writes as many words as the target has places.

    Args:
        encoder: gives the states and the last one.
        decoder: makes one step.
        forcing: share of the training batches in which the decoder is given the true last word instead of its own.
    """

    def __init__(self, encoder: nn.Module, decoder: nn.Module, forcing: float) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.forcing = forcing

    def forward(self, sources: Tensor, targets: Tensor) -> Tensor:
        """Words (N, T) to log-probabilities (N, T, words); evaluation writes greedily and never reads the targets."""
        states, hidden = self.encoder(sources)
        forced = None
        if not (self.training and self.forcing == 1):
            # Drawn on the device: whether a batch is forced changes neither shapes nor work, and nothing waits for it.
            forced = torch.rand((), device=sources.device) < (self.forcing if self.training else 0.0)
        word = torch.full_like(sources[:, :1], SOS)
        logits = []
        for step in range(targets.shape[1]):
            output, hidden = self.decoder(word, hidden, states)
            logits.append(output)
            truth = targets[:, step:step + 1]
            word = truth if forced is None else torch.where(forced, truth, output.detach().argmax(2))
        return torch.cat(logits, 1).log_softmax(2)


class TranslationGenerator(Generator):
    """Translation of sentences: what the encoder says of each word is kept, and the decoder's state."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._states: Any = None
        self._hidden: Any = None
        self._first: Any = None

    def prefill(self, batch: Any) -> Tensor:
        """See `Generator`: encode the sources (N, T), and read the start mark."""
        sources = batch[0]
        self._states, self._hidden = self._model.encoder(sources)
        logits = self.decode(torch.full_like(sources[:, 0], SOS))
        self._first = self._hidden
        return logits

    def decode(self, words: Tensor) -> Tensor:
        """See `Generator`."""
        logits, self._hidden = self._model.decoder(words[:, None], self._hidden, self._states)
        return logits[:, -1]  # type: ignore[no-any-return]

    def go_to(self, num_words: int) -> None:
        """See `Generator`."""
        self._hidden = self._first

    def state(self) -> list[Tensor]:
        """Return the encoder's states, and the decoder's after the start mark and now."""
        return [each for each in (self._states, self._first, self._hidden) if each is not None]


@dataclass(kw_only=True)
class Seq2seqWorkload(Workload):
    """The tutorial's translator, French to English.

    The present form trains always forced, on padded batches with the padding as words to be learnt. `tutorial2017`
    forces half of the batches, takes one pair at a time by default and leaves padding out; it sums the loss over a
    sentence, so its gradients grow with the length. Greedy writing continues beyond an end mark, which fixes the
    shapes.
    """

    name: str = "seq2seq"
    source: str = "PyTorch tutorials, Translation with a Sequence to Sequence Network and Attention"
    year: int | None = 2015
    input_kind: Literal["image", "sequence"] = "sequence"
    default_batch_size: int = 32
    padding_index: int | None = PADDING
    variants: tuple[str, ...] = ("bahdanau", "tutorial2017")

    def prepare(self, variant: str | None = None) -> Self:
        """Return a copy for one case, in the requested variant, with the batch size that it was published with."""
        prepared = super().prepare(variant)
        return replace(prepared, default_batch_size=1) if prepared.variant == "tutorial2017" else prepared

    @property
    def default_input_size(self) -> int:
        """Longest sentence in words, its end mark included."""
        return 10

    @property
    def smallest_input_size(self) -> int:
        """A word and the end mark."""
        return 2

    def dataset(self, input_size: int, request: DataRequest) -> Any:
        """Return pairs of sentences, (int64 (size,), int64 (size,)), each with its end mark, padded with zeros."""
        return translation_dataset(request, input_size=input_size, num_source_words=4601, num_target_words=2991)

    def model(self, dataset: Any) -> Translator:
        """Return the translator between the dataset's vocabularies, PyTorch's initial weights."""
        num_source_words, num_target_words = len(dataset.source_vocabulary), len(dataset.target_vocabulary)
        if self.variant == "tutorial2017":
            decoder = PositionDecoder(num_target_words, 256, dataset.sentence_length)
            return Translator(SteppedEncoder(num_source_words, 256), decoder, forcing=0.5)
        return Translator(Encoder(num_source_words, 128), Decoder(num_target_words, 128), forcing=1)

    def forward(self, model: nn.Module, batch: Any) -> Any:
        """Return log-probabilities of the target's words, (batch, size, words)."""
        return model(*batch)

    def tokens(self, batch: Any) -> list[Tensor]:
        """Return the words of both sentences: the decoder reads as many as the target has places."""
        return [batch[0], batch[1]]

    def loss(self, outputs: Any, batch: Any) -> Tensor:
        """Return the negative log-likelihood: mean over all positions, or in the older form sum over a sentence."""
        targets = batch[1]
        if self.variant == "tutorial2017":
            total = functional.nll_loss(outputs.flatten(0, 1), targets.flatten(), ignore_index=PADDING, reduction="sum")
            return total / len(targets)
        return functional.nll_loss(outputs.flatten(0, 1), targets.flatten())

    def optimizers(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        """Return one for the encoder and one for the decoder: Adam, or SGD in the older form."""
        assert isinstance(model, Translator)
        parts = (model.encoder, model.decoder)
        if self.variant == "tutorial2017":
            return [torch.optim.SGD(part.parameters(), lr=0.01) for part in parts]
        return [torch.optim.Adam(part.parameters(), lr=0.001) for part in parts]

    def generator(self, model: nn.Module, output_size: int, cache: str) -> Generator:
        """Return a translation that keeps the states."""
        return TranslationGenerator(model)

    def metrics(self, dataset: Any) -> list[Metric]:
        """Return the share of correct words, and BLEU of what is written without seeing the targets."""
        return [TokenAccuracy(), Bleu(dataset.target_vocabulary)]


WORKLOADS = [Seq2seqWorkload()]
