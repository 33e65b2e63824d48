"""From slices to iterations: where one ends and the next begins, which train and which predict, and what gaps were.

An iteration of training ends where the next begins: at the first fetch, forward or backward after an optimizer's step,
provided that the same optimizer steps again. So micro-batches whose gradients are accumulated, and the two steps of an
adversarial pair, are one iteration; where one of the pair steps several times for each step of the other, an iteration
is one step of the former, and what the other does then. An optimizer that is new and steps twice in a row has taken
over from the one before, and shares no iteration with it. A forward without gradients that no step follows is an
iteration of inference, and so is one in evaluation mode that no backward follows, of a model trained in the other mode.
Where the program itself says that an iteration ends, that holds, and nothing else ends one.
"""

from collections.abc import Iterable
from copy import deepcopy

from charact.measure.script.spans.inference_groups import FETCHES, Grouping, Models
from charact.measure.script.spans.iterations import Iteration, iteration_of
from charact.measure.script.spans.recorder import Kind, Slice

_COMPUTES = frozenset({Kind.FORWARD, Kind.BACKWARD, Kind.STEP})
_BEGINS = _COMPUTES | {Kind.FETCH, Kind.COPY, Kind.LOSS, Kind.COMPILE}
UNDECIDED = 256
"""So many forwards that do not look like training's, and no backward, and the program is taken for one that only
predicts; so many backwards without a step, and for one that updates its weights by hand."""


