"""Much of the optimizer's state is denormal numbers, with which processors compute slowly."""

from collections.abc import Iterator, Mapping
from typing import Any

from charact.analysis.findings._finding import Finding
from charact.analysis.findings._watched_case import WatchedCase
from charact.core.units import quantity, share

_MANY_FRAC = 0.1


def find(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding for the optimizer state with most denormal numbers, and one for layers of such weights."""
    if not case.on_cpu:
        return
    rows = sorted(case.inspection.get("denormals") or [],
                  key=lambda each: -each["denormal_frac"] * each["num_elements"])
    states = [each for each in rows if each.get("state") and each["denormal_frac"] >= _MANY_FRAC]
    layers = [each for each in rows if each.get("layer")]
    for state in states[:1]:
        yield from _finding(case, f"{state['optimizer']}'s {state['state']}", state, ("update",), None)
    for layer in layers[:1]:
        others = f" and {len(layers) - 1} more layers" if len(layers) > 1 else ""
        yield from _finding(case, f"the weights of {layer['layer']}{others}", layer, ("forward", "backward"),
                            layer["layer"])


def _finding(case: WatchedCase, what: str, facts: Mapping[str, Any], phases: tuple[str, ...], layer: str | None
             ) -> Iterator[Finding]:
    spent_s = sum(case.phase_s[phase] for phase in phases)
    saving = case.saving(0.3 * spent_s, 0.97 * spent_s, "modelled")
    if saving is not None:
        yield Finding(
            f"{share(facts['denormal_frac'])} of {what} are denormal numbers (below 1.2e-38), with which processors "
            "compute many times slower",
            "call torch.set_flush_denormal(True) before the loop"
            + ("; or pass fused=True to the optimizer" if layer is None else ""),
            saving, (f"{' and '.join(phases)} {'takes' if len(phases) == 1 else 'take'} {quantity(spent_s, 's')}, "
                     f"{share(spent_s / case.iteration_s)} of a typical iteration",),
            phase=phases[0], layer=layer, setting="set_flush_denormal(False)")
