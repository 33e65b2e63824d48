"""The device that ran a traced program, and what the trace lacks of the device's work."""

import re
from collections import Counter

from charact.traces.events import TraceEvents
from charact.traces.reader import Trace

_DEVICE_CALL = re.compile(r"(cuda|cu|hip|xpu|ze|ur)[A-Z]")
"""Start of the names of functions of a device's runtime, such as cudaDeviceSynchronize."""
_CPU_OPERATORS = ("aten::mkldnn_", "aten::_mkldnn", "mkldnn::", "mkl::", "quantized::linear_prepack")
_LAUNCH = re.compile(r"launch(?!hostfunc)", re.IGNORECASE)
_OTHER_DEVICE = re.compile(r"(mtia|hpu|npu|privateuse)1?_")
"""Start of the categories of events of devices that are not read."""
_RECORD_DEVICE = "profile with ProfilerActivity.CUDA, too"
_MAX_LISTED = 3


def recorded_device(trace: Trace) -> tuple[str, str | None]:
    """Return the kind of the device that ran the program, and the name of the most used one; None if it is unknown.

    A device that the trace does not list has the name that all listed ones share. If a GPU is listed, but the trace has
    neither its work nor calls to it, and no sign of the processor, the program may have run on either: "n/a".
    """
    events = trace.events
    others = [match[1] for category in events.unread if (match := _OTHER_DEVICE.match(category))]
    if events.device or events.launches or events.unlinked or _device_calls(events):
        kind = "cuda"
    elif others:
        kind = others[0]
    else:
        kind = "n/a" if trace.devices and not _ran_on_cpu(events) else "cpu"
    uses = Counter(event.device for event in events.device)
    most_used = max(uses, key=lambda device: uses[device], default=None)
    named = [device["name"] for device in trace.devices if str(device["index"]) == most_used and device["name"]]
    shared = {device["name"] for device in trace.devices if device["name"]}
    name = named[0] if named else shared.pop() if len(shared) == 1 else None
    return kind, None if kind == "cpu" else name


def not_recorded(trace: Trace) -> list[str]:
    """Return sentences on the device's work that the trace, or the record, lacks."""
    events, spots = trace.events, []
    calls = _device_calls(events)
    calls_by_name = events.unlinked + Counter(launch.name for launch in events.launches.values())
    num_launches = sum(number for name, number in calls_by_name.items() if _LAUNCH.search(name))
    if not events.device and num_launches:
        spots.append(f"the trace has launches ({num_launches:,}) but no kernels, so that times are those of the host: "
                     f"{_RECORD_DEVICE}")
    elif not events.device and calls:
        listed = "a GPU is listed and" if trace.devices else "the program called"
        called = f"{', '.join(calls[:_MAX_LISTED])}{' called' if trace.devices else ''}"
        spots.append(f"{listed} {called}, but no GPU activity is recorded, so that times are those of the host: "
                     f"{_RECORD_DEVICE}")
    elif not events.device and trace.devices and not events.unread and not _ran_on_cpu(events):
        spots.append("a GPU is listed, but no GPU activity is recorded, so that times are those of the host: if the "
                     f"program used it, {_RECORD_DEVICE}")
    if events.unread:
        noun = "category" if len(events.unread) == 1 else "categories"
        spots.append(f"events of {noun} {', '.join(events.unread)} are not read, so that no table has their work")
    return spots


def _ran_on_cpu(events: TraceEvents) -> bool:
    """Return whether memory or operators show that the program ran on the processor."""
    if events.allocated:
        return all(each.device_type == 0 for each in events.allocated)
    return any(operator.name.startswith(_CPU_OPERATORS) for operator in events.operators)


def _device_calls(events: TraceEvents) -> list[str]:
    """Return the names of calls to a device's runtime, also of those that were recorded as operators."""
    names = {operator.name for operator in events.operators}
    names |= {launch.name for launch in events.launches.values()} | set(events.unlinked)
    return sorted(name for name in names if _DEVICE_CALL.match(name))
