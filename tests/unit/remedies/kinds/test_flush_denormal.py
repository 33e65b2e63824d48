"""Denormal numbers that count as zero."""

import pytest
import torch
from support.remedied import Trials, chosen, program, refused

DENORMALS = {"denormals": (0.2, 0.4, "high")}


def test_programs_with_and_without_denormals() -> None:
    (setting,) = chosen("flush-denormal", program(findings=DENORMALS))
    assert setting.expected_frac == pytest.approx(0.3)
    assert "denormal" in refused("flush-denormal", program())
    assert "CPU" in refused("flush-denormal", program(findings=DENORMALS, device="cuda:0"))


def test_a_denormal_product_is_zero(trials: Trials) -> None:
    assert trials.without["denormal"] == pytest.approx(1e-40, rel=1e-4)
    assert 0 < trials.without["denormal"] < torch.finfo(torch.float32).tiny
    assert trials.remedied["denormal"] == 0