class Segmenter:
    """Takes slices as they come and gives the iterations that are known to have ended.

    Args:
        told: whether the program says where iterations end; by default known from the first time that it does.
    """

    def __init__(self, told: bool = False) -> None:
        self._told = told
        self._pending: list[Slice] = []
        self._begin: int | None = None
        """Where in `_pending` the next iteration may begin: after the last step."""
        self._stepped: set[int] = set()
        self._known: set[int] = set()
        """Optimizers of the iterations before."""
        self._taken_over: tuple[int, int] | None = None
        """A new optimizer that has stepped after a known one, and where in `_pending` its part begins."""
        self._models = Models()
        self._grouping = Grouping(self._models)
        self._any_step = self._any_window = False
        self._by_hand = False
        """Whether weights are updated without an optimizer: then a backward is what ends an iteration."""
        self._num_backwards = self._num_forwards = 0

    def feed(self, slices: Iterable[Slice]) -> list[Iteration]:
        """Iterations that have ended by these slices."""
        done: list[Iteration] = []
        for one in slices:
            done += self._take(one)
            if self._told:
                continue
            if not self._any_step and not self._by_hand and self._num_backwards >= UNDECIDED:
                done += self._replay_by_hand()
            elif not self._num_backwards and self._num_forwards >= UNDECIDED:
                done += self._predictions_so_far()
        return done

    def finish(self) -> list[Iteration]:
        """The last iterations: nothing more will come."""
        done: list[Iteration] = []
        if self._num_backwards and not self._any_step and not self._by_hand and not self._told:
            done = self._replay_by_hand()
        if self._told:
            done += self._predictions(self._pending, None, only_known=True)
        elif self._stepped:
            begin = len(self._pending) if self._begin is None else self._begin
            rest = self._pending[begin:]
            done += self._window(self._pending[:begin], rest[0] if rest else None)
            done += self._predictions(rest, None, only_known=True)
        else:
            done += self._predictions(self._pending, None, only_known=self._num_backwards > 0)
        self._pending, self._begin, self._stepped = [], None, set()
        return done

    def so_far(self) -> list[Iteration]:
        """What `finish` would give now; more may come none the less."""
        return deepcopy(self).finish()

    def _take(self, one: Slice) -> list[Iteration]:
        if self._begin is None and self._stepped and one.kind in _BEGINS and one.begins:
            self._begin = len(self._pending)
            if one.kind in (Kind.LOSS, Kind.BACKWARD):  # its forward was not seen: it ran since the last slice
                last = self._pending[-1]
                self._pending.append(Slice(Kind.GAP, last.end_ns, one.start_ns, 0, ends=True,
                                           start_event=last.end_event, end_event=one.start_event))
        self._pending.append(one)
        if one.kind is Kind.END:
            return self._end(one)
        if one.kind is Kind.FORWARD:
            self._num_forwards += one.ends and not (one.grad and one.training)
            self._models.take(one)
        elif one.kind is Kind.BACKWARD and one.ends:
            self._num_backwards += 1
            if self._by_hand:
                return self._step(0)
        elif one.kind is Kind.STEP and one.ends:
            self._any_step, self._by_hand = True, False
            return self._step(one.owner)
        return []

    def _end(self, end: Slice) -> list[Iteration]:
        """The program says that an iteration ends here; it began where the one before ended, if that was told."""
        slices, self._pending = self._pending[:-1], [end]
        self._told, self._begin, self._stepped = True, None, set()
        if _trains(slices):
            return self._window(slices, end)
        return [iteration_of(slices, end, training=False)] if slices else []

    def _step(self, optimizer: int) -> list[Iteration]:
        """An optimizer has stepped: if it had before, the iteration before this one has ended."""
        if self._told:
            return []
        done: list[Iteration] = []
        if optimizer in self._stepped and self._begin is not None:
            ends = [self._begin]
            if self._taken_over is not None and self._taken_over[0] == optimizer:
                ends.insert(0, self._taken_over[1])
            for start, end in zip([0, *ends], ends, strict=False):
                done += self._window(self._pending[start:end], self._pending[end])
            self._pending = self._pending[self._begin:]
            self._known |= self._stepped - {0}  # that stands for updates by hand
            self._stepped, self._taken_over = set(), None
        elif self._begin is not None and optimizer not in self._known and self._stepped <= self._known:
            self._taken_over = optimizer, self._begin
        self._stepped.add(optimizer)
        self._begin = None
        return done

    def _replay_by_hand(self) -> list[Iteration]:
        """Go through what is pending again, now that no optimizer is expected any more."""
        self._by_hand = True
        pending, self._pending = self._pending, []
        return [iteration for one in pending for iteration in self._take(one)]

    def _window(self, slices: list[Slice], after: Slice | None) -> list[Iteration]:
        """One iteration of training, after the predictions that went before it, such as a validation's."""
        groups = list(self._grouping.groups(slices))
        begin = 0
        for number, group in enumerate(groups):
            if self._is_prediction(group):
                begin = number + 1
            elif any(one.kind in _COMPUTES for one in group):
                if not self._any_window and not self._told:
                    begin = number  # what was fetched or set to zero before, such as a batch to look at, is none's
                break
        while 0 < begin < len(groups) and all(one.kind is Kind.EXHAUSTED for one in groups[begin]):
            begin += 1  # that the validation's loader was at its end
        self._any_window = True
        before = [one for group in groups[:begin] for one in group]
        own = [one for group in groups[begin:] for one in group] if begin else slices
        done = self._predictions(before, own[0] if own else after, only_known=True)
        return [*done, iteration_of(own, after, training=True, by_hand=self._by_hand)] if own else done

    def _is_prediction(self, group: list[Slice]) -> bool:
        """Whether slices from a fetch or forward on only predict."""
        forwards = [one for one in group if one.kind is Kind.FORWARD]
        if not forwards or not all(self._models.predicts(one) for one in forwards):
            return False
        if any(one.kind in (Kind.BACKWARD, Kind.STEP) for one in group):
            return False
        # Else it may be a teacher's forward, with whose outputs the training goes on.
        return group[0].kind in FETCHES or any(one.owner in self._models.trained for one in forwards)

    def _predictions_so_far(self) -> list[Iteration]:
        """Iterations of a program that has only predicted; the last group is left, since it may go on."""
        *groups, last = self._grouping.groups(self._pending)
        done = self._predictions([one for group in groups for one in group], last[0], only_known=False)
        self._pending, self._num_forwards = last, 0
        return done

    def _predictions(self, slices: list[Slice], after: Slice | None, *, only_known: bool) -> list[Iteration]:
        groups = list(self._grouping.groups(slices))
        following = [*(group[0] for group in groups[1:]), after]
        return [
            iteration_of(group, then, training=False) for group, then in zip(groups, following, strict=False)
            if (self._is_prediction(group) if only_known else _predicts(group))
        ]


def _trains(slices: list[Slice]) -> bool:
    """Whether an iteration that the program told is one of training."""
    return any(one.kind in (Kind.BACKWARD, Kind.STEP) or one.phase == "update" for one in slices)


def _predicts(group: list[Slice]) -> bool:
    """Whether slices of a program that never trains are an iteration: by a forward, or by a batch it named."""
    return any(one.kind is Kind.FORWARD for one in group) or (group[0].kind is Kind.FETCH and bool(group[0].phase))
