"""Manifest entry of a case: its coordinates and its outcome."""

import re
from typing import Any

from charact.core.errors import UserError
from charact.core.units import scale
from charact.execution.case import Case
from charact.execution.out_of_memory import is_out_of_memory, reason_line, requested_bytes
from charact.machine.facts import device_name
from charact.record.manifest import CaseEntry
from charact.record.schema import GENERATING_MODES

_ONEDNN = re.compile("could not create a (?:primitive )?descriptor for (?:the|an?) (.+?) primitive")
_NEEDS_INSTRUCTIONS = re.compile(r"(\w+): \w+ path needs the cpu support ([\w, ]+)")
_NOT_IMPLEMENTED = re.compile(r"^\"(\w+)\" not implemented for '(BFloat16|Half)'")
"""Messages of PyTorch if an operator has no kernel for a dtype, or none for this CPU."""

def case_entry(case: Case, name: str | None = None) -> CaseEntry:
    """Return a case's entry in the manifest, before anything has run.

    `name` is the device's name, needed if the device is not on this machine.
    """
    entry = CaseEntry(
        case.id, "ok", workload=case.workload.name, variant=case.workload.variant, input_kind=case.workload.input_kind,
        input_size=case.input_size, batch_size=case.batch_size, mode=case.mode, precision=case.precision,
        device=str(case.device), device_name=name or device_name(case.device), data=case.data.name,
        source=case.workload.source, attention=case.attention)
    if case.mode in GENERATING_MODES:
        entry.update(output_size=case.output_size, cache=case.cache)
    if case.lora_rank:
        entry.update(lora_rank=case.lora_rank)
    if case.parallel:
        entry.update(parallel=case.parallel, rank=0, world_size=case.num_ranks,
                     global_batch_size=case.batch_size * case.num_ranks)
    return entry


def failure(error: Exception, precision: str | None = None) -> dict[str, Any]:
    """Return the changes that an error makes in the entry: status, reason, and the size of a failed allocation."""
    if is_out_of_memory(error):
        return {"status": "oom", "reason": f"out of memory: {reason_line(error)}",
                "requested_bytes": requested_bytes(error)}
    return {"status": "error", "reason": one_line(error, precision)}


def one_line(error: BaseException, precision: str | None = None) -> str:
    """Return an error as one line: its type, except of `UserError`, and the first line of its message.

    Where that line ends with a colon, as in "backend='inductor' raised:", the line that follows is added, and of a C++
    compiler its first error. A kernel that the case's precision lacks is reported as such.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    first = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    if first.endswith("C++ compile error"):
        first += next((f": {line.partition('error: ')[2]}" for line in lines if "error: " in line), "")
    if isinstance(error, UserError):
        return first
    if isinstance(error, RuntimeError) and (missing := missing_kernel(first, precision)):
        return missing
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def missing_kernel(message: str, precision: str | None) -> str | None:
    """Return text for an operator without a kernel for the precision, with a remedy; None for other messages."""
    remedy = "" if precision == "fp32" else ": use --precision fp32"
    number = precision or "this precision"
    if found := _ONEDNN.search(message):
        name = found[1].removesuffix(" forward propagation").removesuffix(" propagation")
        article = "an" if name[0] in "aeioL" else "a"
        return f"this CPU cannot run {article} {name} in {number} (oneDNN has no kernel for it){remedy}"
    if found := _NEEDS_INSTRUCTIONS.search(message):
        return f"this CPU cannot run {found[1]} in {number} (it needs {found[2].strip()}){remedy}"
    if found := _NOT_IMPLEMENTED.search(message):
        dtype = {"BFloat16": "bfloat16", "Half": "float16"}[found[2]]
        return f"PyTorch has no kernel of {found[1]} for {dtype} on this device{remedy}"
    if message == "could not create a primitive":
        return f"oneDNN cannot create the kernel of an operator in {number} on this CPU{remedy}"
    return None


def size(num_bytes: float) -> str:
    """Return a number of bytes as text, e.g. 1.5 GiB."""
    factor, unit = scale([num_bytes], "B")
    return f"{num_bytes * factor:.4g} {unit}"
