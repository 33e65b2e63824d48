"""Reading the JSON of suites and compositions from others."""

from pathlib import Path

import pytest

from charact.bricks.suite.brick import parsed
from charact.core.errors import UserError


@pytest.mark.parametrize("data", [
    b"NaN", b"[Infinity]", b"1e999", b"[-1e999]", rb'"\ud800"', b'"\xed\xa0\x80"', '"a"'.encode("utf-16"), b'{"a": }',
    b"[" * 100_000,
])  # fmt: skip
def test_what_no_file_of_a_suite_holds_is_one_line(data: bytes) -> None:
    with pytest.raises(UserError, match=r"^x is not part of a suite \(.*\): copy the suite again"):
        parsed(Path("x"), data, lambda entry: entry)


def test_ordinary_json_is_read() -> None:
    data = '{"ä": [1, 1e300, "\\u00e4", "\\ud83d\\ude00"]}'.encode()
    assert parsed(Path("x"), data, lambda entry: entry) == {"ä": [1, 1e300, "ä", "😀"]}
