"""NVML's counters through the real binding: the library below it is the stub of `support/stub_nvml.c`."""

from pathlib import Path

import pytest
from support.stub_nvml import DIVIDED, INSTANCE, LOST, PLAIN, StubNvml

from charact.machine.facts import driver_version
from charact.measure.counters.nvml import NvmlCounters
from charact.record.schema import column_names

CLOCKS = {"sm_clock_hz": 1.98e9, "memory_clock_hz": 2.619e9, "temperature_c": 61.0}
STEADY = CLOCKS | {
    "utilization_frac": 0.75, "memory_used_bytes": 12345678912.0, "power_w": 350.25,
    "pcie_sent_bytes_per_s": 1.5e6, "pcie_received_bytes_per_s": 2.5e6,
}
THROTTLES = [  # any, power, heat, hardware: of the stub's four moments, which come in turn
    (0.0, 0.0, 0.0, 0.0), (1.0, 1.0, 0.0, 0.0), (1.0, 1.0, 1.0, 0.0), (1.0, 0.0, 0.0, 1.0),
]  # fmt: skip
NOT_OF_AN_INSTANCE = {"utilization_frac", "power_w", "energy_j", "pcie_sent_bytes_per_s", "pcie_received_bytes_per_s"}
GONE = ["the GPU is lost: the driver cannot reach it any more",
        "restart the machine; `sudo dmesg | grep Xid` shows why"]


def throttles(sample: dict[str, float]) -> tuple[float, ...]:
    return tuple(sample[f"throttled{why}_frac"] for why in ("", "_power", "_thermal", "_hardware"))


def steady(sample: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in sample.items() if not name.startswith("throttled")}


def test_a_gpu_tells_what_the_library_says_in_base_units(stub_nvml: StubNvml) -> None:
    found = stub_nvml.ask("read", "nvml", pauses=[0] * 4)
    assert found["available"] is None
    assert [steady(sample) for sample in found["samples"]] == [pytest.approx(STEADY)] * 4
    assert [throttles(sample) for sample in found["samples"]] == THROTTLES
    assert set(found["whole"]) == {"energy_j", "power_w"}
    assert found["whole"]["energy_j"] == 12.5
    assert found["missing"] == {}


def test_the_sampler_makes_rows_of_it(stub_nvml: StubNvml) -> None:
    found = stub_nvml.ask("sample", "nvml")
    declared = {counter.name for counter in NvmlCounters.counters}
    assert found["outcome"] == {"status": "ok", "reason": None, "remedy": None, "missing": {}}
    assert {row["counter"] for row in found["rows"]} == declared
    assert all(set(row) == set(column_names("counters")) - {"case"} for row in found["rows"])
    assert {(row["source"], row["device"]) for row in found["rows"]} == {("nvml", "cuda:0")}
    whole = {row["counter"]: row["value"] for row in found["rows"] if row["time_s"] is None}
    assert set(whole) == {"energy_j", "power_w"}
    assert whole["energy_j"] == 12.5
    assert len({row["time_s"] for row in found["rows"] if row["time_s"] is not None}) > 1


def test_an_instance_tells_its_memory_and_of_its_gpu_only_what_holds_for_it(stub_nvml: StubNvml) -> None:
    found = stub_nvml.ask("read", "nvml", INSTANCE, pauses=[0])
    assert steady(found["samples"][0]) == pytest.approx(CLOCKS | {"memory_used_bytes": 2147483648.0})
    assert set(found["missing"]) == NOT_OF_AN_INSTANCE
    assert set(found["missing"].values()) == {
        "NVML reports it for the whole GPU only, and the case runs on a MIG instance"}
    assert found["whole"] == {}


@pytest.mark.parametrize("code", [13, 25])
def test_a_driver_without_the_second_query_of_memory_adds_what_it_reserves(stub_nvml: StubNvml, code: int) -> None:
    found = stub_nvml.ask("read", "nvml", pauses=[0], rules=f"nvmlDeviceGetMemoryInfo_v2 {code}")
    assert found["samples"][0]["memory_used_bytes"] == STEADY["memory_used_bytes"] + 644939776
    assert found["missing"] == {}


def test_an_instance_is_found_by_its_gpu_and_the_environment(stub_nvml: StubNvml) -> None:
    named = stub_nvml.ask("read", "nvml", DIVIDED, visible=f"MIG-{INSTANCE}", pauses=[0])
    assert named["samples"][0]["memory_used_bytes"] == 2147483648.0
    unnamed = stub_nvml.ask("read", "nvml", DIVIDED)
    assert unnamed["refused"] == ["the GPU has several MIG instances, and the case's is not known",
                                  "name it: CUDA_VISIBLE_DEVICES=MIG-..., as `nvidia-smi -L` lists it"]


@pytest.mark.parametrize("uuid", [PLAIN, f"GPU-{PLAIN}"])
def test_a_uuid_may_have_its_prefix(stub_nvml: StubNvml, uuid: str) -> None:
    assert stub_nvml.ask("read", "nvml", uuid)["whole"]["energy_j"] == 12.5


