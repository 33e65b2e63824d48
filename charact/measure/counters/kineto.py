"""What the operator pass's trace tells of the device, read by `charact.traces.counters`, as for imported traces."""

from typing import Literal

from charact.machine.facts import gpu_facts
from charact.measure.counters._support.protocol import Counter, Refusal
from charact.traces import counters as of_traces


class KinetoCounters:
    """Kernels, copies and gaps between them, from the trace that the operator pass writes anyway."""

    name = of_traces.SOURCE
    cost = "none beside the operator pass, whose profiler slows the host: the device may wait longer than without"
    devices = frozenset({"cuda"})
    reads: Literal["device"] = "device"
    taken: Literal["trace"] = "trace"
    counters = tuple(Counter(name, definition, method, of_traces.SCOPE)
                     for name, (definition, method) in of_traces.DEFINITIONS.items())

    def available(self) -> Refusal | None:
        """Where there is a GPU."""
        gpus, reason = gpu_facts()
        return None if gpus else Refusal(f"kernels run on GPUs only: {reason}")


SOURCE = KinetoCounters()
