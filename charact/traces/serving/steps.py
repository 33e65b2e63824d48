"""Steps of an inference server in a trace: by its annotations, else by graph replays, else by calls of the model."""

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from charact.traces.events import OPTIMIZER, DeviceEvent, Dropped, Launch, Mark, Operator, Thread, TraceEvents
from charact.traces.phases import AttributedTrace
from charact.traces.serving.input_shapes import Tokens, tokens_of_step
from charact.traces.serving.kernel_kinds import is_of_generation, kernel_kind
from charact.traces.serving.step_names import (
    PREPROCESS,
    StepKind,
    StepName,
    is_batch_call,
    is_generate_call,
    is_part,
    step_of_name,
)
from charact.traces.without_operator import replayed_graphs

_UNKNOWN = "not known from annotations, input shapes or graph replays"
_CUT = Dropped("timing", "serving steps", "cut at an end of the trace")
_OVERLAPPING = Dropped("timing", "serving steps", "overlapping an earlier one")


@dataclass
class Step:
    """A step: the host's span (empty for a graph replay), and the device's work that was launched in it."""

    thread: Thread | None
    start_ns: int
    end_ns: int
    evidence: str
    name: StepName = field(default_factory=StepName)
    kind: StepKind | None = None
    reason: str | None = None
    """Why the kind is not known."""
    work: list[DeviceEvent] = field(default_factory=list)
    is_cut: bool = False
    """Whether its first part is missing."""


@dataclass(frozen=True)
class ServingSteps:
    """The steps of a trace by time, and those that were left out."""

    steps: list[Step]
    graphs: dict[int | None, str]
    """Names of the graphs, by the correlation of their replays."""
    dropped: Counter[Dropped]


def find_steps(trace: AttributedTrace, stage: StepKind | None = None) -> ServingSteps | None:
    """Return the steps of an inference server; None for a trace of something else, such as a training.

    `stage` is the kind of all steps, if the server wrote a file for each kind.
    """
    events = trace.events
    if (trace.outlined.nodes or events.backwards or events.phase_marks
            or any(mark.name.startswith(OPTIMIZER) for mark in events.marks)):
        return None
    graphs = replayed_graphs(events)
    annotated = _annotated(events)
    replays = [] if annotated else _replays(trace, graphs)
    found = annotated or (replays and replays + _eager_calls(trace, graphs)) or _model_calls(trace)
    if not found:
        return None
    steps = _apart(found)
    dropped = Counter({_OVERLAPPING: sum(not _is_inside(step, steps) for step in found)})
    _assign_work(steps, events)
    whole = _without_cut(steps, events, graphs)
    dropped[_CUT] = len(steps) - len(whole) + any(
        event.launched_ns is None and event.kind == "kernel" for event in events.device)
    _set_kinds(whole, events, graphs, stage)
    return ServingSteps(whole, graphs, +dropped)


def _annotated(events: TraceEvents) -> list[Step]:
    """Return steps by the scheduler's annotations, else by those of a model runner's parts, else by calls."""
    steps = [_step(mark, "annotation", name) for mark in events.serving
             if (name := step_of_name(mark.name)) is not None]
    steps = steps or _of_parts([mark for mark in events.serving if is_part(mark.name)])
    return steps or [_step(mark, "call of run_batch") for mark in events.serving if is_batch_call(mark.name)]


def _step(mark: Mark, evidence: str, name: StepName | None = None) -> Step:
    return Step(mark.thread, mark.start_ns, mark.end_ns, evidence, name or StepName())


def _of_parts(marks: Iterable[Mark]) -> list[Step]:
    """Return steps that begin with the part that prepares the inputs, or, without such parts, with the first part."""
    by_thread: defaultdict[Thread, list[Mark]] = defaultdict(list)
    for mark in sorted(marks, key=lambda mark: (mark.start_ns, -mark.end_ns)):
        by_thread[mark.thread].append(mark)
    steps: list[Step] = []
    for of_thread in by_thread.values():
        names = [mark.name for mark in of_thread]
        first = PREPROCESS if PREPROCESS in names else names[0]
        begins = [place for place, name in enumerate(names) if name == first or place == 0]
        for begin, end in zip(begins, [*begins[1:], len(names)], strict=True):
            step = _step(of_thread[begin], "annotations of a step’s parts")
            step.end_ns = max(mark.end_ns for mark in of_thread[begin:end])
            step.is_cut = names[begin] != first
            steps.append(step)
    return steps


