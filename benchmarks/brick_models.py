"""The models that constructed latencies are held against: how each is cut, and how long its iterations take."""

import itertools
import time
from contextlib import nullcontext
from dataclasses import dataclass, field

from brick_zoo import Member

from charact.bricks.capture.capture import capture
from charact.bricks.suite.composition import Composition, Configuration, CutModel, cut_model
from charact.bricks.timing.work import num_new_pages
from charact.core.errors import UserError
from charact.execution.loop import Loop

AT_HOME_ITERATIONS = 10
"""Untimed iterations at a model's turn: caches keep what was read several times, and other models ran between."""
AT_HOME_S = 0.1
"""A model that takes longer is too large for caches to keep: one is enough, once it has all of its memory again."""
FEW_PAGES = 256
"""An iteration that asks the system for no more of them has found its memory among what others gave back."""


@dataclass
class Measured:
    """A model: how it is cut, and how long it takes by itself."""

    member: Member
    by_g: dict[int, CutModel]
    visits: list[list[float]] = field(default_factory=list)
    """Seconds of the iterations that are timed at each."""
    places: list[tuple[int, int]] = field(default_factory=list)
    """Of each visit, the turn and how many bricks were visited before it in that turn."""
    set_up_s: float = 0.0

    @property
    def name(self) -> str:
        """Name and variant."""
        return self.member.source.id

    @property
    def seconds(self) -> list[float]:
        """Of all timed iterations."""
        return [seconds for visit in self.visits for seconds in visit]

    @property
    def composition(self) -> Composition:
        """Any of its compositions."""
        return next(iter(self.by_g.values())).composition


def captured(chosen: list[Member], g_values: list[int], method: str) -> list[Measured]:
    """Every model that can be captured; what stops the others is said."""
    found = []
    for member in chosen:
        source = member.source
        try:
            model = capture(source)
        except UserError as error:
            print(f"left out: {error}", flush=True)
            continue
        case = source.case
        what = Configuration(source.id, case.workload.name, case.workload.variant, case.input_size, case.batch_size,
                             case.mode, case.precision)
        found.append(Measured(member, {g: cut_model(model, what, g, method) for g in g_values}))
        if notes := [note for note in model.notes if "differ" in note]:
            print(f"{source.id}: {notes[0]}", flush=True)
    return found


def groups(models: list[Measured], most_bytes: float) -> list[list[Measured]]:
    """Models whose weights together are no larger."""
    found: list[list[Measured]] = [[]]
    held = 0.0
    for model in models:
        held += model.composition.weights_bytes
        if held > most_bytes and found[-1]:
            found.append([])
            held = model.composition.weights_bytes
        found[-1].append(model)
    return found


def loop_of(model: Measured) -> Loop:
    """A model's iterations by itself, after the first two; what it takes to have them is noted."""
    begun = time.perf_counter()
    loop = Loop(model.member.source.case)
    batch = loop.next_batch()
    loop.close()
    loop.feed(itertools.repeat(batch))
    for _ in range(2):
        loop.iteration(lambda phase: nullcontext())
    model.set_up_s += time.perf_counter() - begun
    return loop


def iterate(model: Measured, loop: Loop, place: tuple[int, int]) -> None:
    """Iterations to be at home again, as many as memory and a small model's caches need, and two that are timed."""
    begun = time.perf_counter()
    for _ in range(AT_HOME_ITERATIONS):
        before = num_new_pages()
        loop.iteration(lambda phase: nullcontext())
        if time.perf_counter() - begun > AT_HOME_S and num_new_pages() - before <= FEW_PAGES:
            break
    model.set_up_s += time.perf_counter() - begun
    visit = []
    for _ in range(2):
        begun = time.perf_counter()
        loop.iteration(lambda phase: nullcontext())
        visit.append(time.perf_counter() - begun)
    model.visits.append(visit)
    model.places.append(place)
