"""Cloze questions as a PyTorch dataset."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from charact.datasets._common.registry import stored_content
from charact.datasets.cbtest import NUM_CANDIDATES, PADDING, QUERY_LENGTH, EncodedQuestion, Words, make_questions

if TYPE_CHECKING:
    from charact.datasets._common.request import DataRequest


class Cloze(NamedTuple):
    """A question, or a batch of them with one more leading dimension; int64, padded with zeros."""

    document: Tensor
    """(length,)"""
    query: Tensor
    """(64,)"""
    candidates: Tensor
    """(10,)"""
    answer: Tensor
    """(): index of the correct candidate."""


class ClozeQuestions(Dataset[Cloze]):
    """Samples with documents cut to a length: the words nearest to the query are kept.

    With `answerable_only`, samples whose answer is cut off are left out: a model that points to words of the document
    cannot learn from them.
    """

    def __init__(
        self, questions: Sequence[EncodedQuestion], num_words: int, length: int, *, answerable_only: bool
    ) -> None:
        self.questions = [question for question in questions if not answerable_only
                          or (question.document[-length:] == question.candidates[question.answer]).any()]
        self.num_words = num_words
        self.length = length

    def __len__(self) -> int:
        return len(self.questions)

    def __getitem__(self, index: int) -> Cloze:
        document, query, candidates, answer = self.questions[index]
        return Cloze(_filled(document[-self.length:], self.length), _filled(query, QUERY_LENGTH),
                     _filled(candidates, NUM_CANDIDATES), torch.tensor(answer))


def _filled(words: Words, length: int) -> Tensor:
    row = np.full(length, PADDING, np.int64)
    row[: len(words)] = words
    return torch.from_numpy(row)


def cloze_dataset(request: "DataRequest", *, input_size: int, num_synthetic_words: int) -> ClozeQuestions:
    """Return questions about documents of at most `input_size` words.

    `num_synthetic_words` is the default vocabulary size of synthetic data.
    """
    stored = stored_content(request, "cloze")
    if stored is None:
        num_words = request.synthetic.num_words or num_synthetic_words
        made = make_questions(request, input_size, num_words)
        return ClozeQuestions(made, num_words, input_size, answerable_only=False)
    questions, vocabulary = stored[1]
    return ClozeQuestions(questions, len(vocabulary), input_size, answerable_only=request.split == "train")
