"""Operators compute in float64."""

from collections.abc import Iterator

from charact.analysis.findings._finding import Finding
from charact.analysis.findings._watched_case import WatchedCase
from charact.core.units import quantity, share


def find(case: WatchedCase) -> Iterator[Finding]:
    """Yield a finding if operators with float64 inputs take much of the time, though the parameters are float32."""
    operators = case.operators
    if "dtype" not in operators:
        return
    doubles = operators[operators["dtype"] == "float64"]
    spent_s = float(doubles["time_s"].sum())
    saving = case.saving(0.3 * spent_s, 0.75 * spent_s, "modelled")
    if saving is None:
        return
    models = [model for model in case.settings.get("models", []) if (model.get("dtypes") or {}).get("float64")]
    first = doubles.sort_values("time_s", ascending=False).iloc[0]
    evidence = [f"operators with float64 inputs take {quantity(spent_s, 's')}, "
                f"{share(spent_s / case.iteration_s)} of a typical iteration; the longest is "
                f"{first['operator']}" + (f" in {first['layer']}" if isinstance(first["layer"], str) else "")]
    evidence += [f"{model['name']} has {model['dtypes']['float64']:,} float64 values among its parameters and buffers"
                 for model in models]
    yield Finding(
        "part of the model computes in float64: with one float64 input, an operator's result is float64",
        "convert the float64 tensor to float32 where it is created: .float() or dtype=torch.float32 (NumPy's default "
        "is float64)",
        saving, tuple(evidence), phase=str(doubles.groupby("phase")["time_s"].sum().idxmax()),
        layer=first["layer"] if isinstance(first["layer"], str) else None, operator=str(first["operator"]),
        setting="dtype=float64")
