"""Products in bfloat16 by autocast."""

from typing import Any

import pytest
from support.remedied import Trials, chosen, program, refused

PRODUCTS = {"GEMM": 0.02, "convolution": 0.05, "attention": 0.01, "copy": 0.06}


def with_flags(*flags: str, **facts: Any) -> Any:
    of = program(operators=PRODUCTS, **facts)
    vars(of)["cpu_flags"] = set(flags)
    return of


@pytest.mark.parametrize("flag", ["avx512_bf16", "amx_bf16", "bf16"])
def test_processors_with_bfloat16(flag: str) -> None:
    (setting,) = chosen("bf16-autocast", with_flags("sse2", flag))
    assert setting.values == {"device": "cpu"}
    assert setting.expected_frac == pytest.approx(0.3 * 0.08)


def test_a_gpu_needs_no_flag() -> None:
    assert chosen("bf16-autocast", with_flags(device="cuda:1"))[0].values == {"device": "cuda"}


@pytest.mark.parametrize("precision", ["fp32", "as written"])
def test_precisions_that_can_be_lowered(precision: str) -> None:
    assert chosen("bf16-autocast", with_flags("bf16", precision=precision))


def test_programs_that_stay_as_they_are() -> None:
    assert "bf16" in refused("bf16-autocast", with_flags("sse2", "avx2"))
    assert "bf16 already" in refused("bf16-autocast", with_flags("bf16", precision="bf16"))


def test_the_output_is_bfloat16(trials: Trials) -> None:
    assert trials.without["type"] == "torch.float32"
    assert trials.remedied["type"] == "torch.bfloat16"
