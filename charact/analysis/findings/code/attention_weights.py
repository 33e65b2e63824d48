"""Attention layers return their weights, which keeps them from computing without the whole matrix."""

from collections.abc import Iterator

from charact.analysis.findings._finding import Finding
from charact.analysis.findings._watched_case import WatchedCase
from charact.core.units import quantity, share

_SAVED_FRAC = (0.1, 0.7)
"""Minimum and maximum share of a layer's time that is saved without weights.

*Source*: nn.MultiheadAttention with 8 heads, forward and backward, PyTorch 2.13, 2 cores: 55 % for 576 keys of width
64, 12 % for 512 of width 512, nothing for 256 of width 256.
"""


def find(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding if `nn.MultiheadAttention` returns weights of long sequences."""
    layers = case.inspection.get("attention_weights") or []
    forward_s = case.phase_s["forward"]
    if not layers or not forward_s:
        return
    part = min(sum(each["time_s"] for each in layers) / forward_s, 1.0)
    spent_s = part * (forward_s + case.phase_s["backward"])
    low_s, high_s = (frac * spent_s for frac in _SAVED_FRAC)
    saving = case.saving(low_s, high_s, "modelled")
    if saving is None:
        return
    line = next((line for line in case.lines("forward") if "MultiheadAttention.forward" in (line.library or "")), None)
    others = f" and {len(layers) - 1} more layers" if len(layers) > 1 else ""
    yield Finding(
        f"the attention of {layers[0]['layer']}{others} returns its weights, and so computes the whole matrix of them",
        "pass need_weights=False in the call of nn.MultiheadAttention, unless the program uses the weights: then it "
        "computes by scaled_dot_product_attention", saving,
        (f"forwards of these layers take {quantity(part * forward_s, 's')}; with their backward, "
         f"{share(spent_s / case.iteration_s)} of a typical iteration",), "medium",
        place=line.place if line else None, phase="forward", layer=layers[0]["layer"], setting="need_weights=True")
