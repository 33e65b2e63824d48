"""Conversion of an event log to the cases and tables of a record. No torch in here."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from charact.core.errors import UserError
from charact.core.timeline import Iteration, Mode, iteration_rows, total_s
from charact.measure.script.program.facts import SliceTotals, program_iteration_rows, program_times, settings_facts
from charact.measure.script.program.notes import ProgramNotes
from charact.measure.script.spans.blind_spots import NO_DEVICE_TIMES, blind_spots, is_compiled_whole, unwatched
from charact.measure.script.spans.collectives import Arrival, Arrivals, collective_rows, with_waiting
from charact.measure.script.spans.event_log import Damage, EventLogReader, num_slices
from charact.measure.script.spans.frame_samples import Samples
from charact.measure.script.spans.iterations import join_cycles
from charact.measure.script.spans.pass_results import PassNotes
from charact.measure.script.spans.recorder import Kind, Slice
from charact.measure.script.spans.segmenter import Segmenter
from charact.record.in_progress import NOTES, SLICES
from charact.record.manifest import CaseEntry
from charact.record.manifest_passes import CollectivesPass, CoreUse, FramesPass, TimingPass
from charact.record.manifest_program import ProgramFacts
from charact.record.schema import PHASES, SAMPLED_PHASES, Rows

MAX_WARMUP_ITERATIONS = 3
"""Largest number of iterations left out as warm-up by default; at most a quarter of all are."""


@dataclass
class EventLog:
    """Contents of an event log: the program's iterations and notes."""

    iterations: list[Iteration]
    owners: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Facts of models, optimizers and loaders, by owner ID."""
    names: dict[int, str] = field(default_factory=dict)
    """Names of global variables that hold them."""
    device: dict[str, Any] | None = None
    """Accelerator of the program's tensors: device, name, and the reason why its times are n/a, or None."""
    ending: str | None = None
    """How the program ended; None if it was killed."""
    ended_s: float | None = None
    """When it ended, on the clock of the day."""
    traceback: str | None = None
    """Traceback of the error that ended it; None if none did."""
    span_ns: tuple[int, int] | None = None
    """Its start and end, on the clock of the iterations; None if it was not recorded to its end."""
    process_peak_bytes: int | None = None
    """Largest resident set of the process, until its end."""
    arrivals: Arrivals = field(default_factory=lambda: Arrivals([]))
    """Collectives that this rank called."""
    hung: str | None = None
    """Where it made no progress for longer than the user allowed; None if it did not hang."""
    no_collectives: str | None = None
    """Why there are none, if it is a rank."""
    num_lost_collectives: int = 0
    """Number of collectives that were overwritten before they were read."""
    rule: dict[str, Any] = field(default_factory=dict)
    """How warm-up and measurement ended, unless the program's end did it."""
    core_use: dict[str, Any] | None = None
    """Use of the cores over the timed iterations, see `charact.machine.core_use`."""
    num_children: int = 0
    """Number of child processes that trained or imported PyTorch; they are not recorded."""
    num_threads: int = 0
    """Number of other threads that trained; they are not recorded."""
    torch_facts: dict[str, Any] | None = None
    """Facts that only PyTorch knows, see `charact.machine.facts.torch_facts`, and its default number of threads."""
    passes: PassNotes = field(default_factory=PassNotes)
    """Results of the passes after the timing."""
    program_notes: ProgramNotes = field(default_factory=ProgramNotes)
    """The program's settings, and what happened besides spans."""
    totals: SliceTotals = field(default_factory=SliceTotals)
    """Totals of its spans."""
    samples: Samples = field(default_factory=Samples)
    """Stack samples of the time while no phase ran."""
    compiled_whole: bool = False
    """Whether anything was compiled outside of all spans."""
    full: bool = False
    """Whether recording ended because the event log reached its limit."""
    damage: list[Damage] = field(default_factory=list)
    """Damaged files, whose rest is lost."""


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


