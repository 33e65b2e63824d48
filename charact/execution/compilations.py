"""Compilations by torch.compile: graphs, breaks between them and recompilations, with places and reasons."""

import linecache
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from types import ModuleType
from typing import Any

OPTIONS: dict[str, Any] = {"cpp.enable_kernel_profile": True}
"""Options of PyTorch's compiler: the profiler sees each kernel that it generates for a CPU."""
_MOST_EVENTS = 20
_MOST_CHARACTERS = 200
_COMMENT = re.compile(r"\s*# (?P<text>[^#]+?)\s+# \S+\.py:(?P<line>\d+) in ")
"""The line that reads what a guard checks, in the guard's text."""
_STACK = re.compile(r'File "(?P<file>.+?)", line (?P<line>\d+), in .*\n\s*(?P<text>.+)')
"""The stack of that line, the innermost frame last; PyTorch shortens the file's name in the comment."""
_JUMPS = ("generic_jump ", "Data-dependent branching")
"""PyTorch's reasons of a break at a branch that depends on values of a tensor."""


def compilations() -> dict[str, Any] | None:
    """Return what was compiled since the counters of PyTorch's compiler were cleared, see `Compilations`.

    None if nothing was compiled. Imports no PyTorch.
    """
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is None:
        return None
    try:
        num_graphs = dynamo.counters["stats"]["unique_graphs"]
        recompilations = Counter(_recompilations(dynamo))
        breaks = Counter(_breaks(dynamo))
        if not breaks:  # an older PyTorch has no places
            breaks.update((_reason(str(text)), None, None, None) for text in dynamo.counters["graph_break"])
    except (AttributeError, KeyError, TypeError):  # another release of PyTorch
        return None
    if not num_graphs and not breaks:
        return None
    events = [{"kind": kind, "reason": reason, "file": file, "line": line, "text": text, "num_times": number}
              for kind, found in (("recompilation", recompilations), ("graph break", breaks))
              for (reason, file, line, text), number in found.most_common()]
    return {"num_graphs": num_graphs, "num_graph_breaks": len(breaks),
            "num_recompilations": recompilations.total(), "events": events[:_MOST_EVENTS]}


def clear_compilations() -> None:
    """Clear the counters of PyTorch's compiler."""
    import torch

    torch._dynamo.utils.counters.clear()
    torch._dynamo.utils.clear_compilation_metrics()
    torch._dynamo.utils.graph_break_reasons.clear()


_Event = tuple[str, str | None, int | None, str | None]
"""Reason, file, line, and the line's source code."""


def _breaks(dynamo: ModuleType) -> Iterator[_Event]:
    """Yield the lines that break a graph, or for which PyTorch compiles nothing of a function, as in loops."""
    library = os.path.dirname(sys.modules["torch"].__file__ or "") + os.sep
    for cause in getattr(dynamo, "graph_break_reasons", []):
        stack = list(cause.user_stack)
        own = [frame for frame in stack if not frame.filename.startswith(library)] or stack
        place = (_short_path(own[-1].filename), own[-1].lineno, own[-1].line or None) if own else (None, None, None)
        yield _reason(str(cause.reason)), *place
    for metrics in dynamo.get_compilation_metrics():
        if metrics.fail_type and (file := metrics.fail_user_frame_filename):
            line = metrics.fail_user_frame_lineno
            yield (f"{metrics.co_name} is not compiled: {_reason(str(metrics.fail_reason))}"[:_MOST_CHARACTERS],
                   _short_path(file), line, linecache.getline(file, line or 0).strip() or None)


def _reason(text: str) -> str:
    """Return the first line of a reason, with the explanation that follows it."""
    if text.startswith(_JUMPS):
        return "the branch depends on values of a tensor"
    lines = [line.strip() for line in text.strip().splitlines()]
    explanation = next((line.partition(": ")[2] for line in lines if line.startswith("Explanation: ")), "")
    return ": ".join(filter(None, [lines[0] if lines else "", explanation]))[:_MOST_CHARACTERS]


def _recompilations(dynamo: ModuleType) -> Iterator[_Event]:
    """Yield the known recompilations: PyTorch keeps its last 64 compilations."""
    for metrics in dynamo.get_compilation_metrics():
        if not metrics.recompile_reason:
            continue
        # A reason may begin with the number of the guard.
        text = re.sub(r"^[^:]*/[^:]*: ", "", str(metrics.recompile_reason)).strip()
        comment, stack = _COMMENT.search(text), [*_STACK.finditer(text)]
        end = comment.start() if comment else text.find("\n") if "\n" in text else len(text)
        file, line, source = metrics.co_filename, metrics.co_firstlineno, None
        if stack:
            file, line, source = stack[-1]["file"], int(stack[-1]["line"]), stack[-1]["text"]
        elif comment:
            line, source = int(comment["line"]), comment["text"]
        yield text[:end][:_MOST_CHARACTERS], _short_path(file), line, source


def _short_path(path: str) -> str:
    """Return a path relative to the installed packages, or to the working directory if it is below."""
    return path.rpartition(f"{os.sep}site-packages{os.sep}")[2].removeprefix(os.path.join(os.getcwd(), ""))
