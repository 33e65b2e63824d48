"""AMD's counters through PyTorch's own functions; what is made up is the binding that those ask, amdsmi."""

from enum import Enum
from typing import Any

import pytest
import torch

from charact.measure.counters.amd import AmdCounters

DEVICE = torch.device("cuda", 0)


class FakeAmdsmi:
    """One device; answers and failures of amdsmi as its documentation has them."""

    class AmdSmiException(Exception):
        pass

    AmdSmiClkType = Enum("AmdSmiClkType", "GFX")
    AmdSmiTemperatureType = Enum("AmdSmiTemperatureType", "JUNCTION")
    AmdSmiTemperatureMetric = Enum("AmdSmiTemperatureMetric", "CURRENT")

    def __init__(self, **answers: Any) -> None:
        self.answers = {"activity": 64, "watts": 512, "mhz": 2100, "degrees": 71} | answers

    def amdsmi_init(self) -> None:
        if "init" in self.answers:
            raise self.answers["init"]

    def amdsmi_get_processor_handles(self) -> list[str]:
        return ["the device"]

    def amdsmi_get_gpu_enumeration_info(self, handle: str) -> dict[str, int]:
        return {"hip_id": 0}

    def amdsmi_get_gpu_activity(self, handle: str) -> dict[str, Any]:
        return {"gfx_activity": self._answer("activity")}

    def amdsmi_get_power_info(self, handle: str) -> dict[str, Any]:
        return {"average_socket_power": "N/A", "current_socket_power": self._answer("watts")}

    def amdsmi_get_clock_info(self, handle: str, kind: Enum) -> dict[str, Any]:
        return {"clk": self._answer("mhz")}

    def amdsmi_get_temp_metric(self, handle: str, kind: Enum, metric: Enum) -> Any:
        return self._answer("degrees")

    def _answer(self, name: str) -> Any:
        answer = self.answers[name]
        if isinstance(answer, Exception):
            raise answer
        return answer


def rocm(monkeypatch: pytest.MonkeyPatch, amdsmi: FakeAmdsmi | None) -> None:
    """Make PyTorch one for AMD's devices, with that binding or with none."""
    monkeypatch.setattr(torch.version, "hip", "6.4")
    monkeypatch.setattr(torch.cuda, "_HAS_AMDSMI", amdsmi is not None, raising=False)
    monkeypatch.setattr(torch.cuda, "_AMDSMI_ERR", None, raising=False)
    monkeypatch.setattr(torch.cuda, "amdsmi", amdsmi, raising=False)
    monkeypatch.setattr(torch.cuda, "_cached_hip_to_amdsmi", None, raising=False)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (150_000_000_000, 192_000_000_000))


def test_answers_are_in_base_units(monkeypatch: pytest.MonkeyPatch) -> None:
    rocm(monkeypatch, FakeAmdsmi())
    assert AmdCounters().available() is None
    reading = AmdCounters().open(DEVICE)
    expected = {"utilization_frac": 0.64, "memory_used_bytes": 42e9, "power_w": 512.0, "sm_clock_hz": 2.1e9,
                "temperature_c": 71.0}
    assert reading.sample() == pytest.approx(expected)
    assert expected.keys() == {counter.name for counter in AmdCounters.counters}
    assert reading.missing == {}
    assert reading.close() == {}


def test_an_idle_device_is_used_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    rocm(monkeypatch, FakeAmdsmi(activity=0))
    assert AmdCounters().open(DEVICE).sample()["utilization_frac"] == 0


@pytest.mark.parametrize(("answer", "counter"), [
    ("activity", "utilization_frac"), ("watts", "power_w"), ("mhz", "sm_clock_hz"), ("degrees", "temperature_c"),
])
def test_no_value_is_missing_and_not_zero(monkeypatch: pytest.MonkeyPatch, answer: str, counter: str) -> None:
    rocm(monkeypatch, FakeAmdsmi(**{answer: "N/A"}))
    reading = AmdCounters().open(DEVICE)
    assert counter not in reading.sample()
    assert reading.missing == {counter: "amdsmi gives no value here"}


def test_without_amdsmi_there_is_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    rocm(monkeypatch, None)
    reading = AmdCounters().open(DEVICE)
    assert reading.sample() == {"memory_used_bytes": 42e9}
    assert len(reading.missing) == 4
    assert all("amdsmi does not seem to be installed" in reason for reason in reading.missing.values())


def test_a_driver_that_amdsmi_cannot_reach_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    amdsmi = FakeAmdsmi(init=FakeAmdsmi.AmdSmiException("no driver"))
    rocm(monkeypatch, amdsmi)
    reading = AmdCounters().open(DEVICE)
    assert set(reading.sample()) == {"memory_used_bytes"}
    assert reading.missing["power_w"].startswith("RuntimeError: amdsmi driver can't be loaded")


def test_what_fails_later_is_asked_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    amdsmi = FakeAmdsmi()
    rocm(monkeypatch, amdsmi)
    reading = AmdCounters().open(DEVICE)
    assert len(reading.sample()) == 5
    amdsmi.answers["degrees"] = FakeAmdsmi.AmdSmiException("the device was reset\nand more")
    assert "temperature_c" not in reading.sample()
    amdsmi.answers["degrees"] = 71
    assert set(reading.sample()) == {"utilization_frac", "memory_used_bytes", "power_w", "sm_clock_hz"}
    assert reading.missing == {"temperature_c": "AmdSmiException: the device was reset"}


def test_another_build_of_pytorch_is_a_reason() -> None:
    refusal = AmdCounters().available()
    assert refusal is not None
    assert refusal.reason == f"torch {torch.__version__} is built without ROCm"
