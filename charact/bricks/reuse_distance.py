"""How far away a brick's weights are when it runs: what its model touches from one use of them to the next."""

from collections import defaultdict
from dataclasses import dataclass

from charact.bricks.captured_graph import CapturedModel
from charact.bricks.cut import Piece


@dataclass(frozen=True)
class Contexts:
    """Distances within a model that is run again and again, in bytes.

    `total` is what one iteration touches: each layer's weights, and what it makes that shares no storage. Two uses of a
    weight are apart by what lies between them, the next iteration following at once.

    *Error*: what layers make is counted anew each time, though memory is used again; backward passes and updates are
    left out.
    """

    total: int
    by_layer: dict[int, int]
    """Of layers with weights."""

    def of(self, piece: Piece) -> int:
        """Of a piece its farthest weights, of one without weights the whole iteration, rounded up to a power of two."""
        found = max((self.by_layer[layer] for layer in piece.layers if layer in self.by_layer), default=self.total)
        return rounded(found)


def rounded(num_bytes: int) -> int:
    """The next power of two; 0 stays 0."""
    return 1 << (num_bytes - 1).bit_length() if num_bytes else 0


def contexts_of(captured: CapturedModel) -> Contexts:
    """Distances of a model."""
    before, uses = [0], defaultdict[int, list[int]](list)
    for number, layer in enumerate(captured.layers):
        weights = {value for value in layer.inputs if captured.leaves.get(value) in ("weight", "buffer")}
        made = {value for value in layer.outputs if value is not None and value not in captured.views}
        before.append(before[-1] + sum(captured.types[value].num_bytes for value in weights | made))
        for value in weights:
            uses[value].append(number)
    total = before[-1]
    by_layer: dict[int, int] = defaultdict(int)
    for places in uses.values():
        for place, following in zip(places, [*places[1:], places[0]], strict=True):
            rounds = 0 if following > place else 1
            by_layer[place] = max(by_layer[place], rounds * total + before[following] - before[place])
    return Contexts(total, dict(by_layer))
