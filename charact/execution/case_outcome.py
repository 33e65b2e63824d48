"""Manifest entry of a case: its coordinates and its outcome."""

from typing import Any

from charact.core.errors import UserError
from charact.core.units import scale
from charact.execution.case import Case
from charact.execution.out_of_memory import is_out_of_memory, reason_line, requested_bytes
from charact.machine.facts import device_name


def case_entry(case: Case, name: str | None = None) -> dict[str, Any]:
    """Return a case's entry in the manifest, before anything has run.

    `name` is the device's name, needed if the device is not on this machine.
    """
    return {
        "case": case.id, "workload": case.workload.name, "variant": case.workload.variant,
        "input_kind": case.workload.input_kind, "input_size": case.input_size, "batch_size": case.batch_size,
        "mode": case.mode, "precision": case.precision, "device": str(case.device),
        "device_name": name or device_name(case.device), "data": case.data.name, "num_parameters": None,
        "source": case.workload.source, "status": "ok", "reason": None, "requested_bytes": None, "passes": {},
        **({"parallel": case.parallel, "rank": 0, "world_size": case.num_ranks,
            "global_batch_size": case.batch_size * case.num_ranks} if case.parallel else {}),
    }


def failure(error: Exception) -> dict[str, Any]:
    """Return the changes that an error makes in the entry: status, reason, and the size of a failed allocation."""
    if is_out_of_memory(error):
        return {"status": "oom", "reason": f"out of memory: {reason_line(error)}",
                "requested_bytes": requested_bytes(error)}
    return {"status": "error", "reason": one_line(error)}


def one_line(error: BaseException) -> str:
    """Return an error as one line: its type, except of `UserError`, and the first line of its message."""
    first = str(error).strip().partition("\n")[0]
    if isinstance(error, UserError):
        return first
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def size(num_bytes: float) -> str:
    """Return a number of bytes as text, e.g. 1.5 GiB."""
    factor, unit = scale([num_bytes], "B")
    return f"{num_bytes * factor:.4g} {unit}"
