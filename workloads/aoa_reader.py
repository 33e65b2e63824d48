"""Attention-over-Attention Reader: a missing word of a text is found among the words of the text before it.

Source: Cui et al., "Attention-over-Attention Neural Networks for Reading Comprehension", ACL 2017. The `cbt` form has
the sizes and settings of kevinkwl/AoAReader, written for the Children's Book Test; the `cnn` form those of
OlavHN/attention-over-attention, after the paper's for CNN news. Both initialize and clip alike.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from charact.datasets._samples.cloze import cloze_dataset
from charact.datasets.cbtest import PADDING
from charact.workload import DataRequest, Workload
from charact.workload.metrics import Accuracy, Metric

EMBEDDING_WIDTH = 384
NUM_SYNTHETIC_WORDS = 53_063
"""About as many words as the stories of CBTest's named entities have."""
# The least probability that an answer is taken to have: one that the document lacks has none at all.
LEAST_PROBABILITY = 1e-12


class BidirectionalGRU(nn.Module):
    """A GRU in each direction over texts of different lengths, padded at their ends.

    The backward direction must start at a text's last word, not in the padding. Packing would do it, but its shapes
    depend on the data; so each text is reversed within its length, which leaves the padding behind it, where it cannot
    reach the words. The padding is computed too and is part of the cost.
    """

    def __init__(self, num_inputs: int, width: int) -> None:
        super().__init__()
        self.ahead = nn.GRU(num_inputs, width, batch_first=True)
        self.back = nn.GRU(num_inputs, width, batch_first=True)

    def forward(self, inputs: Tensor, lengths: Tensor) -> Tensor:
        """(N, T, inputs) and (N,) to the states of both directions at each word, (N, T, 2·width)."""
        places = torch.arange(inputs.shape[1], device=inputs.device)
        reversal = torch.where(places < lengths[:, None], lengths[:, None] - 1 - places, places)[:, :, None]
        ahead, _ = self.ahead(inputs)
        back, _ = self.back(inputs.gather(1, reversal.expand_as(inputs)))
        return torch.cat((ahead, back.gather(1, reversal.expand_as(back))), 2)


class AoAReader(nn.Module):
    """Embedding and GRU shared by document and query, and an attention that weighs attentions; no further weights."""

    def __init__(self, num_words: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_words, EMBEDDING_WIDTH, padding_idx=PADDING)
        self.dropout = nn.Dropout(0.1)
        self.gru = BidirectionalGRU(EMBEDDING_WIDTH, width)
        nn.init.uniform_(self.embedding.weight, -0.05, 0.05)
        for parameter in self.gru.parameters():
            if parameter.dim() > 1:
                nn.init.orthogonal_(parameter)

    def forward(self, document: Tensor, query: Tensor, candidates: Tensor) -> Tensor:
        """Words (N, D), (N, Q) and (N, C) to the probabilities of the candidates, (N, C) in float32.

        They sum to 1 over all different words of the document.
        """
        in_document, in_query = document != PADDING, query != PADDING
        document_states, query_states = self._read(document, in_document), self._read(query, in_query)
        scores = document_states @ query_states.transpose(1, 2)
        over_document = scores.masked_fill(~in_document[:, :, None], -torch.inf).softmax(1)
        over_query = scores.masked_fill(~in_query[:, None], -torch.inf).softmax(2)
        # How much each word of the query matters: its mean attention over the document's own words.
        importance = (over_query * in_document[:, :, None]).sum(1) / in_document.sum(1)[:, None]
        attention = over_document @ importance[:, :, None]
        occurrences = candidates[:, :, None] == document[:, None]
        probabilities: Tensor = (occurrences.to(attention.dtype) @ attention)[:, :, 0].float()
        return probabilities

    def _read(self, words: Tensor, inside: Tensor) -> Tensor:
        states: Tensor = self.gru(self.dropout(self.embedding(words)), inside.sum(1))
        return states


@dataclass(kw_only=True)
class AoAReaderWorkload(Workload):
    """The reader at two published sizes."""

    name: str = "aoa_reader"
    aliases: tuple[str, ...] = ("aoa",)
    source: str = "Cui et al., Attention-over-Attention Neural Networks for Reading Comprehension, ACL 2017"
    year: int | None = 2017
    input_kind: Literal["image", "sequence"] = "sequence"
    default_batch_size: int = 32
    padding_index: int | None = PADDING
    variants: tuple[str, ...] = ("cbt", "cnn")

    @property
    def default_input_size(self) -> int:
        """Length of a document in words: that of most of the Children's Book Test."""
        return 512

    @property
    def smallest_input_size(self) -> int:
        """One word, which is the answer."""
        return 1

    def dataset(self, input_size: int, request: DataRequest) -> Any:
        """Return questions, int64: document (size,), query (64,), candidates (10,), place of the answer ()."""
        return cloze_dataset(request, input_size=input_size, num_synthetic_words=NUM_SYNTHETIC_WORDS)

    def model(self, dataset: Any) -> AoAReader:
        """Return the reader for the dataset's vocabulary: embeddings uniform within ±.05, orthogonal GRU."""
        return AoAReader(dataset.num_words, width=256 if self.variant == "cnn" else 384)

    def forward(self, model: nn.Module, batch: Any) -> Any:
        """Return the probabilities of the candidates, (batch, 10)."""
        return model(*batch[:3])

    def tokens(self, batch: Any) -> list[Tensor]:
        """Return the words of documents and queries; candidates are only compared with them."""
        return [batch[0], batch[1]]

    def loss(self, outputs: Any, batch: Any) -> Tensor:
        """Return the mean of -log P(answer)."""
        answers = outputs.gather(1, batch[3][:, None])
        loss: Tensor = -answers.clamp_min(LEAST_PROBABILITY).log().mean()
        return loss

    def optimizers(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        """Return Adam, with an L2 penalty of 1e-4 on all weights, or on the embedding alone in the `cnn` form."""
        assert isinstance(model, AoAReader)
        embedding, gru = list(model.embedding.parameters()), list(model.gru.parameters())
        penalty = 0.0 if self.variant == "cnn" else 1e-4
        groups = [{"params": embedding, "weight_decay": 1e-4}, {"params": gru, "weight_decay": penalty}]
        return [torch.optim.Adam(groups, lr=0.001)]

    def clip_gradients(self, model: nn.Module) -> None:
        """Clip each value to ±5."""
        nn.utils.clip_grad_value_(model.parameters(), 5.0)

    def metrics(self, dataset: Any) -> list[Metric]:
        """Return the share of questions whose likeliest candidate is the answer."""
        return [Accuracy("candidate_accuracy")]


WORKLOADS = [AoAReaderWorkload()]
