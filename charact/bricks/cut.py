"""Cutting a captured model into pieces: sequences of layers that do not overlap and hold every layer once.

`chains` and `paper` make chains: each layer after the first is the only reader of the one before it, and reads no other
activation. So a chain can run as a whole where its first layer stands. `heavy` and `modules` cut the row of layers in
the order in which they ran, whatever they read.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from charact.bricks.captured_graph import CapturedModel
from charact.core.operator_types import operator_type

METHODS = ("chains", "paper", "heavy", "modules")

_HEAVY = ("convolution", "GEMM", "attention", "recurrent")
"""Types of operators that a training's pieces begin with."""


@dataclass(frozen=True)
class Piece:
    """Layers of a model that make one brick."""

    layers: tuple[int, ...]
    """Their places in the captured model."""
    inputs: tuple[int, ...]
    """Values that they read and do not make, in the order of their first use."""
    outputs: tuple[int, ...]
    """Values that they make and others read, or that the model gives."""


def cut(captured: CapturedModel, g: int, method: str) -> list[Piece]:
    """Cut a model into pieces, in the order in which they are to run.

    A capture whose pieces are to be modules is cut so, whatever the method.

    Args:
        captured: the model.
        g: most layers of a piece; of `heavy`, most heavy ones.
        method: `chains`, the longest valid chains one after the other; `paper`, windows of exactly g layers, and one
            layer alone where that is no chain; `heavy`, a heavy operator with all light ones that follow it, g times;
            `modules`, one piece each call of a leaf module, and one each layer outside of them.
    """
    graph = _Graph(captured)
    if captured.pieces_at_modules or method == "modules":
        groups = _modules(captured)
    elif method == "heavy":
        groups = _heavy(captured, g)
    else:
        groups = _chains(graph, g, exactly=method == "paper")
    return [graph.piece(group) for group in groups]


def written_before(captured: CapturedModel, pieces: Sequence[Piece]) -> list[tuple[int, ...]]:
    """Of each piece the earlier ones that must have run for what is written in place, ascending.

    That is who wrote last what it touches, and of what it writes also who has touched it since.
    """
    graph = _Graph(captured)
    writer: dict[int, int] = {}
    since: defaultdict[int, set[int]] = defaultdict(set)
    found = []
    for number, piece in enumerate(pieces):
        touched, written = (set().union(*(storages[layer] for layer in piece.layers))
                            for storages in (graph.touched, graph.written))
        before = {writer[storage] for storage in touched | written if storage in writer}
        found.append(tuple(sorted(before.union(*(since[storage] for storage in written)))))
        for storage in touched:
            since[storage].add(number)
        for storage in written:
            writer[storage], since[storage] = number, set()
    return found


@dataclass
class _Graph:
    """Who reads what, and who changes which storage."""

    captured: CapturedModel
    readers: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    touched: list[set[int]] = field(default_factory=list)
    """Storages that each layer reads or makes."""
    written: list[set[int]] = field(default_factory=list)
    """Storages that each layer changes in place."""

    def __post_init__(self) -> None:
        from charact.bricks.aten import written_values  # here, since it imports torch and a Piece needs none

        root = self.captured.views
        for index, layer in enumerate(self.captured.layers):
            for value in dict.fromkeys(layer.inputs):
                self.readers[value].append(index)
            made = [value for value in layer.outputs if value is not None]
            self.touched.append({root.get(value, value) for value in [*layer.inputs, *made]})
            self.written.append({root.get(value, value) for value in written_values(layer)})
        self.results = set(self.captured.outputs)

    def piece(self, group: Sequence[int]) -> Piece:
        layers = [self.captured.layers[index] for index in group]
        made = dict.fromkeys(value for layer in layers for value in layer.outputs if value is not None)
        inputs = dict.fromkeys(value for layer in layers for value in layer.inputs if value not in made)
        inside = set(group)
        outputs = (value for value in made if value in self.results or not inside.issuperset(self.readers[value]))
        return Piece(tuple(group), tuple(inputs), tuple(outputs))

    def next_of(self, chain: Sequence[int]) -> int | None:
        """The layer that a chain can go on with; None where it ends."""
        made = [value for value in self.captured.layers[chain[-1]].outputs if value is not None]
        read = [value for value in made if self.readers[value]]
        if len(read) != 1 or len(self.readers[read[0]]) != 1 or self.results.intersection(made):
            return None
        following = self.readers[read[0]][0]
        activations = {value for value in self.captured.layers[following].inputs if self._is_activation(value)}
        between = (index for index in range(chain[0] + 1, following) if index not in chain)
        if activations != {read[0]} or any(self._depend(index, following) for index in between):
            return None
        return following

    def _is_activation(self, value: int) -> bool:
        return self.captured.leaves.get(value, "input") == "input"

    def _depend(self, one: int, other: int) -> bool:
        """Whether two layers may not change places, since one writes what the other touches."""
        return bool(self.written[one] & self.touched[other] or self.written[other] & self.touched[one])


def _chains(graph: _Graph, g: int, *, exactly: bool) -> list[list[int]]:
    taken: set[int] = set()
    chains = []
    for first in range(len(graph.captured.layers)):
        if first in taken:
            continue
        chain = [first]
        while len(chain) < g and (following := graph.next_of(chain)) is not None:
            # The paper's windows are of layers that stand one behind the other.
            if exactly and following != chain[-1] + 1:
                break
            chain.append(following)
        if exactly and len(chain) < g:
            chain = [first]
        taken.update(chain)
        chains.append(chain)
    return chains


def _heavy(captured: CapturedModel, g: int) -> list[list[int]]:
    """Stretches that begin with a heavy layer; the light ones before the first are one of their own."""
    stretches: list[list[int]] = []
    num_heavy = g
    for index, layer in enumerate(captured.layers):
        heavy = operator_type(f"aten::{layer.operator.split('.')[1]}") in _HEAVY
        if not stretches or (heavy and num_heavy == g):
            stretches.append([])
            num_heavy = 0 if heavy else g
        num_heavy += heavy
        stretches[-1].append(index)
    return stretches


def _modules(captured: CapturedModel) -> list[list[int]]:
    stretches: list[list[int]] = []
    last_call = 0
    for index, layer in enumerate(captured.layers):
        if layer.call == 0 or layer.call != last_call:
            stretches.append([])
        last_call = layer.call
        stretches[-1].append(index)
    return stretches
