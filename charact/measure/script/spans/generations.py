"""Generations of a program, outside of its training: iterations that read prompts, and that decode. No torch in here.

A model with a cache is called with the tokens of the prompts, then with one token of each request at a time. A model
without one is called with all tokens, and in each further call with one token more. A decoder whose encoder reads the
prompts is called with one token of each request from the beginning.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median, median_low
from typing import Any, NamedTuple

from charact.core.timeline import Interval, Iteration, Mode, TokenStep
from charact.measure.script.program.events import MAX_EVENTS, TokenInput

_FEWEST_DECODED = 4
"""Number of further tokens that a model with a cache decodes in its longest generation, at least."""
_FEWEST_GROWN = 8
"""The same of a model without a cache, whose calls might be those of inputs in order of their length."""
_DECODING_FRAC = 0.5
"""Least share of a model's calls that decode."""
_NO_TOKENS = TokenInput(0, 0, False, 0)
_MOST_GROUPS = 6
"""Largest number of different sizes of generations that are cases of their own."""

TokenRow = tuple[int, int, int, int, bool, int]
"""Time (ns), owner ID, and the fields of `TokenInput`: a row of the note `token inputs`."""


@dataclass(frozen=True, slots=True)
class _Call:
    """Call of a model, with its tokens if any: the indices of its iteration and of its first interval in that."""

    iteration: int
    interval: int
    start_ns: int
    owner: int
    tokens: TokenInput


@dataclass
class _Generation:
    """Calls that read a prompt, of which there are several if it is read in chunks, and calls that decode.

    None decode if a single token is generated, by which the time to the first token is often measured. `encoders`: the
    calls of the models that read the prompt for a decoder. The decoder's own prompt is then its first token.
    """

    prompt: list[_Call]
    has_cache: bool
    decoded: list[_Call] = field(default_factory=list)
    encoders: list[_Call] = field(default_factory=list)


class _Cut(NamedTuple):
    """Step of a generation and the interval at which it begins.

    `last`: the interval of the last call of the generation, if this is its last step.
    """

    place: int
    step: TokenStep
    last: int | None


class StepGroup(NamedTuple):
    """Iterations of one mode of generations of the same size; a size is None if it differs among them."""

    mode: str
    prompt_size: int | None
    num_requests: int | None
    output_size: int
    """Median over the generations of more than one token."""
    has_cache: bool
    iterations: list[Iteration]


def step_groups(iterations: Sequence[Iteration]) -> list[StepGroup]:
    """Return the iterations that generate, by size of the prompts, requests and mode; none without generations.

    If there are too many sizes of prompts, they are one group, and so are numbers of requests.
    """
    def size(step: TokenStep, num_fields: int) -> tuple[Any, ...]:
        return (step.has_cache, step.num_requests, step.prompt_size)[:num_fields]

    steps = [each.step for each in iterations if each.step is not None]
    num_fields = next(num for num in (3, 2, 1) if num == 1 or len({size(step, num) for step in steps}) <= _MOST_GROUPS)
    groups: dict[tuple[Any, ...], list[Iteration]] = defaultdict(list)
    for each in iterations:
        if each.step is not None:
            groups[size(each.step, num_fields)].append(each)
    result = []
    for (has_cache, *sizes), of_group in groups.items():
        num_requests, prompt_size = (*sizes, None, None)[:2]
        outputs = [each.step.output_size for each in of_group if each.step and each.step.mode == "prefill"]
        output_size = round(median([size for size in outputs if size > 1] or outputs))
        result += [StepGroup(mode, prompt_size, num_requests, output_size, has_cache,
                             [each for each in of_group if each.step and each.step.mode == mode])
                   for mode in ("decode", "prefill")]
    return result


