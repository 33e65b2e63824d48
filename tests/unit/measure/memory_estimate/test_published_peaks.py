"""Estimates against peaks that others published; `benchmarks/memory_published.py` has all of them."""

import memory_published
import pytest

from charact import memory


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vit_bf16", *(pytest.param(name, marks=pytest.mark.slow)
                                                for name in ("vit_fp32", "vit_mixed", "vit_bf16_sgd"))])
def test_reserved_memory_of_a_vision_transformer_is_as_published(name: str) -> None:
    peak = next(peak for peak in memory_published.PEAKS if peak.name == name)
    estimate = memory.estimate(peak.build, device=peak.device)
    assert estimate.facts["reserved_peak_bytes"] == pytest.approx(peak.published_bytes, rel=0.02)


def test_names_are_unique_and_every_peak_has_a_source() -> None:
    peaks = memory_published.PEAKS
    assert len({peak.name for peak in peaks}) == len(peaks) >= 10
    assert all(peak.source and peak.measure in ("reserved", "in use") for peak in peaks)
