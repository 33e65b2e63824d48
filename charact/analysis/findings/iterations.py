"""Findings about slow iterations, iterations that get longer, and evaluation."""

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import pandas as pd

from charact.analysis.findings._finding import Finding, Place, Saving
from charact.analysis.findings._line_text import advice_for
from charact.analysis.findings._series import Trend, is_gradual, num_elements, steady_growth
from charact.analysis.findings._watched_case import LEAST_FRAC, WatchedCase, watched_cases
from charact.analysis.profile.compilations import counts_text
from charact.core.units import quantity, share
from charact.record.manifest_program import Compilations, CompileEvent
from charact.record.schema import NO_CACHE, PHASES


def compilation(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding if compilation takes much of the program."""
    facts = case.settings.compile or Compilations()
    spent_s = float(case.iterations["compile_s"].fillna(0.0).sum())
    recompiled = facts.num_recompilations or 0
    breaks = facts.num_graph_breaks or 0
    repeated_frac = recompiled / max(recompiled + (facts.num_graphs or 1), 1)
    saving = case.saving_in_all(0.5 * repeated_frac * spent_s, spent_s)
    evidence = [f"compilation takes {quantity(spent_s, 's')}; {counts_text(facts)}",
                *(f"{each.kind}{_at(each)}: {' '.join(each.reason.split())}" for each in facts.events[:2])]
    changed = next((each for event in facts.events if (each := _changed_attribute(event))), None)
    again = "" if not recompiled else f": it recompiles when {changed.name} changes" if changed else ": it recompiles"
    if changed is not None:
        remedy = (f"do not change {changed.name} inside of compiled code: change it in the loop, or keep it in a "
                  "tensor; for an integer, set torch._dynamo.config.allow_unspec_int_on_nn_module = True")
    elif recompiled:
        remedy = "call torch.compile(model, dynamic=True), or pad inputs to few fixed shapes"
    elif breaks:
        remedy = "remove the calls that break the graph, or compile only the inner model"
    else:
        remedy = "do not compile in short programs, or keep Inductor's cache between them (TORCHINDUCTOR_CACHE_DIR)"
    yield Finding(
        f"torch.compile takes much of the program's time{again}", remedy, saving,
        tuple(evidence), "high" if recompiled else "medium", setting="torch.compile",
        place=changed.place if changed else next((Place.of(each) for each in facts.events), None),
        covers=frozenset({"new_input_shapes"}))


class _Attribute(NamedTuple):
    """An attribute whose value is compiled into the code, and the line that reads it."""

    name: str
    place: Place | None


def _changed_attribute(event: CompileEvent) -> _Attribute | None:
    """Return the attribute whose change made PyTorch compile again; None for other events."""
    match = re.match(r"(?:L\['self'\]|self)((?:\.\w+|\[\W*\w+\W*\])*\.\w+) == ", event.reason)
    return match and _Attribute(f"self{match[1]}", Place.of(event) if event.text else None)


def _at(event: CompileEvent) -> str:
    return f" at {place}" if (place := Place.of(event)) else ""


def epoch_start(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding if the first iterations of epochs are slower than the others."""
    group = case.slow_groups.get("epoch_start")
    if group is None:
        return
    count = len(group.indices)
    saving = case.saving_in_all(group.extra_s * (count - 1) / count * 0.8, group.extra_s)
    evidence = f"the first iterations of {count} epochs take {group}; most of the difference is in {group.phase}"
    loader = next((each for each in case.settings.loaders
                   if each.num_workers and not each.persistent_workers
                   and (each.num_iterators or 0) > 1), None)
    if loader is not None and group.phase == "data":
        yield Finding(
            f"the DataLoader starts its {loader.num_workers} worker processes again in every epoch",
            "pass persistent_workers=True to the DataLoader, or make epochs longer", saving, (evidence,),
            place=Place.of(loader), phase="data", setting="persistent_workers=False")
        return
    line = case.slow_line(group)
    where = "" if line is None else f"; most of their samples are at {line.place} in {line.function}"
    yield Finding(
        "the first iteration of every epoch takes much longer than the others",
        "do the work of an epoch's start once, in advance: keep open files and decoded data in memory, and shuffle a "
        "tensor of indices, torch.randperm(n), instead of Python objects", saving, (evidence + where,),
        "high" if line else "medium", place=line and line.place, phase=group.phase)


_EVALUATION_FRAC = 0.1
_OFTEN_FRAC = 0.2
"""Share of the training's iterations with inferences before them from which these belong to the training's steps."""


def evaluation(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding if the program trains, and inference takes a tenth or more of its loop, generations included.

    Inference before many of the training's iterations is no evaluation, but a part of them: the choice of an action, or
    the outputs of a teacher. Of several cases of inference, the longest has the finding.
    """
    rows = case.run.program_iterations.sort_values("index")
    trains = rows["case"].isin(case.trainings)
    if case.trains or not case.trainings or (~trains).shift(fill_value=False)[trains].mean() > _OFTEN_FRAC:
        return
    inferred = rows[~trains]
    times_s = inferred["wall_s"].where(inferred["kind"] != "pass")
    by_case = times_s.fillna(times_s.groupby(inferred["case"]).transform("median")).groupby(inferred["case"]).sum()
    if by_case.empty or by_case.idxmax() != case.name:
        return
    spent_s = float(by_case.sum())
    others = [each for each in watched_cases(case.run) if each.name not in (case.name, *case.trainings)]
    num_batches = sum(each.num_iterations for each in (case, *others) if each.entry.mode != "decode")
    if spent_s < _EVALUATION_FRAC * case.loop_s:
        return
    saving = case.saving_in_all(0.4 * spent_s, 0.9 * spent_s, "bound")
    if saving is None:
        return
    line = next(iter(case.lines("other") + case.lines("forward")), None)
    yield Finding(
        f"evaluation takes {share(spent_s / case.loop_s)} of the loop",
        "evaluate less often, on a part of the data, or with larger batches", saving,
        (f"{num_batches:,} evaluation batches take {quantity(spent_s, 's')} of {quantity(case.loop_s, 's')}",),
        "medium", place=line and line.place, phase="forward", setting="evaluation")


_FEWEST_COLLECTIONS = 3
"""Minimum number of iterations with a collection: importing modules leaves one to the first iteration."""


def garbage_collection(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding if garbage collections of at least 1 ms take much of the time."""
    rows = case.iterations[case.iterations["kind"] == "timed"]
    spent_s = float(rows["gc_s"].sum()) * case.num_iterations / max(len(rows), 1)
    saving = case.saving_in_all(0.7 * spent_s, spent_s)
    if saving is None or rows["gc_s"].count() < _FEWEST_COLLECTIONS:
        return
    line = next((line for line in case.lines("other") if "gc.collect(" in (line.place.text or "")), None)
    yield Finding(
        "Python's garbage collector runs often and long",
        "remove calls of gc.collect() from the loop; call gc.freeze() once before it, or gc.disable() before it and "
        "gc.collect() after each epoch",
        saving, (f"collections take {quantity(float(rows['gc_s'].sum()), 's')}, "
                 f"{share(float(rows['gc_s'].sum() / rows['wall_s'].sum()))} of the iterations' time; "
                 f"{rows['gc_s'].count()} of {len(rows)} iterations have a collection of at least 1 ms",), setting="gc",
        place=line and line.place, explains_line=True)


def long_inputs(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding if iterations with inputs of more than 1.5 times the median size are slower than the others."""
    group = case.slow_groups.get("long_inputs")
    if group is None:
        return
    saving = case.saving_in_all(group.extra_s * 0.3, group.extra_s, "bound")
    count, num_all = len(group.indices), len(case.iterations)
    evidence = (f"{count} of {num_all} iterations ({share(count / num_all)}) have inputs of more than 1.5 times the "
                f"median size; they take {group}")
    yield Finding(
        "a few batches of long inputs take much of the time",
        "truncate or split the longest inputs, and bucket the others: batch inputs of similar length, up to a fixed "
        "number of elements", saving, (evidence,), "medium", phase=group.phase, setting="input shapes")


_FEWEST_SHAPES = 2
"""Minimum number of new shapes after the first iteration, which is slow in any program."""


def new_input_shapes(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding if the first iterations with each input shape are slower than the others."""
    group = case.slow_groups.get("new_input_shapes")
    if group is None or sum(index > 0 for index in group.indices) < _FEWEST_SHAPES:
        return
    saving = case.saving_in_all(group.extra_s / 2, group.extra_s)
    line = case.slow_line(group)
    num_shapes = case.iterations["input_shapes"].nunique()
    places = ", ".join(str(index) for index in group.indices[:6])
    evidence = [f"inputs have {num_shapes} different shapes; the {len(group.indices)} iterations with a new shape "
                f"(iterations {places}) take {group}"]
    if line is not None:
        evidence.append(f"most of their samples are at {line.place} in {line.function}")
    yield Finding(
        "the first iteration with each new input shape is slow: kernels are tuned or compiled for it",
        "use few fixed shapes: pad or bucket the inputs, and pass drop_last=True to the DataLoader; or set "
        "torch.backends.cudnn.benchmark = False, or torch.compile(model, dynamic=True), where the program uses them",
        saving, tuple(evidence), place=line and line.place, phase=group.phase, setting="input shapes")


def periodic_work(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding if slow iterations follow each other by the same number."""
    group = case.slow_groups.get("periodic_work")
    if group is None:
        return
    saving = case.saving_in_all(group.extra_s * 0.5, group.extra_s)
    line = case.slow_line(group)
    does = f"does extra work in {group.phase}" if line is None else f"{advice_for(line).does} at {line.place}"
    remedy = "do this less often, or in a background thread" if line is None else advice_for(line).remedy
    if group.period and "less often" not in remedy:
        remedy = f"do this less often than every {group.period} iterations; or {remedy}"
    evidence = (f"every {_ordinal(group.period)} of {len(case.iterations)} iterations takes "
                f"{quantity(group.slow_s, 's')} instead of {quantity(group.typical_s, 's')}; the difference "
                f"is {share(group.extra_s / float(case.iterations['wall_s'].sum()))} of the time of all iterations",)
    yield Finding(f"every {_ordinal(group.period)} iteration {does}", remedy, saving, evidence,
                  "high" if line else "medium", place=line and line.place, phase=group.phase)


def _ordinal(number: int | None) -> str:
    if number is None:
        return ""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


_FEWEST_CALLS = 20
"""Minimum number of iterations."""
_GROWING_FRAC = 0.7
"""Minimum share of the iterations whose input is longer by one than that of the iteration before."""


def repeated_inputs(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding if the input of most inferences is that of the one before and one element more."""
    rows = case.iterations[case.iterations["input_shapes"].notna()]
    if case.trains or len(rows) < _FEWEST_CALLS or (case.entry.mode == "decode" and case.entry.cache != NO_CACHE):
        return  # with a cache, only the mask grows
    shapes = [json.loads(each) for each in rows["input_shapes"]]
    grows = pd.Series([False, *(_is_longer_by_one(before, after) for before, after in pairwise(shapes))], rows.index)
    if grows.mean() < _GROWING_FRAC:
        return
    walls = rows.loc[grows, "wall_s"]
    total_s = float(walls.sum()) * case.num_iterations / len(case.iterations)
    shortest_s = float(walls.quantile(0.05))
    beyond_frac = max(1 - shortest_s / float(walls.mean()), 0.0)
    saving = case.saving_in_all(0.5 * beyond_frac * total_s, 0.95 * total_s, "modelled")
    line = next(iter(case.lines("forward")), None)
    yield Finding(
        "each call of the model computes all earlier elements of the sequence again, for one new element",
        "keep what the model computed for earlier elements: past_key_values (use_cache=True) of a Transformer, the "
        "hidden state of a recurrent layer; and pass only the new element", saving,
        (f"in {share(float(grows.mean()))} of {len(rows):,} inferences, an input is longer by one than in the one "
         f"before; short ones take {quantity(shortest_s, 's')}, the mean is {quantity(float(walls.mean()), 's')}",),
        "medium", place=line and line.place, phase="forward", setting="use_cache",
        covers=frozenset({"time_trend", "long_inputs", "new_input_shapes", "slow_iterations"}))


def _is_longer_by_one(before: list[Any], after: list[Any]) -> bool:
    if [len(shape) for shape in before] != [len(shape) for shape in after]:
        return False
    changes = {new - old for old_shape, new_shape in zip(before, after, strict=True)
               for old, new in zip(old_shape, new_shape, strict=True)}
    return changes in ({1}, {0, 1})


_UNEXPLAINED_FRAC = 0.1
"""Minimum share of the loop's time of slow iterations without a line that explains them."""


def slow_iterations(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding about slow iterations that no other finding explains."""
    group = case.slow_groups.get("slow_iterations")
    if group is None:
        return
    saving = case.saving_in_all(group.extra_s * 0.5, group.extra_s)
    if saving is None:
        return
    line = case.slow_line(group)
    usual = next(iter(case.all_lines(group.phase)), None)
    if line is not None and ((line.library or "").startswith("torch.nn.modules.") or (
            group.phase == "forward" and usual is not None and line.place == usual.place)):
        line = None  # a layer or a model, which computes in every iteration
    evidence = (f"{len(group.indices)} of {len(case.iterations)} iterations take {group}: "
                f"{share(group.extra_s / float(case.iterations['wall_s'].sum()))} of the iterations' time, most of it "
                f"in {group.phase}",)
    if line is None and saving.high_s < _UNEXPLAINED_FRAC * case.loop_s:
        return  # on most machines, something else runs now and then
    if line is None:
        yield Finding(
            f"some iterations take much longer in {group.phase} than the others, without a pattern",
            "look at the lines of these iterations: charact run --sample names them", saving, evidence, "low",
            phase=group.phase)
        return
    advice = advice_for(line)
    yield Finding(f"in some iterations, {line.function} {advice.does} ({line.place})", advice.remedy, saving, evidence,
                  "medium", place=line.place, phase=group.phase)


_LEAST_GROWTH_FRAC = 0.5
"""Least growth of a phase from the first iteration to the last, as a share of its first value."""
_LEAST_RATIO = 1.3
"""Least ratio of its last to its first third, over that of the phase that grows least: a slower machine slows all."""
_MAIN_FRAC = 0.02
"""Minimum share of the iteration of the phases with which it is compared."""


def time_trend(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding for the phase that grows most."""
    rows = case.iterations
    rows = rows[rows["kind"] == "timed"].set_index("index")
    grown: list[tuple[float, str, Trend]] = []
    for phase in PHASES:
        times_s = rows[f"{phase}_s"].fillna(0.0)
        line = steady_growth(times_s, LEAST_FRAC * case.iteration_s)
        if line is not None and line.growth >= _LEAST_GROWTH_FRAC * line.start and is_gradual(times_s) \
                and _grows_most(rows, phase):
            grown.append((line.growth / 2, phase, line))
    numels = case.iterations["input_shapes"].map(num_elements).dropna()
    halves = numels.iloc[:len(numels) // 2], numels.iloc[len(numels) // 2:]
    if not grown or halves[1].median() > 1.2 * halves[0].median():
        return
    mean_growth_s, phase, line = max(grown)
    total_s = sum(each for each, _, _ in grown)
    saving = case.saving(0.5 * mean_growth_s, 1.1 * total_s)
    others = ", ".join(name for _, name, _ in sorted(grown, reverse=True)[1:])
    evidence = [f"{phase} grows by {quantity(line.slope, 's')} ({quantity(line.low, 's')} to "
                f"{quantity(line.high, 's')}) an iteration: from {quantity(max(line.start, 0.0), 's')} to "
                f"{quantity(line.start + line.growth, 's')} over {line.num_iterations} iterations"
                + (f"; so do {others}" if others else "")]
    yield _trend_finding(case, phase, saving, evidence)


def _grows_most(rows: pd.DataFrame, phase: str) -> bool:
    first, last = rows.iloc[:len(rows) // 3], rows.iloc[-(len(rows) // 3):]

    def ratio(name: str) -> float:
        return float(last[f"{name}_s"].median() / max(first[f"{name}_s"].median(), 1e-9))

    others = [ratio(other) for other in PHASES if other not in (phase, "data", "other")
              and first[f"{other}_s"].median() > _MAIN_FRAC * first["wall_s"].median()]
    return not others or ratio(phase) >= _LEAST_RATIO * max(min(others), 1.0)


def _trend_finding(case: WatchedCase, phase: str, saving: Saving | None, evidence: list[str]) -> Finding:
    if (grown := _grown(case, "hooks", evidence)) is not None:
        return Finding(f"{phase} gets longer with every iteration: hooks accumulate on {grown}",
                       "register each hook once, before the loop, or remove it: handle.remove()", saving,
                       tuple(evidence), phase=phase, layer=grown, setting="hooks", covers=frozenset({"hooks"}))
    place = next((line.place for line in case.lines(phase)), None)
    if phase in ("forward", "backward", "update") and (grown := _grown(case, "modules", evidence)) is not None:
        return Finding(f"{phase} gets longer with every iteration: {grown} gets more and more modules",
                       "add modules once, before the loop; replace those of earlier iterations instead of wrapping "
                       "them again", saving, tuple(evidence), place=place, phase=phase, layer=grown, setting="modules")
    causes = {
        "backward": ("it goes through the autograd graph of earlier iterations again",
                     "detach tensors that are carried over to the next iteration: hidden.detach(), loss.item()"),
        "forward": ("it reads something that grows, such as a list, a cache or an autograd graph",
                    "limit the size of lists and caches that iterations add to, and detach carried-over tensors"),
        "update": ("the optimizer gets more and more parameters or groups",
                   "add parameters and parameter groups once, before the loop"),
        "data": ("each fetch searches or copies more data",
                 "index the data instead of searching or copying all of it"),
    }  # fmt: skip
    cause, remedy = causes.get(phase, ("iterations read something that grows, such as a list of results",
                                       "limit the size of lists that iterations add to, and compute results once, at "
                                       "the end"))
    return Finding(f"{phase} gets longer with every iteration: {cause}", remedy, saving,
                   tuple(evidence), place=place, phase=phase)


def _grown(case: WatchedCase, what: str, evidence: list[str]) -> str | None:
    """Return the name of the model with many more hooks or modules than at its first call, and add the evidence."""
    first, last = f"num_{what}_first", f"num_{what}_last"
    grown = [model for model in case.settings.models
             if (getattr(model, last) or 0) > (getattr(model, first) or 0) + 10]
    if not grown:
        return None
    model = max(grown, key=lambda model: getattr(model, last))
    evidence.append(f"{model.name} had {getattr(model, first)} {what} at its first call and has "
                    f"{getattr(model, last)} at the end")
    return str(model.name)