def with_generations(iterations: Sequence[Iteration], rows: Sequence[TokenRow]) -> list[Iteration]:
    """Return the iterations of a program; those of inference in which a model generates become prefills and decodings.

    A prefill begins with what precedes the forward in its iteration, such as the fetch of the prompts. The prefill of a
    decoder that follows an encoder has both. A decoding ends where the next one begins, and the last step of a
    generation with its forward: what follows is not part of it. Iterations of training are left as they are:
    generations in them are part of the training.

    *Error*: beams and requests in a batch are not distinguished. A model whose calls have no argument besides tokens
    and masks is taken for one without a state. Generations after the first 10,000 changes of the inputs' size are left
    as they are.
    """
    if not rows:
        return list(iterations)
    every = _calls(iterations, rows)
    forwards = [call for call in every if not iterations[call.iteration].training]
    any_training = len(forwards) < len(every)
    by_owner: dict[int, list[_Call]] = defaultdict(list)
    for call in forwards:
        if call.tokens.length:
            by_owner[call.owner].append(call)
    with_tokens = [call for call in every if call.tokens.length]
    generations: list[_Generation] = []
    for own in by_owner.values():
        num_others = sum(_is_validation(iterations[call.iteration]) for call in own) if any_training else 0
        generations += (_generations_of(list(_runs(own)), len(own) - num_others, with_tokens)
                        or _generations_of(_encoded_runs(own, forwards), len(own) - num_others, with_tokens))
    generations.sort(key=lambda each: each.prompt[0].start_ns)
    return _split(iterations, generations) if generations else list(iterations)


def _calls(iterations: Sequence[Iteration], rows: Sequence[TokenRow]) -> list[_Call]:
    """Return the calls of all models, in order; calls without tokens, or of unknown size, have `_NO_TOKENS`."""
    changes: dict[int, list[tuple[int, TokenInput]]] = defaultdict(list)
    for time_ns, owner, num_rows, length, keeps, reach in rows:
        changes[owner].append((time_ns, TokenInput(num_rows, length, keeps, reach)))
    known_until_ns = rows[-1][0] if len(rows) >= MAX_EVENTS else None
    calls: list[_Call] = []
    for number, iteration in enumerate(iterations):
        for place, each in enumerate(iteration.intervals):
            if each.phase != "forward" or not each.begins or each.mode is Mode.METHOD:
                continue
            of_owner, tokens = changes.get(each.owner, ()), _NO_TOKENS
            index = bisect_right(of_owner, each.start_ns, key=lambda change: change[0]) - 1
            if index >= 0 and (known_until_ns is None or each.start_ns <= known_until_ns):
                tokens = of_owner[index][1]
            calls.append(_Call(number, place, each.start_ns, each.owner, tokens))
    return calls


def _is_validation(iteration: Iteration) -> bool:
    """Return whether an iteration of a training program infers a batch by a single forward."""
    intervals = iteration.intervals
    return intervals[0].phase == "data" and sum(each.phase == "forward" and each.begins for each in intervals) == 1


def _generations_of(candidates: Sequence[_Generation], num_calls: int, every: Sequence[_Call]
                    ) -> Sequence[_Generation]:
    """Return the candidates for a model's generations; none if it is not clear from its calls that it generates.

    A training, or another model that reads tokens, between two decodings makes it unclear, such as one that verifies
    drafts. `num_calls`: the model's calls outside of training and validation.
    """
    num_decoded = sum(len(each.decoded) for each in candidates)
    if not num_decoded or num_decoded < _DECODING_FRAC * num_calls:
        return []
    if all(len(each.decoded) < (_FEWEST_DECODED if each.has_cache else _FEWEST_GROWN) for each in candidates):
        return []
    places = {id(call): place for place, call in enumerate(every)}
    num_apart = sum(places[id(after)] - places[id(before)] > 1 for each in candidates
                    for before, after in zip([each.prompt[-1], *each.decoded], each.decoded, strict=False))
    return [] if num_apart else candidates


