"""OpenMP's threads that sleep while they wait."""

import pytest
from support.remedied import chosen, program, refused

from charact.remedies.remedy import all_remedies


def passive(policy: str) -> dict[str, dict[str, str]]:
    return {"environment": {"OMP_WAIT_POLICY": policy}}


def test_programs_whose_threads_wait() -> None:
    (setting,) = chosen("sleeping-threads", program(findings={"contention": (0.2, 0.4, "high")}))
    assert setting.expected_frac == pytest.approx(0.3)
    assert all_remedies()["sleeping-threads"].environment(setting.values) == {"OMP_WAIT_POLICY": "PASSIVE"}


@pytest.mark.parametrize(("loaders", "expected"), [
    ([], 0.0), ([{"num_workers": 0}], 0.0), ([{"num_workers": 0}, {"num_workers": 1}], 0.05)])
def test_workers_need_cores(loaders: list[dict[str, int]], expected: float) -> None:
    assert chosen("sleeping-threads", program({"loaders": loaders}))[0].expected_frac == expected


def test_programs_without_such_threads() -> None:
    assert "already" in refused("sleeping-threads", program(software=passive("PASSIVE")))
    assert chosen("sleeping-threads", program(software=passive("ACTIVE")))
    assert "CPU" in refused("sleeping-threads", program(device="cuda:0"))