def _replays(trace: AttributedTrace, graphs: dict[int | None, str]) -> list[Step]:
    """Return a step for each graph replay, if there are more than marked iterations and graphs hold the attention."""
    events = trace.events
    if len(graphs) <= (len(trace.iterations) if trace.found.marks else 1):
        return []
    attention = [event.correlation in graphs for event in events.device if _is_attention(event, graphs)]
    if attention and not any(attention):  # graphs of parts of a model
        return []
    work: defaultdict[int | None, list[DeviceEvent]] = defaultdict(list)
    for event in events.device:
        if event.correlation in graphs:
            work[event.correlation].append(event)
    launches = [(events.launches[correlation], each) for correlation, each in work.items() if correlation is not None]
    return [Step(launch.thread, launch.start_ns, launch.start_ns, "graph replay", work=each)
            for launch, each in launches]


def _eager_calls(trace: AttributedTrace, graphs: dict[int | None, str]) -> list[Step]:
    """Return the outermost calls of modules that launch attention outside of graphs, such as prefills of the model."""
    steps = _apart([_step(call, "call of the model") for call in trace.outlined.modules])
    _assign_work(steps, trace.events)
    eager = [step for step in steps if any(event.correlation not in graphs and _is_attention(event, graphs)
                                           for event in step.work)]
    for step in eager:
        step.work = []
    return eager


def _model_calls(trace: AttributedTrace) -> list[Step]:
    """Return the calls of the model, the module with most time, if the trace is of a generation of tokens."""
    times: Counter[str] = Counter()
    for call in trace.outlined.modules:
        times[call.name] += call.end_ns - call.start_ns
    calls = [call for call in trace.outlined.modules if call.name == times.most_common(1)[0][0]]
    steps = [_step(call, "call of the model") for call in calls]
    if any(is_generate_call(mark.name) for mark in trace.events.serving):
        return steps
    shapes = Tokens(trace.events.operators)
    kinds = {tokens_of_step(shapes, step.thread, step.start_ns, step.end_ns) for step in steps}
    return steps if "decode" in kinds else []


def _apart(steps: Sequence[Step]) -> list[Step]:
    """Return steps by time; one that overlaps an earlier one is left out."""
    apart: list[Step] = []
    for step in sorted(steps, key=lambda step: (step.start_ns, -step.end_ns)):
        if not apart or step.start_ns >= apart[-1].end_ns:
            apart.append(step)
    return apart


def _is_inside(step: Step, steps: Sequence[Step]) -> bool:
    """Return whether a step is one of others, or lies in one on the same thread, as a second annotation does."""
    around = steps[bisect_right(steps, step.start_ns, key=lambda each: each.start_ns) - 1]
    return around is step or (around.thread == step.thread and step.end_ns <= around.end_ns)


def _assign_work(steps: Sequence[Step], events: TraceEvents) -> None:
    """Give each step with time on the host the device's work that its thread launched during it."""
    starts = [step.start_ns for step in steps]
    launching = {launch.thread for launch in events.launches.values()}
    for event in events.device:
        if event.launched_ns is None:
            continue
        place = bisect_right(starts, event.launched_ns) - 1
        if place < 0 or event.launched_ns >= steps[place].end_ns:
            continue
        thread = _thread_of(event, events)
        if thread is None or thread == steps[place].thread or steps[place].thread not in launching:
            steps[place].work.append(event)


def _thread_of(event: DeviceEvent, events: TraceEvents) -> Thread | None:
    launch = None if event.correlation is None else events.launches.get(event.correlation)
    return launch.thread if launch is not None else event.operator.thread if event.operator is not None else None