def read_event_log(directory: Path) -> EventLog:
    """Read a whole event log."""
    reader = EventLogReader(directory)
    slices: list[Slice] = list(reader.slices())
    if SLICES in reader.damage:
        del slices[num_slices(reader.damage[SLICES].at_byte):]
    segmenter = Segmenter(ends_marked=any(one.kind is Kind.END for one in slices))
    iterations = [*segmenter.feed(slices), *segmenter.finish()]
    if not segmenter.ends_marked:
        iterations = join_cycles(iterations)
    # Only a damaged log contains iterations without duration.
    log = EventLog([one for one in iterations if one.end_ns > one.start_ns],
                   compiled_whole=is_compiled_whole(slices), totals=SliceTotals(slices))
    notes = reader.notes()
    collectives = [note for note in notes if note["note"] == "collectives"]
    log.arrivals = Arrivals([Arrival(*row) for note in collectives for row in note["rows"]])
    log.num_lost_collectives = sum(note["lost"] for note in collectives)
    if len(log.arrivals):  # a rank waits in its backwards
        log.iterations = [with_waiting(iteration, log.arrivals) for iteration in log.iterations]
    log.damage, log.passes.damaged = list(reader.damage.values()), NOTES in reader.damage
    for note in notes:
        if note["note"] == "owner":
            log.owners[note["owner"]] = note
        elif note["note"] == "names":
            log.names |= {int(owner): name for owner, name in note["names"].items()}
        elif note["note"] == "device":
            log.device = note
        elif note["note"] == "end":
            log.ending, log.ended_s, log.traceback = note["ending"], note.get("time_s"), note.get("traceback")
            log.span_ns, log.process_peak_bytes = note.get("span_ns"), note.get("process_peak_bytes")
        elif note["note"] == "rule":
            log.rule = note["facts"]
        elif note["note"] == "core use":
            log.core_use = note["facts"]
        elif note["note"] == "unwatched":
            log.num_children += note["children"]
            log.num_threads += note["threads"]
        elif note["note"] == "torch":
            log.torch_facts = note["facts"]
        elif note["note"] == "frames":
            log.samples.add(note)
        elif note["note"] == "hung":
            log.hung = note["text"]
        elif note["note"] == "no collectives":
            log.no_collectives = note["reason"]
        elif note["note"] == "full":
            log.full = True
        log.passes.add(note)
        log.program_notes.add(note)
    return log


def script_cases(log: EventLog, name: str, source: str, skip: int | None, limit: int | None,
                 passes: Sequence[str] = ()) -> list[tuple[CaseEntry, dict[str, Rows]]]:
    """Return the cases of a profiled program, training and inference, each with its tables.

    Args:
        log: contents of the event log.
        name: of the program.
        source: path of the program.
        skip: iterations to leave out at the start; None for a warm-up.
        limit: maximum number of iterations; None for all.
        passes: requested passes after the timing; the first case has all of them.
    """
    cases: list[tuple[CaseEntry, dict[str, Rows]]] = []
    for training in (True, False):
        of_mode = [one for one in log.iterations if one.training == training]
        undisturbed = iterations = log.passes.timed(of_mode)
        if training or not cases:
            num_skipped = _num_warmup(len(iterations), limit) if skip is None else skip
            iterations = iterations[num_skipped:][:limit]
        else:
            num_skipped = 0
        if iterations:
            program = None if cases else _program(log)
            entry, tables = _case(log, name, source, iterations, undisturbed, program)
            timing = entry.passes.timing
            timing.update(num_warmup_iterations=num_skipped, num_pass_iterations=len(of_mode) - len(undisturbed),
                          ended_by="max_iterations" if len(iterations) == limit else "program")
            timing.update(**log.rule)
            tables["program_iterations"] = program_iteration_rows(
                log.program_notes, log.iterations, of_mode, iterations, undisturbed)
            if cases:
                log.passes.add_to_evaluation(entry, tables, of_mode)
            else:
                log.passes.add_to(entry, tables, passes, of_mode)
            cases.append((entry, tables))
    return cases


def _program(log: EventLog) -> ProgramFacts:
    """Return facts of the whole program: its times, its settings and its peak memory."""
    names = {owner: _name(log, facts) for owner, facts in log.owners.items()}
    program = program_times(log.program_notes, log.span_ns, log.iterations, log.passes)
    program.process_peak_bytes = log.process_peak_bytes
    program.settings = settings_facts(log.program_notes, log.owners, names, log.totals)
    return program


