"""Conversion of an event log to the cases and tables of a record. No torch in here."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from statistics import median
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from charact.core.errors import UserError
from charact.core.timeline import Iteration, Mode, iteration_rows, total_s
from charact.measure.script.program.facts import program_facts, program_iteration_rows
from charact.measure.script.ranks.collectives import collective_rows
from charact.measure.script.spans.blind_spots import LATE, NO_DEVICE_TIMES, blind_spots, unwatched
from charact.measure.script.spans.event_log_reader import EventLog
from charact.measure.script.spans.frame_samples import Samples
from charact.measure.script.spans.generations import StepGroup, step_groups
from charact.measure.script.spans.iterations import MAX_WARMUP_ITERATIONS
from charact.measure.script.spans.token_counts import token_counts
from charact.measure.script.windows.window_rows import window_rows
from charact.record.in_progress import NOTES
from charact.record.manifest import CaseEntry
from charact.record.manifest_passes import PASSES, CollectivesPass, CoreUse, FlopPass, Pass, SourceOutcome, TimingPass
from charact.record.manifest_program import ProgramFacts
from charact.record.schema import NO_CACHE, PHASES, SAMPLED_PHASES, Rows
from charact.traces.counters import SOURCE, outcome

_NO_GPU = "kernels run on GPUs only"
_GENERATED = "the evaluations that this pass measured generate"
_COMPILED = "compiled code has no operators to count: run charact profile --compile on the model"


class ScriptOptions(msgspec.Struct):
    """Options of the run of a profiled program."""

    script: str
    skip: Annotated[int, Meta(ge=0)] | None
    iterations: Annotated[int, Meta(ge=1)] | None
    passes: list[str]


def script_options(manifest: Mapping[str, Any]) -> ScriptOptions | None:
    """Return the options of a profiled program's run; None for other runs."""
    options = manifest.get("options", {})
    if "script" not in options:
        return None
    try:
        converted = msgspec.convert(options, ScriptOptions)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        raise UserError(f"run.json is corrupt (options: {error}): restore it from a copy") from error
    # A path may contain lone surrogates (bytes that are not UTF-8), which tables cannot store.
    return msgspec.structs.replace(converted, script=converted.script.encode("utf-8", "replace").decode())