def _without_cut(steps: Sequence[Step], events: TraceEvents, graphs: dict[int | None, str]) -> list[Step]:
    """Return the steps whose work the trace holds whole: only the first and the last ones may lack some."""
    whole = [step for step in steps if not step.is_cut]
    if not any(step.work for step in whole):
        return whole
    matched = {event.correlation for event in events.device}
    launches = sorted(((launch.start_ns, launch.thread, correlation in matched)
                       for correlation, launch in events.launches.items() if _launches_kernels(launch)),
                      key=lambda each: each[0])
    numbers = Counter(graphs[correlation] for correlation in graphs)
    replays: dict[str, list[str]] = {}
    for correlation, of_replay in _by_correlation(events.device, graphs).items():
        replays.setdefault(graphs[correlation], [event.name for event in of_replay])
    while whole and _is_cut(whole[-1], launches, numbers, replays, graphs):
        whole.pop()
    return whole


def _launches_kernels(launch: Launch) -> bool:
    return "Launch" in launch.name and "HostFunc" not in launch.name


def _by_correlation(work: Iterable[DeviceEvent], graphs: dict[int | None, str]) -> dict[int | None, list[DeviceEvent]]:
    replays: defaultdict[int | None, list[DeviceEvent]] = defaultdict(list)
    for event in work:
        if event.correlation in graphs:
            replays[event.correlation].append(event)
    return replays


def _is_cut(step: Step, launches: Sequence[tuple[int, Thread, bool]], numbers: Counter[str],
            replays: dict[str, list[str]], graphs: dict[int | None, str]) -> bool:
    """Return whether the device's work of the last step is missing, or ends early.

    It does if its last launch has no work in the trace, or if that is its only replay, and the beginning of another
    graph's. One of several replays may be of a part of a model, or of a smaller model that drafts tokens.
    """
    if not step.work:
        return True
    first = bisect_left(launches, step.start_ns, key=lambda each: each[0])
    last = bisect_left(launches, step.end_ns, key=lambda each: each[0])
    of_step = [is_matched for _, thread, is_matched in launches[first:last] if thread == step.thread]
    if of_step and not of_step[-1]:
        return True
    replayed = {event.correlation for event in step.work if event.correlation in graphs}
    last_work = max(step.work, key=lambda event: event.launched_ns or 0)
    if replayed != {last_work.correlation} or numbers[graphs[last_work.correlation]] > 1:
        return False
    kernels = replays[graphs[last_work.correlation]]
    return any(len(kernels) < len(other) and other[:len(kernels)] == kernels for other in replays.values())


def _set_kinds(steps: Sequence[Step], events: TraceEvents, graphs: dict[int | None, str],
               stage: StepKind | None) -> None:
    generates = any(is_of_generation(event.name) for event in events.device)
    shapes = Tokens(events.operators)
    for step in steps:
        name = step.name
        step.kind, step.reason = name.kind, name.reason
        if step.kind is not None or step.reason is not None:
            continue
        by_shapes = tokens_of_step(shapes, step.thread, step.start_ns, step.end_ns)
        if stage is not None:
            step.kind, of_kind = stage, "the file’s name"
        elif by_shapes is not None:
            step.kind, of_kind = by_shapes, "input shapes"
        elif generates and _is_replayed_whole(step, graphs):
            step.kind, of_kind = "decode", "replay of a whole model’s graph"
        else:
            step.reason = _UNKNOWN
            continue
        step.evidence = f"{step.evidence}; kind from {of_kind}" if of_kind not in step.evidence else step.evidence


def _is_attention(event: DeviceEvent, graphs: dict[int | None, str]) -> bool:
    return kind_of(event, graphs) == "attention"


def _is_replayed_whole(step: Step, graphs: dict[int | None, str]) -> bool:
    """Return whether a step replays graphs and runs no attention outside of them, as graphs of parts do."""
    return (any(event.correlation in graphs for event in step.work)
            and not any(event.correlation not in graphs and _is_attention(event, graphs) for event in step.work))


def kind_of(event: DeviceEvent, graphs: dict[int | None, str]) -> str:
    """Return the kind of a device event; the operator that replays a graph does not decide those of its kernels."""
    operator: Operator | None = None if event.correlation in graphs else event.operator
    return kernel_kind(event.name, event.kind, operator.name if operator is not None else None)
