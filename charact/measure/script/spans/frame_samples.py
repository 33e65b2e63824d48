"""Stack samples of an event log: the lines that a program ran most, by phase. No torch in here."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean, median
from typing import Any

from charact.core.slow_iterations import slow_limit_s
from charact.core.timeline import Interval, Iteration, at
from charact.measure.script.program.frames import CodeLocation
from charact.measure.script.spans.stack_sampler import INTERVAL_S
from charact.record.manifest_passes import Frame, FramesPass
from charact.record.schema import PHASES_IN_PYTORCH, SAMPLED_PHASES

NUM_KEPT = 20
_MIN_SPARSE = 5
"""Minimum number of samples from which a line is named, unless `--sample` asks for all."""
_MUCH_FRAC = 0.1
"""Share of the time above which the lines of a phase are named without `--sample`."""


class Samples:
    """Stack samples of an event log; notes of older versions have no texts, and do not know what waits."""

    def __init__(self, notes: Iterable[dict[str, Any]] = ()) -> None:
        self.interval_s: float | None = None
        """Time between two samples; None if no sampler ran."""
        self._locations: list[CodeLocation] = []
        self._texts: list[str | None] = []
        self._loops: list[bool | None] = []
        self._samples: list[tuple[int, int]] = []
        self._waiting: list[float | None] = []
        self._delays_s: list[float] = []
        for note in notes:
            self.interval_s = note.get("interval_s", INTERVAL_S)
            self._locations += [(location, function, library) for location, function, library in note["places"]]
            self._samples += [(time_ns, number) for time_ns, number in note["samples"]]
            for values, key, total in ((self._texts, "texts", len(self._locations)),
                                       (self._loops, "loops", len(self._locations)),
                                       (self._waiting, "waiting", len(self._samples))):
                num_added = total - len(values)
                values += [*note.get(key, []), *[None] * num_added][:num_added]
            self._delays_s += [note["delay_s"]] if "delay_s" in note else []

    def facts(self, iterations: Sequence[Iteration], every: Sequence[Iteration], phase_fracs: Mapping[str, float],
              undisturbed: Sequence[Iteration] = (), passes_ns: Sequence[tuple[int, int]] = ()
              ) -> FramesPass | None:
        """Return the facts of the pass `frames` of a case: for each phase, the lines with most samples.

        Each of `SAMPLED_PHASES` with a known share has its number of samples and at most `NUM_KEPT` lines. Without
        `--sample`, phases that take at most 10 % of the time are left out, and lines of a phase with fewer than 5
        samples are not named. Slow iterations, and the time between iterations, have lines if there are 5 samples. None
        if no sampler ran, or if no phase is left.

        Args:
            iterations: those of the case, in order.
            every: all iterations of the program, in order; a sample in none of them counts as `outside`.
            phase_fracs: share (0 to 1) of the time in each phase; for `outside`, of the program's time.
            undisturbed: iterations of the case, also of its warm-up, in order; some of them may be slow.
            passes_ns: starts and ends of what other passes measured; it is not between iterations.
        """
        if self.interval_s is None:
            return None
        chosen = {phase: list[int]() for phase in SAMPLED_PHASES if phase in phase_fracs}
        in_slow, between = list[int](), list[int]()
        limit_s = slow_limit_s([each.host_ns / 1e9 for each in undisturbed])
        slow = [each for each in undisturbed if each.host_ns / 1e9 > limit_s]
        for index, (time_ns, number) in enumerate(self._samples):
            iteration = at(iterations, time_ns)
            phase = "outside" if at(every, time_ns) is None else None
            phase = phase if iteration is None else iteration.phase_at(time_ns)
            if number < len(self._locations):
                if phase in chosen:
                    chosen[phase].append(index)
                    in_pass = any(begin_ns <= time_ns < end_ns for begin_ns, end_ns in passes_ns)
                    if phase == "outside" and time_ns > every[0].start_ns and not in_pass:
                        between.append(index)
                if slow and phase not in PHASES_IN_PYTORCH and at(slow, time_ns) is not None:
                    in_slow.append(index)
        sparse = self.interval_s > INTERVAL_S
        if sparse:
            chosen = {phase: samples for phase, samples in chosen.items() if phase_fracs[phase] > _MUCH_FRAC}
        chosen |= {phase: samples for phase, samples in (("between", between), ("slow", in_slow))
                   if len(samples) >= _MIN_SPARSE}
        for phase in PHASES_IN_PYTORCH:
            own = [index for index in chosen.get(phase, ())
                   if not (self._locations[self._samples[index][1]][2] or "").startswith("torch.")]
            if len(own) < _MIN_SPARSE:
                chosen.pop(phase, None)
        if not chosen:
            return None
        facts: dict[str, Any] = {}
        for phase, samples in chosen.items():
            num_samples, frames = SAMPLED_PHASES[phase]
            few = sparse and len(samples) < _MIN_SPARSE
            facts |= {num_samples: len(samples), frames: [] if few else self._most(samples)}
        return FramesPass("ok", interval_s=self.interval_s,
                          delay_s=median(self._delays_s) if self._delays_s else None, **facts)

    def most_frequent(self, spans: Sequence[Interval]) -> str | None:
        """Return the line with most samples in given intervals, as text: `train.py:39 in load`.

        None if there are fewer than 5 samples in them.
        """
        counts: Counter[tuple[str, str]] = Counter()
        for time_ns, number in self._samples:
            if at(spans, time_ns) is not None and number < len(self._locations):
                counts[self._locations[number][:2]] += 1
        if counts.total() < _MIN_SPARSE:
            return None
        place, function = counts.most_common(1)[0][0]
        return f"{place} in {function}"

    def _most(self, samples: Sequence[int]) -> list[Frame]:
        """Return the lines with most of the samples with given indices."""
        by_line: dict[int, list[int]] = defaultdict(list)
        for index in samples:
            by_line[self._samples[index][1]].append(index)
        frames = []
        for number, indices in sorted(by_line.items(), key=lambda line: -len(line[1]))[:NUM_KEPT]:
            place, function, library = self._locations[number]
            waiting = [share for index in indices if (share := self._waiting[index]) is not None]
            frames.append(Frame(place, function, len(indices), library, mean(waiting) if waiting else None,
                                self._texts[number], self._loops[number]))
        return frames
