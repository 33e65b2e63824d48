"""cuDNN's choice of algorithms."""

import pytest
import torch
from support.remedied import chosen, program, refused

from charact.remedies.remedy import all_remedies

CONVOLUTION = {"convolution": 0.12, "GEMM": 0.05}


def test_programs_with_convolutions_on_a_gpu() -> None:
    (setting,) = chosen("cudnn-benchmark", program(device="cuda:0", operators=CONVOLUTION))
    assert setting.expected_frac == pytest.approx(0.1 * 0.12)


def test_programs_that_stay_as_they_are() -> None:
    assert "GPU" in refused("cudnn-benchmark", program(operators=CONVOLUTION))
    assert "convolution" in refused("cudnn-benchmark", program(device="cuda:0", operators={"GEMM": 0.1}))
    assert "already" in refused("cudnn-benchmark", program({"cudnn_benchmark": True}, device="cuda:0",
                                                           operators=CONVOLUTION))


def test_the_setting_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    all_remedies()["cudnn-benchmark"].apply()
    assert torch.backends.cudnn.benchmark is True
