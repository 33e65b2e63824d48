"""GPM's counters through the real binding: the library below it is the stub of `support/stub_nvml.c`.

In the stub multiprocessors are busy in every window, warps and all the rest in those of odd number. Opening takes two
snapshots, and the first sample two others, from which GPM shows what ran since: the second sample is window 5.
"""

import pytest
from support.stub_nvml import DIVIDED, INSTANCE, LOST, StubNvml

from charact.measure.counters._support.protocol import ADMIN_ONLY, BUSY
from charact.measure.counters.gpm import LAG_S, MIN_WINDOW_S, GpmCounters

SHOWN_S, WINDOW_S = 1.1 * LAG_S, 1.1 * MIN_WINDOW_S
ODD = {
    "utilization_frac": 0.9, "sm_utilization_frac": 0.8, "sm_occupancy_frac": 0.6, "warp_occupancy_frac": 0.75,
    "bandwidth_utilization_frac": 0.5, "tensor_pipe_frac": 0.3, "fp64_pipe_frac": 0.01, "fp32_pipe_frac": 0.1,
    "fp16_pipe_frac": 0.0, "pcie_sent_bytes_per_s": 100 * 2**20, "pcie_received_bytes_per_s": 200 * 2**20,
}
EVEN = dict.fromkeys(ODD, 0.0) | {"sm_utilization_frac": 0.8}
NO_NVLINK = dict.fromkeys(("nvlink_sent_bytes_per_s", "nvlink_received_bytes_per_s"), "NVML: Not Supported")


def in_part(share: float) -> dict[str, float]:
    """Counters of a stretch in which that share of the windows is odd."""
    return {name: value * (1 if name == "sm_utilization_frac" else share) for name, value in ODD.items()}


def test_each_window_and_the_whole_are_what_the_library_counted(stub_nvml: StubNvml) -> None:
    found = stub_nvml.ask("read", "gpm", pauses=[SHOWN_S] + [WINDOW_S] * 4)
    assert found["available"] is None
    assert found["samples"] == [{}, *[pytest.approx(ODD), pytest.approx(EVEN)] * 2]
    # From the snapshots of the first sample to the one of the close: windows 4 to 9.
    assert found["whole"] == pytest.approx(in_part(3 / 6))
    assert found["missing"] == NO_NVLINK
    assert set(ODD) | set(NO_NVLINK) == {counter.name for counter in GpmCounters.counters}


def test_the_sampler_makes_rows_of_it(stub_nvml: StubNvml) -> None:
    found = stub_nvml.ask("sample", "gpm")
    assert found["outcome"] == {"status": "ok", "reason": None, "remedy": None, "missing": NO_NVLINK}
    whole = {row["counter"] for row in found["rows"] if row["time_s"] is None}
    sampled = {row["counter"] for row in found["rows"] if row["time_s"] is not None}
    assert whole == sampled == set(ODD)
    assert {row["value"] for row in found["rows"] if row["counter"] == "sm_utilization_frac"} == {0.8}


@pytest.mark.parametrize(("uuid", "visible"), [(INSTANCE, ""), (DIVIDED, f"MIG-{INSTANCE}")])
def test_an_instance_has_counters_of_its_own(stub_nvml: StubNvml, uuid: str, visible: str) -> None:
    found = stub_nvml.ask("read", "gpm", uuid, visible=visible, pauses=[SHOWN_S, WINDOW_S])
    assert found["samples"][1]["sm_utilization_frac"] == pytest.approx(0.4)
    assert found["samples"][1]["warp_occupancy_frac"] == pytest.approx(0.75)


def test_an_idle_device_has_no_occupancy_of_its_busy_part(stub_nvml: StubNvml) -> None:
    found = stub_nvml.ask("read", "gpm", pauses=[SHOWN_S, WINDOW_S], rules="idle 1")
    assert found["samples"][1] == {name: 0.0 for name in ODD if name != "warp_occupancy_frac"}
    assert found["missing"] == NO_NVLINK | {"warp_occupancy_frac": "no multiprocessor was busy"}


def test_a_sample_too_soon_is_none_and_the_next_has_its_window(stub_nvml: StubNvml) -> None:
    found = stub_nvml.ask("read", "gpm", pauses=[SHOWN_S, WINDOW_S, 0, WINDOW_S])
    # The snapshot of the third is number 6: the fourth lies over windows 6 and 7.
    assert found["samples"] == [{}, pytest.approx(ODD), {}, pytest.approx(in_part(1 / 2))]


@pytest.mark.parametrize("pauses", [[], [0.0], [SHOWN_S]])
def test_a_pass_shorter_than_the_lag_and_a_window_says_so(stub_nvml: StubNvml, pauses: list[float]) -> None:
    found = stub_nvml.ask("read", "gpm", pauses=pauses)
    assert found["whole"] == {}
    assert set(found["missing"]) == set(ODD) | set(NO_NVLINK)
    assert set(found["missing"].values()) == {
        "the pass was too short: GPM shows work 0.15 s later, over intervals of at least 0.1 s"}


def test_a_gpu_before_hopper_is_refused(stub_nvml: StubNvml) -> None:
    found = stub_nvml.ask("read", "gpm", rules="before_hopper 1")
    assert found["available"] == ["no GPU here has GPM: Hopper and later do", None]
    assert found["refused"] == ["this GPU has no GPM: Hopper and later do", None]


def test_a_user_who_may_not_count_is_told_what_to_ask_for(stub_nvml: StubNvml) -> None:
    found = stub_nvml.ask("read", "gpm", rules="nvmlGpmSampleGet 4")
    assert found["refused"] == [ADMIN_ONLY.reason, ADMIN_ONLY.remedy]


def test_counters_that_another_holds_are_a_reason(stub_nvml: StubNvml) -> None:
    assert stub_nvml.ask("read", "gpm", rules="nvmlGpmSampleGet 19")["refused"] == [BUSY.reason, BUSY.remedy]


@pytest.mark.parametrize(("rules", "reason"), [
    ("nvmlGpmSampleAlloc 20", "NVML: Insufficient Memory"),
    ("nvmlInitWithFlags 9", "NVIDIA's kernel driver is not loaded"),
    (LOST, "the GPU is lost: the driver cannot reach it any more"),
])
def test_what_cannot_be_opened_is_given_back(stub_nvml: StubNvml, rules: str, reason: str) -> None:
    assert stub_nvml.ask("read", "gpm", rules=rules)["refused"][0] == reason


@pytest.mark.parametrize("later", [LOST, "nvmlGpmMetricsGet 15"])
def test_a_gpu_that_is_lost_is_a_refusal(stub_nvml: StubNvml, later: str) -> None:
    found = stub_nvml.ask("read", "gpm", pauses=[SHOWN_S, WINDOW_S], later=later)
    assert found["samples"][:2] == [{}, pytest.approx(ODD)]
    assert found["samples"][2] == found["whole"] == [
        "the GPU is lost: the driver cannot reach it any more",
        "restart the machine; `sudo dmesg | grep Xid` shows why"]


def test_the_sampler_keeps_the_windows_before_the_gpu_was_lost(stub_nvml: StubNvml) -> None:
    found = stub_nvml.ask("sample", "gpm", later=LOST)
    assert found["outcome"]["status"] == "n/a"
    assert found["outcome"]["reason"].endswith("the GPU is lost: the driver cannot reach it any more")
    assert {row["counter"] for row in found["rows"]} == set(ODD)
    assert all(row["time_s"] is not None for row in found["rows"])
