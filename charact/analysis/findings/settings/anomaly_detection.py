"""Autograd's anomaly detection is on."""

from collections.abc import Iterator

from charact.analysis.findings._finding import Finding
from charact.analysis.findings._watched_case import WatchedCase
from charact.core.units import quantity, share

_TRACE_S = 150e-6
"""Maximum time (s) to record the Python stack of a forward operator."""


def find(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding if backwards ran under anomaly detection."""
    on_frac = case.settings.get("anomaly_frac") or 0.0
    if on_frac < 0.05:
        return
    operators = case.operators
    checks = operators[operators["operator"].str.contains("isnan|aten::any|aten::all|aten::ne$")
                       & (operators["phase"] == "backward")]
    checks_s = float(checks["time_s"].sum())
    forward = operators[operators["phase"].isin(["forward", "loss"])]
    computing_s = case.phase_s["forward"] + case.phase_s["loss"] + case.phase_s["backward"]
    high_s = min(checks_s + float(forward["num_calls"].sum()) * _TRACE_S, 0.85 * computing_s) or 0.85 * computing_s
    saving = case.saving(on_frac * max(checks_s, 0.1 * high_s), on_frac * high_s, "modelled")
    if saving is None:
        return
    evidence = [f"{share(on_frac)} of the backwards ran under anomaly detection"]
    if checks_s:
        evidence.append(f"looking for NaN takes {quantity(checks_s, 's')} of each backward")
    yield Finding(
        "autograd's anomaly detection is on: it records a stack trace of each operator and looks for NaN in gradients",
        "remove torch.autograd.set_detect_anomaly(True), or enable it only while you look for a NaN", saving,
        tuple(evidence), phase="backward", setting="detect_anomaly")
