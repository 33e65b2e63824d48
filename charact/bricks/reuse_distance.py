"""Reuse distance of a brick's weights: the memory that its model touches between two uses of them."""

from collections import defaultdict
from dataclasses import dataclass

from charact.bricks.captured_graph import CapturedModel
from charact.bricks.cut import Segment


@dataclass(frozen=True)
class ReuseDistances:
    """Reuse distances of weights in a model that runs repeatedly, in bytes.

    `total` is the memory that one iteration touches: the weights of each layer, and the outputs that are not views. The
    distance of a weight is the memory touched from one use to the next, which may be in the next iteration.

    *Error*: outputs count as new memory each time, though the allocator reuses it; backward passes and updates are not
    included.
    """

    total: int
    by_layer: dict[int, int]
    """Distance by layer index, for layers with weights."""

    def of(self, segment: Segment) -> int:
        """Return the largest distance of a segment's weights, or `total` without weights, as a power of two."""
        found = max((self.by_layer[layer] for layer in segment.layers if layer in self.by_layer), default=self.total)
        return next_power_of_two(found)


def next_power_of_two(num_bytes: int) -> int:
    """Return the next power of two at or above a size; 0 stays 0."""
    return 1 << (num_bytes - 1).bit_length() if num_bytes else 0


def reuse_distances(captured: CapturedModel) -> ReuseDistances:
    """Compute the reuse distances of a captured model."""
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
    return ReuseDistances(total, dict(by_layer))
