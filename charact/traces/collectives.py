"""Rows of the table `collectives` from a trace: what each collective exchanges, and how much of it is exposed."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from charact.record.schema import Rows
from charact.traces.collective_names import kernel_operation, operation_name
from charact.traces.device_events import covered_ns, is_communication, is_copy, union
from charact.traces.events import BEFORE_ALL_NS, DeviceEvent, Exchange, Mark, Operator, TraceEvents
from charact.traces.phases import AttributedTrace

_HOST_BACKENDS = ("gloo:", "mpi:", "ucc:")
_EXCHANGES = (*_HOST_BACKENDS, "c10d::", "nccl:", "record_param_comms")
"""Prefixes of the names of operators that belong to a collective; all others compute."""


class _Call(NamedTuple):
    """A collective of a trace, by the time at which the host called it."""

    called_ns: int
    start_ns: int
    end_ns: int
    exposed_ns: int
    exchange: Exchange
    on_device: bool


def collective_rows(trace: AttributedTrace) -> Rows:
    """Return rows of the table `collectives`, in the order of calls.

    On a device, a collective takes the time of its kernel. It is exposed while no kernel that computes and no fill
    runs; copies and other collectives do not hide it. On a host, as with gloo, it takes the time of its span, and is
    exposed while no operator computes in any thread. Where two collectives are exposed at the same time, the time
    belongs to the one that started first. Collectives outside of all iterations are left out; their kernels or
    operators are counted as dropped.
    """
    calls = _on_device(trace.events) or _on_host(trace.events)
    starts = [iteration.start_ns for iteration in trace.iterations]
    counts: Counter[str] = Counter()
    rows: Rows = []
    for call in sorted(calls, key=lambda call: call.called_ns):
        phase = trace.phase_at(call.called_ns)
        if phase is None:
            continue
        number, exchange = bisect_right(starts, call.called_ns) - 1, call.exchange
        group = exchange.group or "n/a"
        rows.append({
            "iteration": number, "phase": phase if phase != "other" else "communication", "group": group,
            "group_size": exchange.group_size,
            "sequence": counts[group] if exchange.sequence is None else exchange.sequence,
            "operation": exchange.operation, "bytes": exchange.num_bytes,
            "start_s": (call.called_ns - starts[number]) / 1e9, "wait_s": None, "exposed_s": call.exposed_ns / 1e9,
            "device_s": (call.end_ns - call.start_ns) / 1e9 if call.on_device else None,
        })
        counts[group] += 1
    return rows


def _on_device(events: TraceEvents) -> list[_Call]:
    kernels = sorted(filter(is_communication, events.device), key=lambda event: event.start_ns)
    computing = [(event.start_ns, event.end_ns) for event in events.device
                 if not is_communication(event) and not is_copy(event)]
    return [_Call(kernel.launched_ns, kernel.start_ns, kernel.end_ns, alone_ns, _exchange(events, kernel), True)
            for kernel, alone_ns in zip(kernels, _exposed(kernels, computing), strict=True)
            if kernel.launched_ns is not None]


def _exchange(events: TraceEvents, event: DeviceEvent) -> Exchange:
    """Return what a kernel exchanges: as recorded with it, else with its operator, else by its name."""
    if event.exchange is not None:
        return event.exchange
    launch = None if event.correlation is None else events.launches.get(event.correlation)
    for external_id in (event.external_id, launch.external_id if launch else None):
        if external_id is not None and external_id in events.exchanges:
            return events.exchanges[external_id]
    return Exchange(kernel_operation(event.name))


def _on_host(events: TraceEvents) -> list[_Call]:
    spans = sorted((each for each in events.operators if each.name.startswith(_HOST_BACKENDS)),
                   key=lambda span: span.start_ns)
    computing = [(each.start_ns, each.end_ns) for each in events.operators if not each.name.startswith(_EXCHANGES)]
    # What a span exchanges is known by order, if the host called as many collectives of its name.
    names = [operation_name(span.name.partition(":")[2]) for span in spans]
    called: dict[str, list[Exchange]] = {}
    for external_id in sorted(events.exchanges, key=lambda number: events.by_id[number].start_ns):
        called.setdefault(events.exchanges[external_id].operation, []).append(events.exchanges[external_id])
    known = {name: iter(called[name]) for name, number in Counter(names).items() if len(called.get(name, ())) == number}
    return [_Call(span.start_ns, span.start_ns, span.end_ns, alone_ns,
                  next(known[name]) if name in known else Exchange(name), False)
            for span, alone_ns, name in zip(spans, _exposed(spans, computing), names, strict=True)]


def _exposed(spans: Sequence[DeviceEvent | Mark | Operator], computing: Sequence[tuple[int, int]]) -> list[int]:
    """Return the exposed time (ns) of each span, in order; time that several spans share counts for the first."""
    covered, reached_ns, exposed = union(computing), BEFORE_ALL_NS, []
    for span in spans:
        begin_ns = max(span.start_ns, reached_ns)
        exposed.append(max(0, span.end_ns - begin_ns - covered_ns(covered, begin_ns, span.end_ns)))
        reached_ns = max(span.end_ns, reached_ns)
    return exposed
