"""Tokens and sequences of a step, from the input shapes of its embedding and of its product with the vocabulary."""

from bisect import bisect_left
from collections.abc import Iterable
from math import prod
from typing import Any, NamedTuple

import msgspec

from charact.traces.events import Operator, Thread
from charact.traces.serving.step_names import StepKind

_EMBEDDING = "aten::embedding"
_PRODUCTS = frozenset(["aten::linear", "aten::mm", "aten::addmm", "aten::matmul"])


class _Call(NamedTuple):
    start_ns: int
    thread: Thread
    shapes: str


class Tokens:
    """Calls of embeddings and products of a trace, by time."""

    def __init__(self, operators: Iterable[Operator]) -> None:
        embeddings, products = [], []
        for operator in operators:
            if operator.name == _EMBEDDING:
                embeddings.append(_Call(operator.start_ns, operator.thread, operator.shapes))
            elif operator.name in _PRODUCTS:
                products.append(_Call(operator.start_ns, operator.thread, operator.shapes))
        self.embeddings = sorted(embeddings, key=lambda call: call.start_ns)
        self.products = sorted(products, key=lambda call: call.start_ns)


def tokens_of_step(calls: Tokens, thread: Thread | None, start_ns: int, end_ns: int) -> StepKind | None:
    """Return whether a step has more tokens than sequences (prefill) or one each (decode); None if not known.

    The largest embedding has the tokens: in rows for each sequence, or all in one dimension. Then the product with a
    matrix of the embedding's size has the sequences, since only their last tokens get logits.
    """
    embeddings = [shapes for shapes in _shapes(calls.embeddings, thread, start_ns, end_ns)
                  if len(shapes) == 2 and len(shapes[0]) == 2 and len(shapes[1]) in (1, 2)]
    if not embeddings:
        return None
    weight, index = max(embeddings, key=lambda shapes: prod(shapes[0]))
    if len(index) == 2:
        return _kind(prod(index), index[0])
    for shapes in reversed(_shapes(calls.products, thread, start_ns, end_ns)):
        if weight in shapes or weight[::-1] in shapes:
            rows = [shape[:-1] for shape in shapes if shape[-1] == weight[1] and shape != weight and len(shape) > 1]
            return _kind(index[0], prod(rows[0])) if rows else None
    return None


def _kind(num_tokens: int, num_sequences: int) -> StepKind | None:
    if not 0 < num_sequences <= num_tokens:
        return None
    return "prefill" if num_tokens > num_sequences else "decode"


def _shapes(calls: list[_Call], thread: Thread | None, start_ns: int, end_ns: int) -> list[list[Any]]:
    first = bisect_left(calls, start_ns, key=lambda call: call.start_ns)
    last = bisect_left(calls, end_ns, key=lambda call: call.start_ns)
    every = [msgspec.json.decode(call.shapes) for call in calls[first:last] if call.thread == thread]
    return [[shape for shape in shapes if isinstance(shape, list)] for shapes in every]