def test_a_device_that_nvml_does_not_know_is_refused(stub_nvml: StubNvml) -> None:
    reason, remedy = stub_nvml.ask("read", "nvml", "0d0d0d0d-0000-0000-0000-000000000004")["refused"]
    assert reason == "NVML has no device 0d0d0d0d-0000-0000-0000-000000000004"
    assert "CUDA_VISIBLE_DEVICES" in remedy


@pytest.mark.parametrize(("code", "reason"), [
    (9, "NVIDIA's kernel driver is not loaded"),
    (18, "NVML and NVIDIA's kernel driver are of different versions"),
    (999, "NVML: Unknown Error"),
    (1234, "NVML: An error of the stub's"),
])
def test_a_library_that_does_not_start_is_a_reason(stub_nvml: StubNvml, code: int, reason: str) -> None:
    found = stub_nvml.ask("read", "nvml", rules=f"nvmlInitWithFlags {code}")
    assert found["available"] == found["refused"]
    assert found["refused"][0] == reason
    assert all(line is None or "\n" not in line for line in found["refused"])


def test_a_user_who_may_not_use_the_gpu_is_told_whom_to_ask(stub_nvml: StubNvml) -> None:
    found = stub_nvml.ask("read", "nvml", rules="nvmlDeviceGetHandleByUUID 4")
    assert found["refused"] == ["NVML denies this user access to the GPU",
                                "ask an administrator for access to /dev/nvidia*"]


def test_what_a_gpu_does_not_support_is_missing_and_the_rest_goes_on(stub_nvml: StubNvml) -> None:
    """As on Pascal: no meter; and one answer more that stays out."""
    found = stub_nvml.ask("read", "nvml", pauses=[0], rules=(
        "nvmlDeviceGetTotalEnergyConsumption 3\nnvmlDeviceGetPowerUsage 3\nnvmlDeviceGetMigMode 3\n"))
    assert found["missing"] == {"energy_j": "NVML: Not Supported (GPUs have the meter from Volta on)",
                                "power_w": "NVML: Not Supported"}
    expected = {name: value for name, value in STEADY.items() if name != "power_w"}
    assert steady(found["samples"][0]) == pytest.approx(expected)
    assert found["whole"] == {}


def test_what_fails_later_is_missing_from_then_on(stub_nvml: StubNvml) -> None:
    found = stub_nvml.ask("read", "nvml", pauses=[0], later="nvmlDeviceGetClockInfo 10")
    assert found["missing"] == dict.fromkeys(("sm_clock_hz", "memory_clock_hz"), "NVML: Timeout")
    before, after = found["samples"]
    assert set(before) - set(after) == {"sm_clock_hz", "memory_clock_hz"}
    assert found["whole"]["energy_j"] == 12.5


def test_a_gpu_that_is_lost_is_a_refusal(stub_nvml: StubNvml) -> None:
    at_first = stub_nvml.ask("read", "nvml", rules=LOST)
    assert at_first["refused"] == GONE
    later = stub_nvml.ask("read", "nvml", pauses=[0], later=LOST)
    assert later["samples"][1] == later["whole"] == GONE


def test_the_sampler_keeps_what_was_read_before_the_gpu_was_lost(stub_nvml: StubNvml) -> None:
    found = stub_nvml.ask("sample", "nvml", later=LOST)
    assert found["outcome"]["status"] == "n/a"
    assert found["outcome"]["reason"].endswith(GONE[0])
    assert found["outcome"]["remedy"] == GONE[1]
    assert {row["value"] for row in found["rows"] if row["counter"] == "power_w"} == {350.25}
    assert all(row["time_s"] is not None for row in found["rows"])


@pytest.mark.slow
def test_an_older_driver_is_asked_by_older_names(tmp_path: Path) -> None:
    with StubNvml(tmp_path, "-DOLD_DRIVER") as old:
        found = old.ask("read", "nvml", pauses=[0])
        assert found["missing"] == {}
        assert found["samples"][0]["temperature_c"] == 61
        assert throttles(found["samples"][0]) == THROTTLES[0]
        assert old.ask("read", "gpm")["available"] == ["no GPU here has GPM: Hopper and later do", None]


def test_power_over_the_pass_is_what_the_meter_counted_over_its_time(stub_nvml: StubNvml) -> None:
    whole = stub_nvml.ask("read", "nvml", pauses=[0.25, 0.25])["whole"]
    assert 0 < whole["power_w"] <= whole["energy_j"] / 0.5


@pytest.mark.slow
def test_a_meter_that_stood_still_is_no_zero(tmp_path: Path) -> None:
    with StubNvml(tmp_path, "-DSTILL_METER") as still:
        found = still.ask("read", "nvml", pauses=[0])
    assert found["whole"] == {}
    assert found["missing"] == {"energy_j": "the pass is too short: the driver did not update its energy meter"}


@pytest.mark.skipif(driver_version() is not None, reason="NVIDIA's driver is here")
def test_no_driver_is_a_reason() -> None:
    refusal = NvmlCounters().available()
    assert refusal is not None
    assert refusal.reason == "no NVIDIA driver here: libnvidia-ml.so.1 is not found"
    assert refusal.remedy is not None
