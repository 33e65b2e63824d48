"""Segmentation of slices into iterations of training and inference.

A training iteration ends where the next begins: at the first fetch, forward or backward after an optimizer's step, if
the same optimizer steps again. So micro-batches with accumulated gradients, and the two steps of an adversarial pair,
are one iteration. The last iteration of an epoch ends where its loader finds no further batch. If one of the pair steps
several times per step of the other, each of its steps is an iteration. A new optimizer that steps twice in a row has
replaced the previous one and shares no iteration with it. Nor do optimizers of separate models that take turns, each
with a batch of its own from the same loader. A forward without gradients that no step follows is an inference
iteration. So is a forward in eval mode that no backward follows, of a model trained in training mode. If the program
itself marks the ends of iterations, only these marks count.

Several steps from one fetch to the next are several iterations here; `join_cycles` joins them.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from copy import deepcopy
from itertools import pairwise

from charact.core.timeline import Iteration
from charact.measure.script.spans.iterations import FETCHES, Segment
from charact.measure.script.spans.recorder import ZEROED, Kind, Slice

_COMPUTES = frozenset({Kind.FORWARD, Kind.BACKWARD, Kind.STEP, Kind.TRANSFORM})
_DIVIDES = frozenset({Kind.EXHAUSTED, Kind.END})
"""Slices that divide the slices after a fetch into several groups."""
_BEGINS = _COMPUTES | {Kind.FETCH, Kind.COPY, Kind.LOSS, Kind.COMPILE}
UNDECIDED = 256
"""Number of inference forwards without a backward after which a program counts as inference only.

