"""Products in TF32."""

from collections.abc import Iterator

import pytest
import torch
from support.remedied import chosen, program, refused

from charact.remedies.remedy import all_remedies


def test_programs_with_products_on_a_gpu() -> None:
    operators = {"convolution": 0.05, "GEMM": 0.03, "copy": 0.08}
    (setting,) = chosen("tf32", program({"matmul_tf32": False}, device="cuda:0", operators=operators))
    assert setting.expected_frac == pytest.approx(0.4 * 0.08)


def test_programs_that_stay_as_they_are() -> None:
    assert "GPU" in refused("tf32", program())
    assert "already" in refused("tf32", program({"matmul_tf32": True}, device="cuda:0"))


@pytest.fixture
def precision() -> Iterator[None]:
    """Restore the precision after the test."""
    matmul, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.set_float32_matmul_precision(matmul)
    torch.backends.cudnn.allow_tf32 = cudnn


@pytest.mark.usefixtures("precision")
def test_the_settings_are_made() -> None:
    all_remedies()["tf32"].apply()
    assert torch.get_float32_matmul_precision() == "high"
    assert torch.backends.cudnn.allow_tf32
