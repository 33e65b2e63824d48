"""Traces of inference servers built by hand, with known times in microseconds."""

from collections.abc import Iterable, Sequence

from support.traces import MAIN, TraceMaker

Kernels = Sequence[tuple[str, float]]
"""Names of kernels with their times."""
LAYER: Kernels = (("rms_norm_kernel", 10), ("sm90_gemm_bf16", 50), ("flash_fwd_splitkv_kernel", 30),
                  ("reshape_and_cache_flash_kernel", 10))
"""A layer of 100 µs."""


class ServerTrace(TraceMaker):
    """Collects the events of a server: steps on the host, and work on the device that begins at given times."""

    def __init__(self, *, hip: bool = False) -> None:
        super().__init__(deviceProperties=[{"id": 0, "name": "Test GPU"}])
        self._prefix = "hip" if hip else "cuda"

    def launch(self, call: str, at: float, dur: float = 5, tid: int = MAIN, **args: int) -> int:
        """Add a call of the runtime; returns its correlation."""
        self._id += 1
        self.event("cuda_runtime", f"{self._prefix}{call}", at, dur, tid, correlation=self._id, **args)
        return self._id

    def work(self, correlation: int, name: str, ts: float, dur: float, stream: int = 7, cat: str = "kernel",
             **args: object) -> None:
        """Add work of the device."""
        self.event(cat, name, ts, dur, stream, device=0, stream=stream, correlation=correlation, **args)

    def replay(self, at: float, start: float, kernels: Kernels, *, stream: int = 7, tid: int = MAIN,
               grid: int = 1) -> float:
        """Add a graph's replay, whose kernels run one after another from a start on; returns their end."""
        correlation = self.launch("GraphLaunch", at, tid=tid)
        for name, dur in kernels:
            self.work(correlation, name, start, dur, stream, grid=[grid, 1, 1], block=[32, 1, 1])
            start += dur
        return start

    def eager(self, at: float, start: float, kernels: Kernels, *, stream: int = 7, tid: int = MAIN,
              by: int | None = None) -> float:
        """Add kernels that are launched one by one, a microsecond apart; returns their end."""
        launcher = {} if by is None else {"External id": by}
        for place, (name, dur) in enumerate(kernels):
            self.work(self.launch("LaunchKernel", at + place, 1, tid, **launcher), name, start, dur, stream)
            start += dur
        return start

    def copy(self, at: float, start: float, dur: float, *, returned: float | None = None, tid: int = MAIN,
             stream: int = 7, name: str = "Memcpy DtoH (Device -> Pinned)") -> None:
        """Add a copy; with `returned`, the call waits for it until then."""
        call, length = ("MemcpyAsync", 2.0) if returned is None else ("Memcpy", returned - at)
        self.work(self.launch(call, at, length, tid), name, start, dur, stream, "gpu_memcpy")


def decoding(names: Iterable[str], *, hip: bool = False, layers: int = 4, tail: bool = True) -> ServerTrace:
    """Return a trace of steps every 1,000 µs: 100 on the host until the replay is launched, 400 of kernels.

    The graph begins 20 µs after its launch. A copy that the host waits for, of 10 µs, follows after 5 µs.
    """
    made = ServerTrace(hip=hip)
    for number, name in enumerate(names):
        at = 1000.0 * number
        made.mark(name, at, 600)
        end = made.replay(at + 100, at + 120, [*LAYER] * layers)
        if tail:
            made.copy(end - 50, end + 5, 10, returned=end + 25)
    return made