Also the number of these after a step after which the step's iteration has ended, and the number of backwards without a
step after which a program counts as updating its weights without an optimizer.
"""
_UNDECIDED = 256
"""Number of other forwards after which a forward that has not recurred is part of the preparation."""
_FEWEST, _LONGER = 64, 8
"""The same, once it has recurred: that many, or that many times as many as were between its calls."""


class Segmenter:
    """Groups slices into iterations as they arrive."""

    def __init__(self, ends_marked: bool = False) -> None:
        self.ends_marked = ends_marked
        """Whether the program marks the ends of iterations."""
        self._pending: list[Slice] = []
        self._begin: int | None = None
        """Index in `_pending` at which the next iteration may begin: after the last step."""
        self._stepped: set[int] = set()
        self._known: set[int] = set()
        """Optimizers of earlier iterations."""
        self._taken_over: tuple[int, int] | None = None
        """A new optimizer that has stepped after a known one, and the index in `_pending` at which its part begins."""
        self._models = Models()
        self._starts = InferenceStarts()
        self._starts_ns: set[int] = set()
        """Starts of the pending forwards that begin an iteration if the program only infers."""
        self._any_step = self._any_window = False
        self._manual_update = False
        """Whether weights are updated without an optimizer: then a forward's first backward ends an iteration."""
        self._any_graph = self._is_new_graph = False
        """Whether any forward with gradients was recorded, and one since the last backward."""
        self._num_backwards = self._num_forwards = 0
        self._num_since_step = 0
        """Number of inference forwards since the last step or backward."""
        self._previous: set[int] = set()
        """Optimizers of the iteration before."""

    @property
    def pending(self) -> Sequence[Slice]:
        """Slices that belong to no iteration yet."""
        return self._pending

    def skip_to(self, pending: list[Slice]) -> None:
        """Replace the pending slices, a whole iteration up to its last step, by those of a later one like it."""
        self._pending = pending

    def feed(self, slices: Iterable[Slice]) -> list[Iteration]:
        """Return the iterations that these slices have ended."""
        return [each.iteration() for each in self.segments(slices)]

    def finish(self) -> list[Iteration]:
        """Return the last iterations; no more slices will come."""
        return [each.iteration() for each in self.last_segments()]

    def segments(self, slices: Iterable[Slice]) -> list[Segment]:
        """Return the slices of the iterations that these slices have ended."""
        done: list[Segment] = []
        for each in slices:
            done += self.take(each)
        return done

    def take(self, current: Slice) -> list[Segment]:
        """Return the slices of the iterations that a slice has ended."""
        done = self._take(current)
        if self.ends_marked:
            return done
        if not self._any_step and not self._manual_update and self._num_backwards >= UNDECIDED:
            done += self._replay_manual_updates()
        elif not self._num_backwards and self._num_forwards >= UNDECIDED:
            done += self._inference_so_far()
        elif self._num_since_step >= UNDECIDED:
            done += self._evaluation_so_far()
        return done

    def last_segments(self) -> list[Segment]:
        """Return the slices of the last iterations; no more slices will come."""
        done: list[Segment] = []
        if self._num_backwards and not self._any_step and not self._manual_update and not self.ends_marked:
            done = self._replay_manual_updates()
        if self.ends_marked:
            done += self._inference_iterations(self._pending, None, only_known=True)
        elif self._stepped:
            begin = len(self._pending) if self._begin is None else self._begin
            rest = self._pending[begin:]
            done += self._window(self._pending[:begin], rest[0] if rest else None)
            done += self._inference_iterations(rest, None, only_known=True)
        else:
            done += self._inference_iterations(self._pending, None, only_known=self._num_backwards > 0)
        self._pending, self._begin, self._stepped = [], None, set()
        return done

    def so_far(self) -> list[Iteration]:
        """Return the iterations that `finish` would return now; more slices may follow."""
        return deepcopy(self).finish()

    def _take(self, current: Slice) -> list[Segment]:
        goes_on = self._manual_update and current.kind is Kind.BACKWARD and self._any_graph and not self._is_new_graph
        if self._begin is None and self._stepped and current.kind in _BEGINS and current.begins and not goes_on:
            self._begin = len(self._pending)
            if current.kind in (Kind.LOSS, Kind.BACKWARD):  # its forward was not recorded: it ran since the last slice
                last = self._pending[-1]
                self._pending.append(Slice(Kind.GAP, last.end_ns, current.start_ns, 0, ends=True,
                                           start_event=last.end_event, end_event=current.start_event))
        self._pending.append(current)
        if current.kind is Kind.END:
            return self._end(current)
        if current.kind is Kind.FORWARD:
            infers = current.ends and not (current.grad and current.training)
            self._num_forwards += infers
            self._num_since_step += infers
            self._models.take(current)
            if current.begins and not self._num_backwards:
                self._starts_ns |= {forward.start_ns for forward in self._starts.take(current)}
            if current.grad:
                self._any_graph = self._is_new_graph = True
        elif current.kind is Kind.BACKWARD and current.ends:
            self._num_backwards += 1
            self._num_since_step = 0
            self._is_new_graph = False
            if self._manual_update and not goes_on:
                return self._step(0)
        elif current.kind is Kind.STEP and current.ends:
            self._num_since_step = 0
            self._any_step, self._manual_update = True, False
            return self._step(current.owner)
        return []

    def _end(self, end: Slice) -> list[Segment]:
        """End an iteration that the program marked; it began at the previous mark, if any."""
        slices, self._pending = self._pending[:-1], [end]
        self.ends_marked, self._begin, self._stepped = True, None, set()
        if any(each.kind in (Kind.BACKWARD, Kind.STEP) or each.phase == "update" for each in slices):
            return self._window(slices, end)
        return [Segment(slices, end, training=False)] if slices else []

    def _step(self, optimizer: int) -> list[Segment]:
        """Record an optimizer's step; its second step ends the previous iteration."""
        if self.ends_marked:
            return []
        done: list[Segment] = []
        if self._begin is not None and (optimizer in self._stepped or self._takes_turns(self._begin)):
            ends = [self._begin]
            if self._taken_over is not None and self._taken_over[0] == optimizer:
                ends.insert(0, self._taken_over[1])
            for start, end in zip([0, *ends], ends, strict=False):
                done += self._window(self._pending[start:end], self._pending[end])
            self._pending = self._pending[self._begin:]
            self._forget_steps()
        elif self._begin is not None and optimizer not in self._known and self._stepped <= self._known:
            self._taken_over = optimizer, self._begin
        self._stepped.add(optimizer)
        self._begin = None
        return done

    def _forget_steps(self) -> None:
        """Remember the optimizers of an iteration that has ended."""
        self._known |= self._stepped - {0}  # 0: updates without an optimizer
        self._previous, self._stepped, self._taken_over = self._stepped, set(), None

    def _takes_turns(self, begin: int) -> bool:
        """Return whether the pending slices from an index on train other models, with a further batch of a loader."""
        def owners(kind: Kind, slices: list[Slice]) -> set[int]:
            return {each.owner for each in slices if each.kind is kind and each.owner and each.grad}

        before, after = self._pending[:begin], self._pending[begin:]
        models, fetched = owners(Kind.FORWARD, after), owners(Kind.FETCH, after)
        # The first batch of an epoch comes from another iterator: the one before is exhausted.
        same_loader = owners(Kind.FETCH, before) & (fetched | owners(Kind.EXHAUSTED, before))
        earlier_models = owners(Kind.FORWARD, before)
        return bool(models and earlier_models and fetched and same_loader) and not models & earlier_models

    def _replay_manual_updates(self) -> list[Segment]:
        """Process the pending slices again, for a program without an optimizer."""
        self._manual_update = True
        pending, self._pending = self._pending, []
        return [segment for each in pending for segment in self._take(each)]

    def _evaluation_so_far(self) -> list[Segment]:
        """Return the training iteration before a long evaluation, and the evaluation's iterations except for the last.

        So an evaluation of any length needs little memory. It returns nothing if the training iteration may go on: if
        gradients wait for a step, or if an optimizer of the iteration before has not stepped.
        """
        self._num_since_step = 0
        begin = self._begin or 0
        goes_on = self._stepped and (not begin or self._previous - self._stepped)
        if goes_on or any(each.kind is Kind.BACKWARD for each in self._pending[begin:]):
            return []
        *groups, last = self._models.groups(self._pending[begin:])
        evaluation = [each for group in groups for each in group]
        done = self._window(self._pending[:begin], (evaluation or last)[0]) if begin else []
        if begin:
            self._forget_steps()
        self._pending, self._begin = last, None
        return done + self._inference_iterations(evaluation, last[0], only_known=True)

    def _window(self, slices: list[Slice], after: Slice | None) -> list[Segment]:
        """Return the iterations of training up to a step: one, and one for each step that was skipped before it."""
        kinds = [each.kind for each in slices]
        if kinds[:1] == [Kind.FETCH] and kinds.count(Kind.FETCH) == 1 and not _DIVIDES.intersection(kinds):
            self._models.take_training(slices)  # nearly always: a single group, without the rest of this
            self._any_window = True
            return [Segment(slices, after, training=True, manual_update=self._manual_update)]
        edges = [0, *_skipped_steps(slices), len(slices)]
        parts = [slices[begin:end] for begin, end in pairwise(edges)]
        following = [*(part[0] for part in parts[1:]), after]
        return [each for part, then in zip(parts, following, strict=True) for each in self._training(part, then)]

    def _training(self, slices: list[Slice], after: Slice | None) -> list[Segment]:
        """Return an iteration of training, after the inference before it, such as a validation."""
        self._models.take_training(slices)
        groups = list(self._models.groups(slices))
        begin = 0
        for number, group in enumerate(groups):
            if self._is_inference(group, groups[number + 1:number + 2]):
                begin = number + 1
            elif any(each.kind in _COMPUTES for each in group):
                if not self._any_window and not self.ends_marked:
                    begin = number  # earlier fetches, such as of a sample batch, belong to no iteration
                break
        while 0 < begin < len(groups) and all(each.kind is Kind.EXHAUSTED for each in groups[begin]):
            begin += 1  # end of the validation's loader
        self._any_window = True
        own = [each for group in groups[begin:] for each in group] if begin else slices
        done = [
            Segment(group, following[0][0] if number + 1 < begin else None if own else after, training=False)
            for number, group in enumerate(groups[:begin])
            if self._is_inference(group, following := groups[number + 1:number + 2])
        ]
        return [*done, Segment(own, after, training=True, manual_update=self._manual_update)] if own else done

    def _is_inference(self, group: list[Slice], following: Sequence[list[Slice]] = ()) -> bool:
        """Return whether a group of slices is inference only; `following` has the group after it, if any."""
        forwards = [each for each in group if each.kind is Kind.FORWARD]
        if not forwards or not all(self._models.is_inference(each) for each in forwards):
            return False
        if any(each.kind in (Kind.BACKWARD, Kind.STEP, Kind.TRANSFORM) for each in group):
            return False
        # Otherwise it may be a teacher's forward, whose outputs the training uses.
        if group[0].kind in FETCHES or any(each.owner in self._models.trained for each in forwards):
            return True
        return self._models.are_new(forwards) or any(after[0].kind is Kind.FETCH for after in following)

    def _inference_so_far(self) -> list[Segment]:
        """Return the iterations of an inference program, except for the last group, which may not have ended."""
        *groups, last = self._models.groups(self._pending, self._starts_ns)
        done = self._inference_iterations([each for group in groups for each in group], last[0], only_known=False)
        self._pending, self._num_forwards, self._num_since_step = last, 0, 0
        self._starts_ns &= {each.start_ns for each in last}
        return done

    def _inference_iterations(self, slices: list[Slice], after: Slice | None, *, only_known: bool) -> list[Segment]:
        groups = list(self._models.groups(slices, None if only_known else self._starts_ns))
        following = [*(group[0] for group in groups[1:]), after]
        return [
            Segment(group, then, training=False) for group, then in zip(groups, following, strict=False)
            if (self._is_inference(group) if only_known else (  # a program that never trains: a forward, or a batch
                any(each.kind is Kind.FORWARD for each in group) or (group[0].kind is Kind.FETCH and group[0].phase)))
        ]


