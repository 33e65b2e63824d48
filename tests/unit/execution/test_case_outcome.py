"""What outcomes say in words."""

import pytest

from charact.execution.case_outcome import size


@pytest.mark.parametrize(("num_bytes", "words"), [
    (0, "0 B"), (999, "999 B"), (1536, "1.536 kB"), (300 * 10**6, "300 MB"), (80 * 2**30, "85.9 GB"),
    (1_234_567_890, "1.235 GB"),
])
def test_bytes_in_words(num_bytes: int, words: str) -> None:
    assert size(num_bytes) == words
