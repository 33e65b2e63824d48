"""Much of the optimizer's state is denormal numbers, with which processors compute slowly."""

from collections.abc import Iterator

from charact.analysis.findings._finding import Finding
from charact.analysis.findings._watched_case import WatchedCase
from charact.core.units import quantity, share

_MANY_FRAC = 0.1


def find(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding for the optimizer state with most denormal numbers."""
    states = [each for each in case.inspection.get("denormals") or [] if each["denormal_frac"] >= _MANY_FRAC]
    if not states or not case.on_cpu:
        return
    state = max(states, key=lambda each: each["denormal_frac"] * each["num_elements"])
    update_s = case.phase_s["update"]
    saving = case.saving(0.3 * update_s, 0.97 * update_s, "modelled")
    if saving is None:
        return
    yield Finding(
        f"{share(state['denormal_frac'])} of {state['optimizer']}'s {state['state']} are denormal numbers (below "
        "1.2e-38), with which processors compute many times slower",
        "call torch.set_flush_denormal(True) before the loop; or pass fused=True to the optimizer",
        saving, (f"update takes {quantity(update_s, 's')}, "
                 f"{share(update_s / case.iteration_s)} of a typical iteration",),
        phase="update", setting="set_flush_denormal(False)")