def _skipped_steps(slices: list[Slice]) -> list[int]:
    """Return the indices of the fetches that begin an iteration because the step before them was skipped.

    Such a fetch follows a backward whose gradients are set to zero before the next one, and is of a loader from which
    was fetched before, or of the next epoch's. Accumulated gradients are left alone until the step.
    """
    skipped: list[int] = []
    loaders: set[int] = set()
    any_backward = any_zeroed = False
    fetch: int | None = None
    """Index of the first fetch after the last backward."""
    for index, each in enumerate(slices):
        if each.kind is Kind.STEP:
            break
        if each.kind is Kind.EXHAUSTED:
            loaders.clear()  # the next epoch has another iterator
        elif each.kind is Kind.FETCH and each.begins and any_backward:
            fetch = index if fetch is None else fetch
        elif each.kind is Kind.UPDATE and each.owner == ZEROED:
            any_zeroed = any_backward
        elif each.kind is Kind.BACKWARD and each.ends:
            fetched = {other.owner for other in slices[fetch or 0:index] if other.kind is Kind.FETCH and other.owner}
            if fetch is not None and any_zeroed and (fetched & loaders or not loaders):
                skipped.append(fetch)
                loaders.clear()
            loaders |= fetched
            any_backward, any_zeroed, fetch = True, False, None
    return skipped


