"""The warning about other programs at the start of a measurement."""

import pytest

from charact.commands._shared.run_cases import warn_of_load


@pytest.mark.parametrize(("others_s", "is_warned"), [(0.9, True), (0.2, False)])
def test_many_busy_cores_are_a_warning(others_s: float, is_warned: bool, capsys: pytest.CaptureFixture[str]) -> None:
    warn_of_load({"others_s": others_s, "length_s": 1.0, "num_usable_cores": 2})
    warned = "other programs hold 0.9 of 2 cores: this takes longer, and there may be no verdict"
    assert capsys.readouterr().err.startswith(warned) == is_warned


def test_an_interval_that_is_too_short_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    warn_of_load(None)
    assert capsys.readouterr().err == ""
