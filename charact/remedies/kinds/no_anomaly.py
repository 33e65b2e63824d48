"""Leave autograd's anomaly detection off."""

from typing import Any

from charact.remedies.program import Program
from charact.remedies.remedy import Remedy, Setting


def _settings(program: Program) -> list[Setting] | str:
    if not (expected := program.expected_frac("anomaly_detection")):
        return "anomaly detection is off"
    return [Setting("no-anomaly", {}, "set_detect_anomaly(False)", "torch.autograd.set_detect_anomaly(False)",
                    expected_frac=expected)]


def _apply() -> None:
    import torch
    from torch.autograd import anomaly_mode

    def off(self: Any, *arguments: Any, **named: Any) -> None:
        self.prev = torch.is_anomaly_enabled()

    for kind in (anomaly_mode.detect_anomaly, anomaly_mode.set_detect_anomaly):
        kind.__init__ = off  # type: ignore[method-assign]
        kind.__enter__ = kind.__exit__ = lambda self, *arguments: None  # type: ignore[method-assign]


REMEDY = Remedy("no-anomaly", _settings, _apply, findings=("anomaly_detection",))
