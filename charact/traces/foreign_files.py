"""Files of other tools that are taken for traces: what they are by their first bytes, and what to import instead."""

import re

import msgspec

HEAD_BYTES = 4096
_EXPORT = "export the trace itself with the profiler’s export_chrome_trace"
_KINDS: tuple[tuple[bytes, str, str], ...] = (
    # pattern of the first bytes, what the file is, what to do
    (rb"\s*\[\s*\[", "a memory timeline of torch.profiler", _EXPORT),
    (rb"SQLite format 3\x00", "an SQLite database, as Nsight Systems and rocprofv3 write",
     "profile the program with torch.profiler"),
    (rb"PK\x03\x04", "a ZIP archive", "unpack it, and name a trace inside"),
    (rb"\xfd7zXZ|BZh|\x28\xb5\x2f\xfd", "compressed by xz, bzip2 or zstd", "unpack it, or pack it with gzip"),
    (rb"\s*<(!doctype|html)", "an HTML page", "name a trace of torch.profiler (.json or .json.gz)"),
    (rb'\s*\{\s*"rocprofiler-sdk-tool"', "a result of rocprofv3", "profile the program with torch.profiler"),
    (rb'\s*\{\s*"schema"\s*:\s*"\d', "an execution trace of PyTorch, without times of kernels", _EXPORT),
    (rb"\x0a(?=[\x00-\xff]{0,12}[\x00-\x08\x0e-\x1f])", "a binary file such as a Perfetto trace (protobuf)",
     "profile the program with torch.profiler, or convert the trace to JSON with Perfetto’s traceconv"),
)
_PATTERNS = [(re.compile(pattern, re.DOTALL | re.IGNORECASE), kind, advice) for pattern, kind, advice in _KINDS]
_TYPE_ERROR = re.compile(r"Expected `(?P<expected>[^`]*)`, got `(?P<found>[^`]*)`(?: - at `(?P<path>[^`]*)`)?")
_TYPES = {"str": "text", "int": "a whole number", "float": "a number", "null": "null", "bool": "true or false",
          "object": "an object", "array": "a list"}


def foreign_kind(head: bytes) -> str | None:
    """Return what a file is and what to do, if its first bytes are those of a known other format; else None."""
    return next((f"is {kind}, not a trace: {advice}" for pattern, kind, advice in _PATTERNS if pattern.match(head)),
                None)


def wrong_type(error: Exception) -> str:
    """Return in plain words why events could not be decoded."""
    if not isinstance(error, msgspec.ValidationError):
        return "it is not valid JSON"
    match = _TYPE_ERROR.match(str(error))
    if match is None:
        return "its events have values that no trace has"
    found, path = _TYPES.get(match["found"], match["found"]), match["path"] or ""
    field = re.sub(r"^\$(\[\d*(\.\.\.)?\])?\.?", "", path).removeprefix("args.")
    if not field:
        return f"it has {found} where a trace has an event"
    types = dict.fromkeys(_TYPES.get(each, each) for each in match["expected"].split(" | ") if each != "null")
    tool = ", as Ascend’s profiler writes it" if field in ("ts", "dur") and found == "text" else ""
    return f"'{field}' of an event is {found}{tool}; in a trace it is {' or '.join(types)}"
