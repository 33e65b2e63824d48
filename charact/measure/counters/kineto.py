"""Counters from the operator pass's trace, computed by `charact.traces.counters`, as for imported traces."""


from charact.machine.facts import gpu_facts
from charact.measure.counters._support.protocol import Counter, CounterSource, Unavailable
from charact.traces import counters as of_traces


class KinetoCounters(CounterSource):
    """Kernels, copies and the gaps between them, from the operator pass's trace."""

    name = of_traces.SOURCE
    cost = "none in addition to the operator pass, whose profiler slows the host, so that the device may wait longer"
    taken = "trace"
    tried_on = "NVIDIA H200"
    counters = tuple(Counter(name, definition, method, of_traces.SCOPE)
                     for name, (definition, method) in of_traces.DEFINITIONS.items())

    def available(self) -> Unavailable | None:
        """Return why the source cannot be used; it needs a GPU."""
        gpus, reason = gpu_facts()
        return None if gpus else Unavailable(f"kernels run on GPUs only: {reason}")


SOURCE = KinetoCounters()
