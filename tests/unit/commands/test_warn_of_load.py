"""The warning about other programs at the start of a measurement."""

import pytest

from charact.commands._shared.run_cases import warn_of_load


@pytest.mark.parametrize(("others_cores", "is_warned"), [(0.9, True), (0.2, False)])
def test_many_busy_cores_are_a_warning(
        others_cores: float, is_warned: bool, capsys: pytest.CaptureFixture[str]) -> None:
    warn_of_load(others_cores, 2)
    warned = "other programs hold 0.9 of 2 cores: this takes longer, and there may be no verdict"
    assert capsys.readouterr().err.startswith(warned) == is_warned
