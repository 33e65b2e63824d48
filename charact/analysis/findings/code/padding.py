"""Much of each batch is padding."""

from collections.abc import Iterator

from charact.analysis.findings._finding import Finding
from charact.analysis.findings._watched_case import WatchedCase
from charact.core.units import share

_MUCH_FRAC = 0.3


def find(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding if a large share of an input is padding."""
    inputs = case.inspection.get("padding") or []
    padded = max(inputs, key=lambda each: each["padding_frac"], default=None)
    if padded is None or padded["padding_frac"] < _MUCH_FRAC:
        return
    computing_s = case.phase_s["forward"] + case.phase_s["loss"] + case.phase_s["backward"]
    saving = case.saving(0.4 * padded["padding_frac"] * computing_s, padded["padding_frac"] * computing_s, "modelled")
    if saving is None:
        return
    yield Finding(
        f"{share(padded['padding_frac'])} of {padded['name']} is padding, and the model computes padding like data",
        "batch samples of similar length (sort or bucket them), and pad each batch only to its longest sample",
        saving, (f"{share(padded['padding_frac'])} of the elements of {padded['name']} in one iteration are padding",),
        "medium", phase="forward", setting="padding",
        covers=frozenset({"unused_outputs"}))