def script_cases(log: EventLog, name: str, source: str, skip: int | None, limit: int | None,
                 passes: Sequence[str] = ()) -> list[tuple[CaseEntry, dict[str, Rows]]]:
    """Return the cases of a profiled program, training, generation and inference, each with its tables.

    Args:
        log: contents of the event log.
        name: of the program.
        source: path of the program.
        skip: iterations to leave out at the start; None for a warm-up.
        limit: maximum number of iterations; None for all.
        passes: requested passes after the timing; the first case has all of them.
    """
    cases: list[tuple[CaseEntry, dict[str, Rows]]] = []
    for kind in _kinds(log):
        undisturbed = log.timed(kind.iterations)
        beyond = 0 if limit is None else len(undisturbed) - limit
        num_skipped = min(MAX_WARMUP_ITERATIONS, max(len(undisturbed) // 4, beyond)) if skip is None else skip
        if not cases:
            iterations = undisturbed[num_skipped:][:limit]
        else:
            num_skipped = _num_warmup(log, kind, undisturbed, skip)
            iterations = undisturbed[num_skipped:]
        if iterations:
            entry, tables = _case(log, name, source, kind, iterations, undisturbed,
                                  None if cases else program_facts(log))
            entry.passes.timing.update(
                num_warmup_iterations=num_skipped, num_pass_iterations=len(kind.iterations) - len(undisturbed),
                ended_by="max_iterations" if len(iterations) == limit else "program")
            entry.passes.timing.update(**log.last("rule").get("facts", {}))
            entry.passes.timing.update(**token_counts(log, iterations, is_inspected=not cases))
            tables["program_iterations"] = program_iteration_rows(log, kind.iterations, iterations, undisturbed)
            if log.windows and kind.has_windows:
                training = kind.mode == "train"
                tables["windows"] = window_rows(log, iterations, training=training)
                in_windows = [window.of(training) for window in log.windows]
                entry.passes.timing.update(num_window_iterations=sum(each.num_iterations for each in in_windows),
                                           window_s=sum(each.wall.sum_ns for each in in_windows) / 1e9)
            if not cases or kind.mode == "infer":
                add_passes(log, entry, tables, None if cases else passes, kind.iterations)
            cases.append((entry, tables))
        elif cases and not kind.iterations and kind.has_windows and (
                late := sum(window.infer.num_iterations for window in log.windows)):
            cases[0][0].passes.timing.blind_spots.append(LATE.format(late, "inference"))
    return cases


class _Kind(NamedTuple):
    """What the iterations of a case have in common: the mode, and the sizes of a generation.

    `has_windows`: the windows after the event log was full are those of this case.
    """

    mode: str
    iterations: list[Iteration]
    has_windows: bool = True
    name: str = ""
    sizes: Mapping[str, Any] = MappingProxyType({})


def _kinds(log: EventLog) -> list[_Kind]:
    """Return the kinds of iterations of a program, one of which may have none.

    Of generations, a decoding comes first: of the group of which passes measured most, or else of the longest. Windows
    do not distinguish modes of a generation: without a training, nearly all of their iterations decode.
    """
    windows = [window for note in log.pass_notes("train").values() for window in note["windows"]]

    def rank(group: StepGroup) -> tuple[int, int]:
        num_measured = sum(begin_ns <= each.start_ns < end_ns for each in group.iterations
                           for begin_ns, end_ns in windows)
        return (-num_measured, -len(group.iterations)) if group.mode == "decode" else (1, 0)

    groups = sorted(step_groups(log.iterations), key=rank)
    num_sizes = len({(*group[1:3], group.has_cache) for group in groups})
    kinds = [_Kind("train", [each for each in log.iterations if each.training])]
    trains = bool(kinds[0].iterations)
    for group in groups:
        parts = [group.mode, *([] if num_sizes == 1 else [
            *([] if group.prompt_size is None else [str(group.prompt_size)]),
            *([] if group.num_requests is None else [f"b{group.num_requests}"]),
            *([] if group.has_cache else ["no-cache"])])]
        kinds.append(_Kind(group.mode, group.iterations, len(kinds) == 1 and not trains, "-".join(parts), {
            "input_kind": "sequence", "input_size": group.prompt_size, "output_size": group.output_size,
            "batch_size": group.num_requests, "cache": "as written" if group.has_cache else NO_CACHE}))
    rest = [each for each in log.iterations if not each.training and each.step is None]
    return [*kinds, *([_Kind("infer", rest, trains or not groups)] if rest or trains or not groups else [])]


def _num_warmup(log: EventLog, kind: _Kind, undisturbed: Sequence[Iteration], skip: int | None) -> int:
    """Return the number of iterations to leave out of a case that is not the first: of prefills and decodings only."""
    if not kind.sizes:
        return 0
    if skip is None:
        return min(MAX_WARMUP_ITERATIONS, len(undisturbed) // 4)
    skipped = set(map(id, log.iterations[:skip]))
    return min(sum(id(each) in skipped for each in undisturbed), len(undisturbed) - 1)


def _case(log: EventLog, name: str, source: str, kind: _Kind, iterations: list[Iteration],
          undisturbed: Sequence[Iteration], program: ProgramFacts | None) -> tuple[CaseEntry, dict[str, Rows]]:
    """Return a case from its timed iterations, with the tables `iterations` and `collectives`."""
    parts = _parts(log, iterations)
    rows = iteration_rows(iterations, lambda each: parts.get((each.owner, each.phase, each.mode)))
    intervals = [interval for iteration in iterations for interval in iteration.intervals]
    clock = "device_s" if all(row["device_s"] is not None for row in rows) else "host_s"
    other_s, wall_s = sum(row[clock] for row in rows if row["phase"] == "other"), sum(row[clock] for row in rows)
    compiling_ns = sum(interval.host_ns for iteration in kind.iterations for interval in iteration.intervals
                       if interval.compiling)
    device, core_use = log.last("device"), log.last("core use").get("facts")
    samples = Samples(log.notes["frames"])
    # Logs of older versions do not name the device.
    device_name = device.get("device", "cuda" if any(row["device_s"] is not None for row in rows) else "cpu")
    entry = CaseEntry(
        name if name == kind.mode else f"{name}-{kind.name or kind.mode}", "ok", name, mode=kind.mode,
        precision="as written",
        device="cuda" if device_name == "cuda:0" else device_name, device_name=device.get("name"), data="as written",
        source=source, **{"batch_size": loaders_batch_size(log.owners, iterations), **kind.sizes},
        num_parameters=_num_parameters(log, {each.owner for each in intervals if each.phase == "forward"} - {0}))
    entry.passes["timing"] = TimingPass(
        "ok", program=program, num_iterations=len(iterations), warmup_ended_by="number",
        median_s=median(iteration.host_ns / 1e9 for iteration in iterations), attributed_frac=1 - other_s / wall_s,
        inferred_frac=sum(each.duration_ns for each in intervals if each.inferred) / 1e9 / wall_s,
        compile_s=compiling_ns / 1e9 if compiling_ns else None, blind_spots=_blind_spots(log, iterations, samples),
        num_samples=num_samples(log.owners, iterations),
        num_loader_workers=_num_loader_workers(log.owners, iterations),
        core_use=None if core_use is None else msgspec.convert(core_use, CoreUse))
    host_s, _ = total_s(iterations)
    shares = {phase: host_s.get(phase, 0.0) / sum(host_s.values()) for phase in SAMPLED_PHASES if phase in PHASES}
    if program is not None and program.duration_s:
        outside_s = (program.before_s or 0.0) + (program.between_s or 0.0) + (program.after_s or 0.0)
        shares["outside"] = outside_s / program.duration_s
    frames = samples.facts(iterations, log.iterations, shares, undisturbed, log.pass_spans_ns)
    if frames is not None:
        entry.passes["frames"] = frames
    tables = {"iterations": rows}
    if len(log.arrivals):
        tables["collectives"] = [row for number, iteration in enumerate(iterations)
                                 for row in collective_rows(number, iteration, log.arrivals)]
        entry.passes["collectives"] = CollectivesPass("ok", num_lost=log.total("collectives", "lost"),
                                                      backend=log.arrivals.backend)
    elif log.notes["no collectives"]:
        entry.passes.end("collectives", "skipped", log.last("no collectives")["reason"])
    return entry, tables


def _blind_spots(log: EventLog, iterations: Sequence[Iteration], samples: Samples) -> list[str]:
    spots = [f"the event log was damaged: {damage}" for damage in log.damage.values()]
    if reason := log.last("device").get("reason"):
        spots.append(NO_DEVICE_TIMES.format(log.last("device")["device"], reason))
    return [*spots, *unwatched(log.total("unwatched", "children"), log.total("unwatched", "threads")), *blind_spots(
        iterations, compiled_whole=log.totals.compiled_whole, full=bool(log.notes["full"]),
        any_loader=any(facts["kind"] == "loader" for facts in log.owners.values()),
        inferences=[each for each in log.iterations if not each.training], samples=samples)]


def add_passes(log: EventLog, entry: CaseEntry, tables: dict[str, Rows], names: Sequence[str] | None,
               iterations: Sequence[Iteration]) -> None:
    """Add passes to a case, with their tables, and the indices of those of its iterations that they measured.

    `names` are those of the requested passes, None for the passes on evaluations inside of a training; `iterations` are
    all of the case, timed or not.
    """
    of_evaluation = names is None
    notes, passes = log.pass_notes("infer" if of_evaluation else "train"), entry.passes
    names = list(notes) if names is None else names
    for name in names:
        note = notes.get(name)
        if note is None:
            reason = "its event log is damaged" if NOTES in log.damage else "the program was killed"
            passes.end(name, "failed", f"{reason} before this pass had ended")
            continue
        indices = [number for number, each in enumerate(iterations)
                   if any(start_ns <= each.start_ns < end_ns for start_ns, end_ns in note["windows"])]
        if of_evaluation and note["windows"] and not indices:
            passes.end(name, "skipped", _GENERATED)
            continue
        passes[name] = msgspec.convert({"status": note["status"], "reason": note["reason"], "iterations": indices,
                                        **note.get("facts", {})}, PASSES[name])
        for table, rows in note.get("tables", {}).items():
            tables[table] = [*tables.get(table, []), *rows]
    operators = passes.operators
    if "operators" in names:
        passes["flop"] = FlopPass(operators.status, operators.reason)
        if operators.status == "ok":
            work = notes["operators"].get("facts", {}).get("flop")
            passes["flop"] = FlopPass("skipped", _COMPILED) if work is None else msgspec.convert(
                {"status": "ok", **work}, FlopPass)
            if operators.iteration_s is not None and passes.timing.median_s:
                operators.overhead_ratio = operators.iteration_s / passes.timing.median_s
        passes["kernels"] = (Pass("skipped", _NO_GPU) if entry.device == "cpu"
                             else Pass(operators.status, operators.reason))
    if "counters" in names and passes.counters.status == "ok":
        rows = [row for row in tables["counters"] if row["source"] == SOURCE]
        if entry.device == "cpu":
            ended = outcome(rows, _NO_GPU)
        elif "operators" in names:
            ended = outcome(rows, operators.reason)
        else:
            ended = outcome(rows, "read from the operator pass's trace", "--passes operators,counters")
        passes.counters.sources[SOURCE] = msgspec.convert(ended, SourceOutcome)


def _num_parameters(log: EventLog, models: set[int]) -> int | None:
    """Return the number of parameters of the models that an optimizer updates, else of all; None if there are none.

    So a copy that only averages or follows the trained weights does not count.
    """
    trained = {model for facts in log.owners.values() if facts["kind"] == "optimizer" for model in facts["models"]}
    inner = {part for model in models for part in log.owners.get(model, {}).get("parts", ())}
    counted = (models & trained or models) - inner
    return sum(log.owners.get(model, {}).get("num_parameters", 0) for model in counted) or None


def _parts(log: EventLog, iterations: Sequence[Iteration]) -> dict[tuple[int, str, Mode], str]:
    """Return names of the parts of phases, by owner, phase and mode, if there are several models or optimizers.

    A forward belongs to its model: alone, as a method, or without gradients if the model has forwards with gradients,
    too. An update belongs to the models of its optimizer. Of several optimizers, a loss or a backward is only "for" the
    update of the one that steps next: its gradients may be those of other models, too.
    """
    names, optimizers = _owner_names(log, iterations)
    seen = {(each.owner, each.phase, each.mode) for iteration in iterations for each in iteration.intervals
            if each.owner in names}
    with_gradients = {owner for owner, phase, mode in seen if phase == "forward" and mode is Mode.GRADIENTS}
    several = len({names[owner] for owner, phase, _ in seen if owner in optimizers and phase != "update"}) > 1
    parts: dict[tuple[int, str, Mode], str] = {}
    for owner, phase, mode in seen:
        name = names[owner]
        if owner in optimizers:
            name = f"for {name}'s update" if several and phase in ("loss", "backward") else name
        elif mode is Mode.METHOD:
            name = "/".join(f"{name}.{method}" for method in log.owners[owner].get("methods") or ["()"])
        elif mode is Mode.NO_GRADIENTS and owner in with_gradients:
            name += " without gradients"
        parts[owner, phase, mode] = name
    modes = {(names[owner], mode) for owner, phase, mode in seen if phase == "forward"}
    return parts if len(set(names.values())) > 1 or len(modes) > 1 else {}


def _owner_names(log: EventLog, iterations: Sequence[Iteration]) -> tuple[dict[int, str], set[int]]:
    """Return names of models and optimizers, and which are optimizers; modules without weights have none.

    Models of the same name and class that ran one after another, such as those of several fits, share a name.
    """
    spans: dict[int, tuple[int, int]] = {}
    """Index of the first and the last iteration of each."""
    for number, iteration in enumerate(iterations):
        for interval in iteration.intervals:
            spans[interval.owner] = spans.get(interval.owner, (number, number))[0], number
    owners = [log.owners[owner] for owner in sorted(spans) if owner in log.owners]
    models = [facts for facts in owners if facts["kind"] == "model" and facts["num_parameters"]]
    optimizers = [facts for facts in owners if facts["kind"] == "optimizer"]
    latest: dict[str, list[dict[str, Any]]] = defaultdict(list)
    """Models that ran at the same time, by name; each is the latest of its class."""
    names: dict[int, str] = {}
    for facts in models:
        name = log.name(facts["owner"])
        begins = spans[facts["owner"]][0]
        index = next((index for index, before in enumerate(latest[name])
                      if before["class"] == facts["class"] and spans[before["owner"]][1] < begins), len(latest[name]))
        latest[name][index:index + 1] = [facts]
        names[facts["owner"]] = name if index == 0 else f"{name} #{index + 1}"
    for facts in optimizers:
        served = [names[model] for model in facts["models"] if model in names]
        names[facts["owner"]] = " + ".join(served) or log.name(facts["owner"])
    return names, {facts["owner"] for facts in optimizers}


def _num_loader_workers(owners: dict[int, dict[str, Any]], iterations: Sequence[Iteration]) -> int | None:
    fetches = sum(map(_fetches, iterations), Counter[int]())
    numbers = [owners.get(loader, {}).get("num_workers") for loader, _ in fetches.most_common()]
    return next((number for number in numbers if isinstance(number, int)), None)


def loaders_batch_size(owners: dict[int, dict[str, Any]], iterations: Sequence[Iteration]) -> int | None:
    """Return the batch size times the fetches per iteration of the most-used loader; None if it is not known."""
    of_iterations = [_fetches(iteration) for iteration in iterations]
    for loader, _ in sum(of_iterations, Counter[int]()).most_common():
        size = _batch_size(owners, loader)
        if size is not None:
            return size * round(median(fetches[loader] for fetches in of_iterations if loader in fetches))
    return None


def num_samples(owners: dict[int, dict[str, Any]], iterations: Sequence[Iteration]) -> int | None:
    """Return the samples that all iterations fetched: batch size times fetches; None if it is not known.

    In each iteration those of one loader count, the one with the most fetches in it.
    """
    numbers = [next((size * count for loader, count in _fetches(iteration).most_common()
                     if (size := _batch_size(owners, loader)) is not None), 0) for iteration in iterations]
    return sum(numbers) or None


def _fetches(iteration: Iteration) -> Counter[int]:
    return Counter(interval.owner for interval in iteration.intervals if interval.phase == "data")


def _batch_size(owners: dict[int, dict[str, Any]], loader: int) -> int | None:
    size = owners.get(loader, {}).get("batch_size")
    return size if isinstance(size, int) and 0 < size < 2**53 else None