class Models:
    """Models that were trained so far, found from their forwards, which tell training from inference."""

    def __init__(self) -> None:
        self.trained: set[int] = set()
        """Models that ran with gradients."""
        self._in_training_mode: set[int] = set()
        """Models that ran with gradients in training mode."""
        self._teachers: set[int] = set()
        """Models that ran without gradients in the first iteration of any optimizer."""
        self._optimizers: set[int] = set()

    def take_training(self, slices: Sequence[Slice]) -> None:
        """Take an iteration of training into account; only the first one of each optimizer matters."""
        optimizers = {each.owner for each in slices if each.kind is Kind.STEP}
        if optimizers - self._optimizers:
            self._optimizers |= optimizers
            self._teachers |= {each.owner for each in slices if each.kind is Kind.FORWARD and not each.grad}

    def are_new(self, forwards: Iterable[Slice]) -> bool:
        """Return whether all forwards are of models that no first training ran without gradients: it needs none."""
        return bool(self._optimizers) and not any(each.grad or each.owner in self._teachers for each in forwards)

    def take(self, forward: Slice) -> None:
        """Take a forward into account."""
        if forward.grad:
            self.trained.add(forward.owner)
            if forward.training:
                self._in_training_mode.add(forward.owner)

    def is_inference(self, forward: Slice) -> bool:
        """Return whether a forward may be inference: without gradients, or in eval mode.

        A forward in eval mode with gradients is inference only if the model has run with gradients in training mode. It
        is then a validation that does not turn off gradients.
        """
        return not forward.grad or (not forward.training and forward.owner in self._in_training_mode)

    def groups(self, slices: Iterable[Slice], starts_ns: Set[int] | None = None) -> Iterator[list[Slice]]:
        """Split slices into groups, each a possible iteration; each group of inference with a forward is one.

        A fetch begins a new group; without fetches, a copy to the device or the model's next forward does, or in a
        program without training the forwards that `InferenceStarts` finds. This includes a fetch that finds no batch,
        because some training frameworks fetch one batch ahead to recognize the last one. Each batch of
        `Profiler.iterate` (negative owner ID) begins a group even if no forward follows.

        Training also begins a group if it follows a validation without a loader, or whose loader is exhausted, or
        forwards of other models that the first training did without. If a batch was fetched for a prediction of the
        trained model and no other for the training that follows, the prediction is part of the training: its outputs
        may be the targets, as in pseudo-labeling.

        Args:
            slices: in order of time; those that mark the end of an iteration are dropped.
            starts_ns: when the forwards start that begin a group if nothing is fetched; None: each of the same model.
        """
        group: list[Slice] = []
        forwards: list[Slice] = []  # those of the group
        for each in slices:
            if each.kind is Kind.END:
                continue
            if group and self._begins(group, forwards, each, starts_ns):
                yield group
                group, forwards = [], []
            group.append(each)
            if each.kind is Kind.FORWARD:
                forwards.append(each)
        if group:
            yield group

    def _begins(self, group: list[Slice], forwards: list[Slice], current: Slice, starts_ns: Set[int] | None) -> bool:
        if current.phase is not None and (current.phase, current.start_ns) == (group[-1].phase, group[-1].end_ns):
            return False  # continues a phase that the program named
        if current.kind is Kind.EXHAUSTED:
            return group[-1].kind is not Kind.EXHAUSTED
        if current.kind is Kind.FETCH and current.owner < 0:
            return any(other.kind is not Kind.FETCH or other.owner == current.owner for other in group)
        if current.kind is Kind.FETCH:
            # A fetch without an owner starts a new loop over a loader, such as after inspecting its first batch.
            return any(other.kind is not Kind.FETCH or (other.owner and not current.owner) for other in group)
        if not forwards or not forwards[-1].ends:  # an inner span splits a forward
            return False
        begins_training = not self.is_inference(current) if current.kind is Kind.FORWARD else (
            current.kind in (Kind.UPDATE, Kind.STEP) and current.begins)
        if group[0].kind is not Kind.FETCH and begins_training:
            # Forwards without a batch of their own are no part of it. In training mode, they may make its inputs,
            # unless it begins with the step that calls the training's closure.
            has_closure = current.kind is Kind.STEP and not current.ends
            if self.are_new(forwards) or all(self.is_inference(other) and (has_closure or not other.training)
                                             and other.owner in self.trained for other in forwards):
                return True
        if group[0].kind in FETCHES:
            return False
        if current.kind is Kind.FORWARD:
            return current.owner == forwards[0].owner if starts_ns is None else current.start_ns in starts_ns
        return current.kind is Kind.COPY