def _num_warmup(num_iterations: int, limit: int | None) -> int:
    beyond = 0 if limit is None else num_iterations - limit
    return min(MAX_WARMUP_ITERATIONS, max(num_iterations // 4, beyond))


def _case(log: EventLog, name: str, source: str, iterations: list[Iteration], undisturbed: Sequence[Iteration],
          program: ProgramFacts | None) -> tuple[CaseEntry, dict[str, Rows]]:
    """Return a case from its timed iterations, with the tables `iterations` and `collectives`."""
    parts = _parts(log, iterations)
    rows = iteration_rows(iterations, lambda each: parts.get((each.owner, each.phase, each.mode)))
    intervals = [interval for iteration in iterations for interval in iteration.intervals]
    clock = "device_s" if all(row["device_s"] is not None for row in rows) else "host_s"
    other_s, wall_s = sum(row[clock] for row in rows if row["phase"] == "other"), sum(row[clock] for row in rows)
    training = iterations[0].training
    compiling_ns = sum(interval.host_ns for iteration in log.iterations if iteration.training == training
                       for interval in iteration.intervals if interval.compiling)
    mode = "train" if training else "infer"
    entry = CaseEntry(
        name if name == mode else f"{name}-{mode}", "ok", name, mode=mode, precision="as written",
        device=_device(log, on_device=any(row["device_s"] is not None for row in rows)),
        device_name=log.device["name"] if log.device else None, data="as written", source=source,
        batch_size=loaders_batch_size(log.owners, iterations),
        num_parameters=_num_parameters(log, {each.owner for each in intervals if each.phase == "forward"} - {0}))
    entry.passes["timing"] = TimingPass(
        "ok", program=program, num_iterations=len(iterations), warmup_ended_by="number",
        median_s=median(iteration.host_ns / 1e9 for iteration in iterations), attributed_frac=1 - other_s / wall_s,
        inferred_frac=sum(each.duration_ns for each in intervals if each.inferred) / 1e9 / wall_s,
        compile_s=compiling_ns / 1e9 if compiling_ns else None, blind_spots=_blind_spots(log, iterations),
        num_samples=num_samples(log.owners, iterations),
        num_loader_workers=_num_loader_workers(log.owners, iterations),
        core_use=None if log.core_use is None else msgspec.convert(log.core_use, CoreUse))
    if (frames := _frames(log, iterations, undisturbed, program)) is not None:
        entry.passes["frames"] = frames
    tables = {"iterations": rows}
    if len(log.arrivals):
        tables["collectives"] = [row for number, iteration in enumerate(iterations)
                                 for row in collective_rows(number, iteration, log.arrivals)]
        entry.passes["collectives"] = CollectivesPass("ok", num_lost=log.num_lost_collectives,
                                                      backend=log.arrivals.backend)
    elif log.no_collectives is not None:
        entry.passes["collectives"] = CollectivesPass("skipped", log.no_collectives)
    return entry, tables


def _blind_spots(log: EventLog, iterations: Sequence[Iteration]) -> list[str]:
    spots = [f"the event log was damaged: {damage}" for damage in log.damage]
    if log.device and log.device["reason"]:
        spots.append(NO_DEVICE_TIMES.format(log.device["device"], log.device["reason"]))
    return [*spots, *unwatched(log.num_children, log.num_threads), *blind_spots(
        iterations, compiled_whole=log.compiled_whole, full=log.full,
        any_loader=any(facts["kind"] == "loader" for facts in log.owners.values()),
        inferences=[each for each in log.iterations if not each.training], samples=log.samples)]


def _frames(log: EventLog, iterations: Sequence[Iteration], undisturbed: Sequence[Iteration],
            program: ProgramFacts | None) -> FramesPass | None:
    """Return the lines that a case's iterations ran most, and with the program's facts those outside of iterations."""
    host_s, _ = total_s(iterations)
    wall_s = sum(host_s.values())
    shares = {phase: host_s.get(phase, 0.0) / wall_s for phase in SAMPLED_PHASES if phase in PHASES}
    if program is not None and program.duration_s:
        outside_s = (program.before_s or 0.0) + (program.between_s or 0.0) + (program.after_s or 0.0)
        shares["outside"] = outside_s / program.duration_s
    return log.samples.facts(iterations, log.iterations, shares, undisturbed, log.passes.spans_ns)


def _device(log: EventLog, *, on_device: bool) -> str:
    """Return the name of the program's device; the first CUDA device has no index."""
    if log.device is None:  # on a CPU, or in the log of an older version
        return "cuda" if on_device else "cpu"
    device = str(log.device["device"])
    return "cuda" if device == "cuda:0" else device


def _num_parameters(log: EventLog, models: set[int]) -> int | None:
    """Return the number of parameters of the models that an optimizer updates, else of all; None if there are none.

    So a copy that only averages or follows the trained weights does not count.
    """
    trained = {model for one in log.owners.values() if one["kind"] == "optimizer" for model in one["models"]}
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
    seen = {(one.owner, one.phase, one.mode) for iteration in iterations for one in iteration.intervals
            if one.owner in names}
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
    facts = [log.owners[owner] for owner in sorted(spans) if owner in log.owners]
    models = [one for one in facts if one["kind"] == "model" and one["num_parameters"]]
    optimizers = [one for one in facts if one["kind"] == "optimizer"]
    latest: dict[str, list[dict[str, Any]]] = defaultdict(list)
    """Models that ran at the same time, by name; each is the latest of its class."""
    names: dict[int, str] = {}
    for one in models:
        name = _name(log, one)
        begins = spans[one["owner"]][0]
        index = next((index for index, before in enumerate(latest[name])
                      if before["class"] == one["class"] and spans[before["owner"]][1] < begins), len(latest[name]))
        latest[name][index:index + 1] = [one]
        names[one["owner"]] = name if index == 0 else f"{name} #{index + 1}"
    for one in optimizers:
        served = [names[model] for model in one["models"] if model in names]
        names[one["owner"]] = " + ".join(served) or _name(log, one)
    return names, {one["owner"] for one in optimizers}


def _name(log: EventLog, facts: dict[str, Any]) -> str:
    return str(log.names.get(facts["owner"]) or facts.get("variable") or facts["class"])


def _num_loader_workers(owners: dict[int, dict[str, Any]], iterations: Sequence[Iteration]) -> int | None:
    """Return the number of worker processes of the loader with the most batches; None if it is not known."""
    fetches = Counter(interval.owner for one in iterations for interval in one.intervals if interval.phase == "data")
    numbers = [owners.get(loader, {}).get("num_workers") for loader, _ in fetches.most_common()]
    return next((number for number in numbers if isinstance(number, int)), None)


def loaders_batch_size(owners: dict[int, dict[str, Any]], iterations: Sequence[Iteration]) -> int | None:
    """Return the samples of an iteration, from the loader with the most batches; None if it is not known.

    If gradients are accumulated over several batches, all of them count.
    """
    of_iterations = [_fetches(one) for one in iterations]
    for loader, _ in sum(of_iterations, Counter[int]()).most_common():
        size = _batch_size(owners, loader)
        if size is not None:
            return size * round(median(fetches[loader] for fetches in of_iterations if loader in fetches))
    return None


def num_samples(owners: dict[int, dict[str, Any]], iterations: Sequence[Iteration]) -> int | None:
    """Return the samples that all iterations fetched: batch size times fetches; None if it is not known.

    In each iteration those of one loader count, the one with the most fetches in it.
    """
    numbers = [next((size * count for loader, count in _fetches(one).most_common()
                     if (size := _batch_size(owners, loader)) is not None), 0) for one in iterations]
    return sum(numbers) or None


def _fetches(iteration: Iteration) -> Counter[int]:
    return Counter(interval.owner for interval in iteration.intervals if interval.phase == "data")


def _batch_size(owners: dict[int, dict[str, Any]], loader: int) -> int | None:
    size = owners.get(loader, {}).get("batch_size")
    return size if isinstance(size, int) and 0 < size < 2**53 else None
