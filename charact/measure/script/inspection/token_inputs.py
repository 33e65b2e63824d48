"""Inputs of a program's models that are tokens: indices that an embedding reads, and the padding among them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

import torch
from torch import nn

from charact.measure.script.inspection.tensor_contents import padding_frac
from charact.measure.script.program.events import MAX_TENSORS

_NOT_TOKENS = ("type", "segment", "position")
"""Parts of the names of indices that go with tokens: types of sentences, and places in them."""
_INDICES = (torch.int64, torch.int32)


class TokenInputs:
    """Finds the inputs of outermost models that are tokens, in one iteration.

    An input is tokens if it has two dimensions, and an embedding of the model reads it. Padding is what a mask of the
    same shape masks, or the embedding's `padding_idx`.

    *Error*: a table of categories that is read as a whole counts as text. Indices that the model makes or copies itself
    do not count.
    """

    def __init__(self) -> None:
        self._read: dict[tuple[int, int], int | None] = {}
        """Padding index by address and size of the indices that embeddings have read in the running call."""
        self._num_positions: Counter[tuple[int, int]] = Counter()
        """Positions by owner ID and the input's place in the call."""
        self._num_padding: Counter[tuple[int, int]] = Counter()
        """Those of padding; without a key if they are not known."""

    def embedded(self, embedding: nn.Embedding, args: Sequence[Any]) -> None:
        """Note the indices that an embedding has read."""
        if args and type(args[0]) is torch.Tensor:
            self._read[args[0].data_ptr(), args[0].numel()] = embedding.padding_idx

    def called(self, owner: int | None, inputs: Mapping[str, Any]) -> None:
        """Count the tokens of an outermost call that has ended, from its arguments by name."""
        read, self._read = self._read, {}
        tensors = _tensors(inputs)
        for place, (name, tensor) in enumerate(tensors):
            key = tensor.data_ptr(), tensor.numel()
            is_text = tensor.dtype in _INDICES and tensor.dim() == 2 and key in read
            if owner is None or not is_text or any(part in name.lower() for part in _NOT_TOKENS):
                continue
            padding_index = read.pop(key)  # once: the same tensor may also be passed as labels
            self._num_positions[owner, place] += tensor.numel()
            if (num_padding := _num_padding(name, tensor, tensors, padding_index)) is not None:
                self._num_padding[owner, place] += num_padding

    def rows(self) -> list[tuple[int, int, int, int | None]]:
        """Return owner ID, place among the call's tensors, positions, and those of padding (None if not known)."""
        return [(*key, number, self._num_padding.get(key)) for key, number in self._num_positions.items()]


def _tensors(inputs: Mapping[str, Any]) -> list[tuple[str, torch.Tensor]]:
    """Return the names and tensors of a call's arguments, in the order of `ProgramEvents.inputs`."""
    named: list[tuple[str, Any]] = []
    for name, value in inputs.items():
        if isinstance(value, dict):
            named += [(str(key), inner) for key, inner in list(value.items())[:MAX_TENSORS]]
        elif isinstance(value, list | tuple):
            named += [(name, inner) for inner in value[:MAX_TENSORS]]
        else:
            named.append((name, value))
    return [(name, value) for name, value in named if isinstance(value, torch.Tensor)][:MAX_TENSORS]


def _num_padding(name: str, tokens: torch.Tensor, inputs: Sequence[tuple[str, torch.Tensor]],
                 padding_index: int | None) -> int | None:
    masks = [(of, mask) for of, mask in inputs if "mask" in of.lower() and mask.shape == tokens.shape]
    if masks:  # of several, such as of an encoder and a decoder, the one that is named alike
        of, mask = max(masks, key=lambda each: _num_shared_letters(each[0], name))
        if (frac := padding_frac(of, mask)) is not None:
            return round(frac * tokens.numel())
    return None if padding_index is None else int((tokens == padding_index).sum())


def _num_shared_letters(one: str, other: str) -> int:
    """Return the number of letters with which both names begin."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
