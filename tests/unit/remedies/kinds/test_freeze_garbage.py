"""Objects from before the loop that garbage collections leave out."""

import pytest
from support.remedied import Trials, chosen, program, refused


def test_programs_with_and_without_costly_collections() -> None:
    (setting,) = chosen("freeze-garbage", program(findings={"garbage_collection": (0.2, 0.4, "high")}))
    assert setting.expected_frac == pytest.approx(0.3)
    assert "collections" in refused("freeze-garbage", program())


def test_objects_are_frozen_once_at_the_first_call_of_a_model(trials: Trials) -> None:
    after, *later = trials.remedied["frozen"]
    assert after > trials.without["frozen"][0] + 10_000  # PyTorch alone has more objects
    assert all(after - 1000 < number <= after for number in later)  # each step makes 1000 objects
    assert len(set(trials.without["frozen"])) == 1
