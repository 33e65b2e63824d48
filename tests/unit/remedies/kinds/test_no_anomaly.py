"""Anomaly detection that is left off."""

import pytest
from support.remedied import Trials, chosen, program, refused


def test_programs_with_and_without_anomaly_detection() -> None:
    (setting,) = chosen("no-anomaly", program(findings={"anomaly_detection": (0.2, 0.4, "high")}))
    assert setting.expected_frac == pytest.approx(0.3)
    assert "off" in refused("no-anomaly", program(findings={"denormals": (0.2, 0.4, "high")}))


@pytest.mark.parametrize("fact", ["anomaly_by_function", "anomaly_in_context"])
def test_the_program_cannot_turn_it_on(trials: Trials, fact: str) -> None:
    assert (trials.without[fact], trials.remedied[fact]) == (True, False)
    assert (trials.without["anomaly_after"], trials.remedied["anomaly_after"]) == (False, False)