def _encoded_runs(own: Sequence[_Call], forwards: Sequence[_Call]) -> list[_Generation]:
    """Return the calls of a decoder, one token each, in runs that follow calls of its encoders.

    The encoders are the models that run before the decoder's first token, and then before at most half of its tokens.
    In a run, the latest calls of each belong to the prompt, as many as are usual. Other calls of the decoder, such as
    those of a validation, end a run.
    """
    singles = [call for call in own if call.tokens.length == 1 and call.tokens.keeps]
    before: list[list[_Call]] = [[]]
    """Other calls before each of the tokens."""
    is_single = set(map(id, singles))
    for each in forwards:
        if id(each) in is_single:
            before.append([])
        else:
            before[-1].append(each)
    num_gaps = Counter(owner for gap in before for owner in {each.owner for each in gap})
    encoders = {each.owner for each in before[0] if 2 * num_gaps[each.owner] <= len(before)} - {own[0].owner}
    begins = [number for number, gap in enumerate(before[:-1])
              if any(each.owner in encoders or each.owner == own[0].owner for each in gap)]
    usual = {owner: median_low(num for begin in begins if (num := sum(each.owner == owner for each in before[begin])))
             for owner in encoders}
    result = []
    for begin, end in pairwise([*begins, len(singles)]):
        of_encoders = [call for owner in encoders
                       for call in [each for each in before[begin] if each.owner == owner][-usual[owner]:]]
        if of_encoders:
            result.append(_Generation([singles[begin]], has_cache=True, decoded=singles[begin + 1:end],
                                      encoders=sorted(of_encoders, key=lambda call: call.start_ns)))
    return result


def _runs(calls: Sequence[_Call]) -> Iterator[_Generation]:
    """Yield the calls of a model that may be generations; those of one token get an empty cache with the prompt."""
    begin = 0
    while begin < len(calls):
        end = _end_of_growth(calls, begin)
        if end - begin > _FEWEST_GROWN:
            yield _Generation([calls[begin]], has_cache=False, decoded=list(calls[begin + 1:end]))
            begin = end
            continue
        first, before = calls[begin].tokens, begin
        while begin + 1 < len(calls) and _continues(calls[begin].tokens, calls[begin + 1].tokens):
            begin += 1
        begin += 1
        end = begin
        while end < len(calls) and calls[end].tokens.length == 1 and calls[end].tokens.keeps:
            end += 1
        if first.length > 1 and end > begin and calls[begin].tokens.rows % max(first.rows, 1) == 0:
            yield _Generation(list(calls[before:begin]), has_cache=True, decoded=list(calls[begin:end]))
            begin = end
        elif first.length > 1 and first.keeps:
            yield _Generation(list(calls[before:begin]), has_cache=True)


def _end_of_growth(calls: Sequence[_Call], begin: int) -> int:
    """Return the index after the calls in a row of which each has one token more than the one before.

    After enough of them, the length may stay: the model reads no more tokens than it can.
    """
    end = begin + 1
    while end < len(calls):
        before, after = calls[end - 1].tokens, calls[end].tokens
        is_full = end - begin > _FEWEST_GROWN and after[:2] == before[:2]
        if not is_full and not after.is_longer_by_one(before):
            break
        end += 1
    return end


def _continues(before: TokenInput, after: TokenInput) -> bool:
    """Return whether a call reads the next chunk of the prompt of the call before."""
    return (after.keeps and 1 < after.length <= before.length and after.rows == before.rows
            and after.reach - before.reach == after.length)


