"""torch.compile recompiles, or breaks the graph."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from charact.analysis.findings._finding import Finding, Place
from charact.analysis.findings._watched_case import WatchedCase
from charact.core.units import quantity


def find(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding if compilation takes much of the program."""
    facts = case.settings.get("compile") or {}
    spent_s = float(case.iterations["compile_s"].fillna(0.0).sum())
    recompiled = facts.get("num_recompilations") or 0
    breaks = facts.get("num_graph_breaks") or 0
    repeated_frac = recompiled / max(recompiled + (facts.get("num_graphs") or 1), 1)
    reasons = facts.get("reasons") or []
    saving = case.saving_in_all(0.5 * repeated_frac * spent_s, spent_s)
    if saving is None:
        return
    evidence = [f"compilation takes {quantity(spent_s, 's')}; {facts.get('num_graphs') or 0} graphs, {breaks} graph "
                f"breaks, {recompiled} recompilations", *(" ".join(each.split()) for each in reasons[:2])]
    changed = next((each for reason in reasons if (each := _changed_attribute(reason))), None)
    place = None if changed is None else changed.place
    again = "" if not recompiled else f": it recompiles when {changed.name} changes" if changed else ": it recompiles"
    yield Finding(
        f"torch.compile takes much of the program's time{again}", _remedy(changed, recompiled, breaks), saving,
        tuple(evidence), "high" if recompiled else "medium", place=place, setting="torch.compile",
        covers=frozenset({"new_input_shapes"}))


def _remedy(changed: "_Attribute | None", num_recompilations: int, num_breaks: int) -> str:
    if changed is not None:
        return (f"do not change {changed.name} inside of compiled code: change it in the loop, or keep it in a tensor; "
                "for an integer, set torch._dynamo.config.allow_unspec_int_on_nn_module = True")
    if num_recompilations:
        return "call torch.compile(model, dynamic=True), or pad inputs to few fixed shapes"
    if num_breaks:
        return ("remove the calls that break the graph (TORCH_LOGS=graph_breaks lists them), or compile only the inner "
                "model")
    return "do not compile in short programs, or keep Inductor's cache between them (TORCHINDUCTOR_CACHE_DIR)"


class _Attribute(NamedTuple):
    """An attribute whose value is compiled into the code, and the line that reads it."""

    name: str
    place: Place | None


def _changed_attribute(reason: str) -> _Attribute | None:
    """Return the attribute whose change made PyTorch compile again, from its reason; None for other reasons."""
    match = re.match(r"(?:L\['self'\]|self)((?:\.\w+|\[\W*\w+\W*\])*\.\w+) == ", reason)
    line = re.search(r"# (?P<text>[^#]+?)\s+# (?P<file>\S+\.py):(?P<line>\d+) in ", reason)
    return match and _Attribute(f"self{match[1]}", line and Place(line["file"], int(line["line"]), line["text"]))
