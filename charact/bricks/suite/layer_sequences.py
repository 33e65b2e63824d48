"""The cut of a captured model into layer sequences (segments), and the reuse distances of its weights.

Segments do not overlap and together hold every layer once. `chains` and `paper` make chains: each layer after the first
is the only reader of the layer before it, and reads no other activation. A chain can therefore run as a whole at the
position of its first layer. `heavy` cuts the layers in execution order, whatever they read.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from charact.bricks.suite.captured_graph import CapturedModel
from charact.core.operator_types import operator_type

METHODS = ("chains", "paper", "heavy")

_HEAVY = ("convolution", "GEMM", "attention", "recurrent")
"""Types of operators that a segment of `heavy` begins with."""


@dataclass(frozen=True)
class Segment:
    """Layers of a model that form one brick."""

    layers: tuple[int, ...]
    """Indices of the layers in the captured model."""
    inputs: tuple[int, ...]
    """Values that the layers read but do not compute, in the order of first use."""
    outputs: tuple[int, ...]
    """Values that the layers compute and other segments read, or the model returns."""


def cut(captured: CapturedModel, g: int, method: str) -> list[Segment]:
    """Cut a model into segments, in execution order.

    Args:
        captured: the model.
        g: maximum number of layers in a segment; for `heavy`, of heavy layers.
        method: `chains`, the longest valid chains; `paper`, windows of exactly g layers, and single layers where no
            such chain exists; `heavy`, g heavy operators, each with the light ones that follow it.
    """
    graph = _Graph(captured)
    groups = _heavy(captured, g) if method == "heavy" else _chains(graph, g, exactly=method == "paper")
    return [graph.segment(group) for group in groups]


def written_before(captured: CapturedModel, segments: Sequence[Segment]) -> list[tuple[int, ...]]:
    """Return for each segment the earlier segments that must run before it because of in-place writes, ascending.

    These are the last writer of each storage that the segment touches, and the readers since then of each storage that
    it writes.
    """
    graph = _Graph(captured)
    writer: dict[int, int] = {}
    since: defaultdict[int, set[int]] = defaultdict(set)
    found = []
    for index, segment in enumerate(segments):
        touched, written = (set().union(*(storages[layer] for layer in segment.layers))
                            for storages in (graph.touched, graph.written))
        before = {writer[storage] for storage in touched | written if storage in writer}
        found.append(tuple(sorted(before.union(*(since[storage] for storage in written)))))
        for storage in touched:
            since[storage].add(index)
        for storage in written:
            writer[storage], since[storage] = index, set()
    return found


@dataclass
class _Graph:
    """Readers of values, and writers of storages."""

    captured: CapturedModel
    readers: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    touched: list[set[int]] = field(default_factory=list)
    """Storages that each layer reads or allocates."""
    written: list[set[int]] = field(default_factory=list)
    """Storages that each layer changes in place."""

    def __post_init__(self) -> None:
        root = self.captured.views
        for index, layer in enumerate(self.captured.layers):
            for value in dict.fromkeys(layer.inputs):
                self.readers[value].append(index)
            made = [value for value in layer.outputs if value is not None]
            self.touched.append({root.get(value, value) for value in [*layer.inputs, *made]})
            self.written.append({root.get(value, value) for value in layer.writes})
        self.results = set(self.captured.outputs)

    def segment(self, group: Sequence[int]) -> Segment:
        layers = [self.captured.layers[index] for index in group]
        made = dict.fromkeys(value for layer in layers for value in layer.outputs if value is not None)
        inputs = dict.fromkeys(value for layer in layers for value in layer.inputs if value not in made)
        inside = set(group)
        outputs = (value for value in made if value in self.results or not inside.issuperset(self.readers[value]))
        return Segment(tuple(group), tuple(inputs), tuple(outputs))

    def next_of(self, chain: Sequence[int]) -> int | None:
        """Return the layer that can extend a chain, or None."""
        made = [value for value in self.captured.layers[chain[-1]].outputs if value is not None]
        read = [value for value in made if self.readers[value]]
        if len(read) != 1 or len(self.readers[read[0]]) != 1 or self.results.intersection(made):
            return None
        following = self.readers[read[0]][0]
        activations = {value for value in self.captured.layers[following].inputs
                       if self.captured.leaves.get(value, "input") == "input"}
        between = (index for index in range(chain[0] + 1, following) if index not in chain)
        if activations != {read[0]} or any(self.written[index] & self.touched[following]
                                           or self.written[following] & self.touched[index] for index in between):
            return None
        return following


def _chains(graph: _Graph, g: int, *, exactly: bool) -> list[list[int]]:
    taken: set[int] = set()
    chains = []
    for first in range(len(graph.captured.layers)):
        if first in taken:
            continue
        chain = [first]
        while len(chain) < g and (following := graph.next_of(chain)) is not None:
            # The paper's windows hold consecutive layers.
            if exactly and following != chain[-1] + 1:
                break
            chain.append(following)
        if exactly and len(chain) < g:
            chain = [first]
        taken.update(chain)
        chains.append(chain)
    return chains


def _heavy(captured: CapturedModel, g: int) -> list[list[int]]:
    """Return groups that begin with a heavy layer; the light layers before the first form their own group."""
    groups: list[list[int]] = []
    num_heavy = g
    for index, layer in enumerate(captured.layers):
        heavy = operator_type(f"aten::{layer.operator.split('.')[1]}") in _HEAVY
        if not groups or (heavy and num_heavy == g):
            groups.append([])
            num_heavy = 0 if heavy else g
        num_heavy += heavy
        groups[-1].append(index)
    return groups


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
