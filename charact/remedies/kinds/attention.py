"""Compute scaled dot-product attention by another of PyTorch's backends."""

from charact.record.schema import ATTENTION, CPU_ATTENTION
from charact.remedies.patching import OutermostCalls
from charact.remedies.program import Program
from charact.remedies.remedy import Remedy, Setting

_SAVED_FRAC = 0.2
"""Share of attention's time that another backend is expected to save."""


def _settings(program: Program) -> list[Setting] | str:
    share = program.operator_share("attention")
    if not share:
        return "no operator is scaled_dot_product_attention"
    from charact.analysis.profile.breakdown import operator_times

    rows = operator_times(program.run)
    # The operator of the forward has one name for all backends; that of the backward has the backend's.
    backward = " ".join(rows.loc[(rows["case"] == program.entry.case) & (rows["phase"] == "backward"), "operator"])
    used = next((name for name in ATTENTION if f"{name}_attention" in backward), "math" if backward else None)
    return [Setting("attention", {"backend": name}, f"SDPBackend.{ATTENTION[name]}",
                    program.change(f"with torch.nn.attention.sdpa_kernel(SDPBackend.{ATTENTION[name]}): around the "
                                   "forward", f"--attention {name}"),
                    expected_frac=_SAVED_FRAC * share)
            for name in (CPU_ATTENTION if program.on_cpu else ATTENTION) if name != used]


def _apply(backend: str) -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    OutermostCalls(around=lambda module: sdpa_kernel(getattr(SDPBackend, ATTENTION[backend])))


REMEDY = Remedy("attention", _settings, _apply, numerics="rounded")
