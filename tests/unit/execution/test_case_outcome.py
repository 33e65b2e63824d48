"""What outcomes say in words."""

import pytest

from charact.execution.case_outcome import size


@pytest.mark.parametrize(("num_bytes", "words"), [
    (0, "0 B"), (999, "999 B"), (1536, "1.5 KiB"), (300 * 2**20, "300 MiB"), (80 * 2**30, "80 GiB"),
    (1_234_567_890, "1.15 GiB"),
])
def test_bytes_in_words(num_bytes: int, words: str) -> None:
    assert size(num_bytes) == words
