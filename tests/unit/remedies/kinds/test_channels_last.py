"""Images and weights as NHWC."""

import pytest
from support.remedied import Trials, chosen, program, refused

NET = {"num_convolutions": 3, "channels_last": False}


def test_programs_with_convolutions() -> None:
    of = program({"models": [{"num_convolutions": 0}, NET, NET | {"channels_last": True}]},
                 operators={"convolution": 0.12, "GEMM": 0.05})
    (setting,) = chosen("channels-last", of)
    assert setting.expected_frac == pytest.approx(0.15 * 0.12)
    built_in = program(is_watched=False, operators={"convolution": 0.1})
    assert chosen("channels-last", built_in)[0].expected_frac == pytest.approx(0.15 * 0.1)
    (unknown,) = chosen("channels-last", program({"models": [NET]}))
    assert unknown.expected_frac == 0  # its operators were not measured


def test_programs_without_convolutions_or_in_this_format() -> None:
    assert "no model" in refused("channels-last", program({"models": [{"num_convolutions": 0}]}))
    assert "already" in refused("channels-last", program({"models": [NET | {"channels_last": True}]}))
    built_in = {"is_watched": False, "operators": {"GEMM": 0.1}}
    assert "no model" in refused("channels-last", program(**built_in))
    assert "already" in refused("channels-last", program(**built_in, options={"channels_last": True}))


def test_images_and_weights_change_their_format(trials: Trials) -> None:
    for fact in ("images", "weights"):
        assert (trials.without[fact], trials.remedied[fact]) == (False, True)