class InferenceStarts:
    """Recognizes the forwards at which the iterations of a program without training begin, as they arrive.

    An iteration begins where the forward that began the first one recurs. So an encoder and the steps of a decoder
    after it are one iteration. A method of the same model, such as `generate`, takes its place: the first forward was a
    trial. If that forward no longer recurs, it was part of the preparation. Then the rarest of the forwards that recur
    since begins the iterations, such as an encoder that runs once for many steps of a decoder.
    """

    def __init__(self) -> None:
        self._first: tuple[int, bool] | None = None
        """Owner of the forward that begins iterations, and whether it is a method other than `forward`."""
        self._others: list[Slice] = []
        """Forwards since the last start."""
        self._longest: int | None = None
        """Largest number of forwards between two starts; None before the second."""

    def begins(self, owner: int, *, is_method: bool) -> bool:
        """Return whether a forward that comes next begins an iteration."""
        return self._first is None or (owner, is_method) in (self._first, (self._first[0], True))

    def take(self, forward: Slice) -> Sequence[Slice]:
        """Return the forwards that begin an iteration, out of this one and those since the last start.

        There are several if only now it is known which forward begins them.
        """
        if self.begins(forward.owner, is_method=forward.method):
            if self._first is not None:
                self._longest = max(self._longest or 0, len(self._others))
            self._first, self._others = _key(forward), []
            return (forward,)
        self._others.append(forward)
        limit = _UNDECIDED if self._longest is None else max(_FEWEST, _LONGER * self._longest)
        return self._begin_elsewhere() if len(self._others) > limit else ()

    def _begin_elsewhere(self) -> Sequence[Slice]:
        """Choose another forward to begin iterations; return its calls since the last start."""
        others = self._others
        numbers = Counter(map(_key, others))
        recurring = [key for key, number in numbers.items() if number > 1]
        if not recurring:
            return ()
        self._first = min(recurring, key=numbers.__getitem__)
        places = [place for place, forward in enumerate(others) if _key(forward) == self._first]
        self._longest = max(after - before - 1 for before, after in pairwise(places))
        self._others = others[places[-1] + 1:]
        return [others[place] for place in places]


def _key(forward: Slice) -> tuple[int, bool]:
    return forward.owner, forward.method
