"""Reading the JSON of suites and compositions from others."""

import pytest

from charact.bricks.suite.brick import strict_json


@pytest.mark.parametrize("data", [
    b"NaN", b"[Infinity]", b"1e999", b"[-1e999]", rb'"\ud800"', b'"\xed\xa0\x80"', '"a"'.encode("utf-16"), b'{"a": }',
])  # fmt: skip
def test_what_no_file_of_a_suite_holds_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  (each has words of its own)
        strict_json(data)


def test_ordinary_json_is_read() -> None:
    assert strict_json('{"ä": [1, 1e300, "\\u00e4", "\\ud83d\\ude00"]}'.encode()) == {"ä": [1, 1e300, "ä", "😀"]}
