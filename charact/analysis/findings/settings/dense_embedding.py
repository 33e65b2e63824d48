"""The gradient of an embedding is nearly all zeros."""

from collections.abc import Iterator

from charact.analysis.findings._finding import Finding
from charact.analysis.findings._watched_case import WatchedCase
from charact.core.units import quantity, share

_USED_FRAC = 0.1
_PASSES = (4, 12)
"""Minimum and maximum number of times that backward, zero_grad and an update read or write a dense gradient."""
_BYTES_PER_S = (2e9, 20e9)
"""Minimum and maximum memory bandwidth."""


def find(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding for each embedding with a dense gradient of which an iteration uses few rows."""
    for facts in case.inspection.get("embeddings") or []:
        if facts.get("sparse") or facts["num_used_rows"] > _USED_FRAC * facts["num_rows"]:
            continue
        spent_s = case.phase_s["update"] + case.phase_s["backward"]
        size = facts["gradient_bytes"]
        low_s = min(size * _PASSES[0] / _BYTES_PER_S[1], 0.5 * spent_s)
        share_of_parameters = min(size / 4 / max(case.entry.get("num_parameters") or 0, size / 4, 1), 1.0)
        high_s = max(share_of_parameters * spent_s, min(size * _PASSES[1] / _BYTES_PER_S[0], spent_s))
        saving = case.saving(max(low_s, 0.5 * share_of_parameters * spent_s), high_s, "modelled")
        if saving is None:
            continue
        yield Finding(
            f"the gradient of the embedding {facts['layer']} is dense, but nearly all of it is zero",
            "pass sparse=True to nn.Embedding, and use an optimizer for sparse gradients (torch.optim.SparseAdam, or "
            "SGD without momentum)", saving,
            (f"an iteration uses {facts['num_used_rows']:,} of {facts['num_rows']:,} rows "
             f"({share(facts['num_used_rows'] / facts['num_rows'])}); zero_grad, backward and the update go through "
             f"all {quantity(size, 'B')}",), phase="backward", layer=facts["layer"], setting="sparse=False")
