"""RNN language model: predict each next word of a text with an LSTM, a GRU or a plain recurrent network.

The text is cut into parallel streams; a batch is the next segment of every stream. The hidden state is carried from
batch to batch, but detached: gradients go back at most `input size` words (truncated backpropagation through time).
Source: pytorch/examples, `word_language_model`, with the same layer names and settings; sizes 650 and 1500 are the
medium and large models of Zaremba et al., "Recurrent Neural Network Regularization", 2014.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves, tree_map

from charact.datasets._samples.text_streams import language_model_dataset
from charact.workload import DataRequest, Generator, Workload
from charact.workload.metrics import Metric, Perplexity

NUM_WORDS = 33_278
"""Vocabulary of WikiText-2."""
DROPOUTS = {200: 0.2, 650: 0.5, 1500: 0.65}
"""Dropout probability by the size of embedding and hidden state."""
CELLS: dict[str, Callable[..., nn.RNNBase]] = {
    "lstm": nn.LSTM, "gru": nn.GRU, "rnn_tanh": nn.RNN, "rnn_relu": partial(nn.RNN, nonlinearity="relu"),
}


class RNNModel(nn.Module):
    """Embedding, two recurrent layers, and a linear layer to the vocabulary, with dropout in between."""

    def __init__(self, cell: str, num_words: int, size: int, *, tied: bool) -> None:
        super().__init__()
        self.drop = nn.Dropout(DROPOUTS[size])
        self.encoder = nn.Embedding(num_words, size)
        self.rnn = CELLS[cell](size, size, num_layers=2, dropout=DROPOUTS[size])
        self.decoder = nn.Linear(size, num_words)
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)
        if tied:
            self.decoder.weight = self.encoder.weight

    def forward(self, words: Tensor, state: Any, *, last: bool = False) -> tuple[Tensor, Any]:
        """Return log-probabilities (T·N, vocabulary) of the next words, and the new state.

        Args:
            words: (T, N) word indices.
            state: state before the first word; None for zeros.
            last: whether only the words after the last ones are wanted, (N, vocabulary).
        """
        hidden, state = self.rnn(self.drop(self.encoder(words)), state)
        hidden = hidden[-1:] if last else hidden
        logits = self.decoder(self.drop(hidden))
        return functional.log_softmax(logits.flatten(0, 1), dim=1), state


class RecurrentGenerator(Generator):
    """Generation by a recurrent network, whose state has one size however many words it has read."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._state: Any = None
        self._after_prompt: Any = None

    def prefill(self, batch: Any) -> Tensor:
        """See `Generator`; the batch has words (T, N)."""
        logits, self._state = self._model(batch[0], None, last=True)
        self._after_prompt = self._state
        return logits  # type: ignore[no-any-return]

    def decode(self, words: Tensor) -> Tensor:
        """See `Generator`."""
        logits, self._state = self._model(words[None], self._state, last=True)
        return logits  # type: ignore[no-any-return]

    def go_to(self, num_words: int) -> None:
        """See `Generator`."""
        self._state = self._after_prompt

    def state(self) -> list[Tensor]:
        """Return the hidden state, after the prompt and now."""
        return [each for each in tree_leaves([self._after_prompt, self._state]) if each is not None]


def _variants() -> tuple[str, ...]:
    """Return the name of every combination of cell, size and tying; the defaults (200, not tied) are omitted."""
    return tuple(
        cell + ("" if size == 200 else f"-{size}") + ("-tied" if tied else "")
        for cell in CELLS for size in DROPOUTS for tied in (False, True)
    )


@dataclass(kw_only=True)
class RNNLanguageModel(Workload):
    """The language model of pytorch/examples; a variant names the cell, the size unless 200, and `tied`."""

    name: str = "rnn_lm"
    source: str = "pytorch/examples, word_language_model; Zaremba et al., Recurrent Neural Network Regularization, 2014"
    year: int | None = 2014
    input_kind: Literal["image", "sequence"] = "sequence"
    default_batch_size: int = 20
    variants: tuple[str, ...] = _variants()
    _state: Any = field(default=None, init=False, repr=False)
    """Hidden state after the last batch."""
    _state_of: Any = field(default=None, init=False, repr=False)
    """Number of streams, device and training mode for which that state is valid."""

    @property
    def default_input_size(self) -> int:
        """Return the number of words through which gradients are propagated."""
        return 35

    @property
    def smallest_input_size(self) -> int:
        """Return 1: one word, from which the next is predicted."""
        return 1

    def start_epoch(self) -> None:
        """Reset the hidden state to zeros, because each epoch restarts the streams."""
        self._state = None

    def dataset(self, input_size: int, request: DataRequest) -> Any:
        """Return segments of streams: words and next words, each int64 (size,); in a batch, (size, batch)."""
        return language_model_dataset(request, input_size=input_size, num_synthetic_words=NUM_WORDS)

    def model(self, dataset: Any) -> RNNModel:
        """Return the network for the dataset's vocabulary."""
        cell, *options = self.variant.split("-")
        size = next((int(option) for option in options if option.isdigit()), 200)
        return RNNModel(cell, dataset.num_words, size, tied="tied" in options)

    def forward(self, model: nn.Module, batch: Any) -> Tensor:
        """Return log-probabilities of the next words, (size·batch, vocabulary)."""
        words = batch[0]
        fits = (words.shape[1], words.device, model.training)
        state = self._state if fits == self._state_of else None
        outputs, state = model(words, state)
        self._state, self._state_of = tree_map(Tensor.detach, state), fits
        log_probabilities: Tensor = outputs
        return log_probabilities

    def tokens(self, batch: Any) -> list[Tensor]:
        """Return the words, without the next ones that are predicted."""
        return [batch[0]]

    def loss(self, outputs: Any, batch: Any) -> Tensor:
        """Return the negative log-likelihood of the next words, in nats per word; its exponential is the perplexity."""
        return functional.nll_loss(outputs, batch[1].flatten())

    def optimizers(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        """Return plain SGD with learning rate 20, which equals the source's hand-written update."""
        return [torch.optim.SGD(model.parameters(), lr=20)]

    def generator(self, model: nn.Module, output_size: int, cache: str) -> Generator:
        """Return a generation that keeps the hidden state."""
        return RecurrentGenerator(model)

    def clip_gradients(self, model: nn.Module) -> None:
        """Clip the total norm of all gradients to 0.25."""
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)

    def schedulers(self, optimizers: list[torch.optim.Optimizer], num_epochs: int) -> list[Any]:
        """Return schedulers that quarter the learning rate after each epoch without a new best validation loss."""
        return [torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.25, patience=0, threshold=0)
                for optimizer in optimizers]

    def metrics(self, dataset: Any) -> list[Metric]:
        """Return the perplexity."""
        return [Perplexity(self.loss)]


WORKLOADS = [RNNLanguageModel()]
