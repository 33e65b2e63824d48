"""charact: profiler of time, memory and device utilization of deep-learning workloads."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from charact.profiler import Profiler, profile
    from charact.record.reader import Run, load_run
    from charact.record.runs import load_runs
    from charact.workload.base import Workload

__all__ = ["Profiler", "Run", "Workload", "__version__", "load_run", "load_runs", "profile"]

_HOMES = {
    "Profiler": "charact.profiler",
    "profile": "charact.profiler",
    "Run": "charact.record.reader",
    "load_run": "charact.record.reader",
    "load_runs": "charact.record.runs",
    "Workload": "charact.workload.base",
}


def __getattr__(name: str) -> Any:
    """Import on first use, so that `charact --help` needs neither pandas nor torch."""
    if name == "__version__":
        from importlib.metadata import version

        return version("charact")
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'charact' has no attribute '{name}'")
