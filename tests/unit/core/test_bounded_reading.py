"""Limits on what files from others unpack to."""

import io

import pytest

from charact.core.bounded_reading import VARIABLE, BoundedStream, check_declared, limited_to, parse_bytes, read_all
from charact.core.errors import UserError


@pytest.mark.parametrize(("text", "num_bytes"), [("1", 1), ("8GiB", 2**33), ("500M", 500 * 2**20), ("1.5 kB", 1536)])
def test_a_size_is_parsed(text: str, num_bytes: int) -> None:
    assert parse_bytes(text, "--max-bytes") == num_bytes


@pytest.mark.parametrize("text", ["", "0", "-1", "many", "1e9", "8GiBs", "9" * 40])
def test_what_is_no_size_is_one_line(text: str) -> None:
    with pytest.raises(UserError, match=r"--max-bytes: .* is not a size"):
        parse_bytes(text, "--max-bytes")


def test_a_declared_size_above_the_limit_is_refused() -> None:
    check_declared(100, "a.zip", 100)
    with pytest.raises(UserError, match=r"a\.zip unpacks to"):
        check_declared(101, "a.zip", 100)


def test_a_real_size_above_the_limit_is_refused() -> None:
    assert read_all(io.BytesIO(bytes(100)), "a", 100) == bytes(100)
    with pytest.raises(UserError, match="a unpacks to more than"):
        read_all(io.BytesIO(bytes(101)), "a", 100)
    stream = BoundedStream(io.BytesIO(bytes(101)), "a", 100)
    assert len(stream.read(60)) == 60
    with pytest.raises(UserError, match="a unpacks to more than"):
        stream.read()


def test_the_user_raises_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "1KiB")
    assert len(read_all(io.BytesIO(bytes(1000)), "a", 100)) == 1000
    with limited_to(10), pytest.raises(UserError):
        read_all(io.BytesIO(bytes(1000)), "a", 100)