def _split(iterations: Sequence[Iteration], generations: Sequence[_Generation]) -> list[Iteration]:
    """Return the iterations, cut at the calls of generations."""
    cuts: dict[int, list[_Cut]] = defaultdict(list)
    joined: set[int] = set()
    """Iterations of a prompt's further chunks, which belong to the iteration before."""
    ends: dict[int, int] = {}
    """Index of the interval after a generation of a single token, by the last of these iterations."""
    for number, each in enumerate(generations):
        reading = [*each.encoders, *each.prompt]
        first, read = reading[0], [call.tokens for call in each.encoders if call.tokens.length] or [
            call.tokens for call in each.prompt]
        size = sum(tokens.length for tokens in read)
        step = TokenStep("prefill", number, size, read[0].rows, size, 1 + len(each.decoded), each.has_cache)
        last = max(call.interval for call in reading if call.iteration == first.iteration)
        cuts[first.iteration].append(_Cut(first.interval, step, None if each.decoded else last))
        joined |= {call.iteration for call in reading[1:]} - {first.iteration}
        if not each.decoded and reading[-1].iteration != first.iteration:
            ends[reading[-1].iteration] = reading[-1].interval + 1
        for index, call in enumerate(each.decoded, 1):
            cuts[call.iteration].append(_Cut(call.interval, replace(step, mode="decode", context=size + index),
                                             call.interval if call is each.decoded[-1] else None))
    result: list[Iteration] = []
    followers: dict[int, set[int]] = defaultdict(set)
    """Models that ran after the forward of a step, such as a head, by generation."""
    for number, iteration in enumerate(iterations):
        if number in joined and result:
            following = cuts[number][0].place if number in cuts else len(iteration.intervals)
            end = ends.get(number, following)
            before, chunk = result[-1], _piece(iteration, 0, end)
            final: Iteration | Interval = chunk.intervals[-1] if number in ends else chunk
            result[-1] = replace(before, end_ns=final.end_ns, end_device_ns=final.end_device_ns,
                                 intervals=[*before.intervals, *chunk.intervals])
            if any(each.phase == "forward" for each in iteration.intervals[end:following]):
                result.append(_piece(iteration, end, following))
        elif number not in cuts:
            result.append(iteration)
        if number in cuts:
            cuts[number].sort(key=lambda cut: cut.place)
            result += _cut(iteration, cuts[number], followers, is_begun=number in joined)
    return result


def _cut(iteration: Iteration, cuts: Sequence[_Cut], followers: dict[int, set[int]], *, is_begun: bool
         ) -> Iterator[Iteration]:
    """Yield the parts of an iteration: each begins with a step of a generation, and the first one with the iteration.

    `is_begun`: what precedes the first step belongs to another iteration.
    """
    intervals = iteration.intervals
    first = cuts[0].place
    begin = first if is_begun else 0
    owner = intervals[first].owner
    if any(each.owner == owner and each.phase == "forward" for each in intervals[begin:first]):
        yield _piece(iteration, 0, first)  # such as a call that scores the prompt
        begin = first
    ends = [*(cut.place for cut in cuts[1:]), len(intervals)]
    for (place, step, last), end in zip(cuts, ends, strict=True):
        own = intervals[place].owner
        if last is not None:
            own, stop = intervals[last].owner, last + 1
            for index in range(last + 1, end):
                each = intervals[index]
                if each.phase == "forward":
                    if (each.begins if each.owner == own else each.owner not in followers[step.number]):
                        break
                    stop = index + 1
            part = _piece(iteration, begin, stop)
            final = part.intervals[-1]
            yield replace(part, end_ns=final.end_ns, end_device_ns=final.end_device_ns, step=step)
            if any(each.phase == "forward" for each in intervals[stop:end]):
                yield _piece(iteration, stop, end)
        else:
            yield replace(_piece(iteration, begin, end), step=step)
        followers[step.number] |= {each.owner for each in intervals[place + 1:end]
                                   if each.phase == "forward" and each.owner != own}
        begin = end


def _piece(iteration: Iteration, begin: int, end: int) -> Iteration:
    """Return the part of an iteration with its intervals from one index to another, and the time until the next one."""
    intervals = iteration.intervals
    start: Iteration | Interval = intervals[begin] if begin else iteration
    following = intervals[end] if end < len(intervals) else None
    return Iteration(
        start.start_ns, iteration.end_ns if following is None else following.start_ns, intervals[begin:end],
        start.start_device_ns, iteration.end_device_ns if following is None else following.start_device_ns,
        training=False)
