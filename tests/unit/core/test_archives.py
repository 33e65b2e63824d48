"""Archives from others: what is asked for comes back, and damage and bombs are one line."""

import gzip
import io
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.damage import attempt, damaged

from charact.core import archives
from charact.core.archives import gunzip, tar_files, zip_file
from charact.core.errors import UserError

MADE = Path("made")
LIMIT = 2**20
TEXT = b"one line\n" * 100


def tar_bytes(*members: tuple[str, bytes], kind: bytes = tarfile.REGTYPE, form: int = tarfile.USTAR_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size, member.type, member.linkname = len(content), kind, "elsewhere"
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def packed_tar(*members: tuple[str, bytes], **options: Any) -> bytes:
    return gzip.compress(tar_bytes(*members, **options))


def zip_bytes(*members: tuple[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as file:
        for name, content in members:
            file.writestr(name, content)
    return buffer.getvalue()


def test_gz_members_are_joined_and_limited() -> None:
    assert gunzip(gzip.compress(b"a") + gzip.compress(b"b"), MADE, LIMIT) == b"ab"
    with pytest.raises(UserError, match=r"^made unpacks to more than 1.0 MiB"):
        gunzip(gzip.compress(bytes(LIMIT)) * 2, MADE, LIMIT)


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_a_tars_files_are_found_in_any_folder(form: int) -> None:
    other = "b/" + "long" * (20 if form == tarfile.USTAR_FORMAT else 80)  # longer ones have headers of their own
    archive = packed_tar(("a/first", TEXT), (other, b"x"), ("second", b""), ("a/b/c/third", b"3"), form=form)
    assert tar_files(archive, ("first", "second", "third"), MADE, LIMIT) == {
        "first": TEXT, "second": b"", "third": b"3"}
    with pytest.raises(UserError, match=r"^made has no fourth: fetch it again$"):
        tar_files(archive, ("first", "fourth"), MADE, LIMIT)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE,
                                  tarfile.GNUTYPE_SPARSE])
def test_what_is_no_file_counts_as_absent(kind: bytes) -> None:
    with pytest.raises(UserError, match="made has no first"):
        tar_files(packed_tar(("first", b""), kind=kind), ("first",), MADE, LIMIT)


def test_a_file_of_a_tar_twice_is_refused() -> None:
    with pytest.raises(UserError, match="made holds first twice: fetch it again"):
        tar_files(packed_tar(("a/first", b"1"), ("b/first", b"2")), ("first",), MADE, LIMIT)


def with_size(size: bytes) -> bytes:
    """A tar whose only file's header has another size."""
    block = bytearray(tar_bytes(("first", TEXT)))
    block[124:136] = size
    block[148:156] = f"{sum(block[:148]) + 256 + sum(block[156:512]):06o}\0 ".encode()
    return gzip.compress(bytes(block))


@pytest.mark.parametrize(("size", "said"), [
    (b"77777777777\0", "made unpacks to 8.0 GiB, the limit is 1.0 MiB"),
    (b"\x80" + b"\xff" * 11, "made unpacks to"),
    (b"\xff" * 12, r"made is a damaged archive \(ValueError\)"),
    (b"-0000000001\0", r"made is a damaged archive \(ValueError\)"),
    (b"00000777777\0", r"made is a damaged archive \(\w+Error\)"),
])
def test_a_size_that_lies(size: bytes, said: str) -> None:
    with pytest.raises(UserError, match=f"^{said}"):
        tar_files(with_size(size), ("first",), MADE, LIMIT)


def test_files_of_a_tar_are_limited_together_and_what_is_read_past_too(monkeypatch: pytest.MonkeyPatch) -> None:
    archive = packed_tar(("first", bytes(LIMIT // 2)), ("second", bytes(LIMIT // 2 + 1)))
    assert len(tar_files(archive, ("second",), MADE, LIMIT)["second"]) == LIMIT // 2 + 1
    with pytest.raises(UserError, match="made unpacks to"):
        tar_files(archive, ("first", "second"), MADE, LIMIT)
    monkeypatch.setattr(archives, "MOST_STREAM_BYTES", LIMIT)
    with pytest.raises(UserError, match=r"made unpacks to more than 1\.0 MiB"):
        tar_files(archive, ("third",), MADE, LIMIT)


def test_too_many_members_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "_MOST_MEMBERS", 10)
    assert tar_files(packed_tar(*[(f"{i}", b"") for i in range(10)]), (), MADE, LIMIT) == {}
    with pytest.raises(UserError, match="made is a damaged archive"):
        tar_files(packed_tar(*[(f"{i}", b"") for i in range(11)]), (), MADE, LIMIT)


def test_a_zips_file_is_found_in_any_folder() -> None:
    archive = zip_bytes(("a/b/first", TEXT), ("second", b"2"))
    assert zip_file(archive, "first", MADE, LIMIT) == TEXT
    with pytest.raises(UserError, match=r"^made has no third: fetch it again$"):
        zip_file(archive, "third", MADE, LIMIT)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_rare_compressions_are_refused(method: int) -> None:
    with pytest.raises(UserError, match="made is a damaged archive"):
        zip_file(zip_bytes(("first", TEXT), method=method), "first", MADE, LIMIT)


def change_all(archive: bytes, before: bytes, after: bytes) -> bytes:
    assert before in archive
    return archive.replace(before, after)


def encrypted(archive: bytes) -> bytes:
    at = archive.rindex(b"PK\x01\x02") + 8
    return archive[:at] + b"\x01" + archive[at + 1:]


@pytest.mark.parametrize(("archive", "said"), [
    (zip_bytes(("a/first", b"1"), ("b/first", b"2")), "made holds first twice"),
    (zip_bytes(("first", bytes(LIMIT + 1))), "made unpacks to 1.0 MiB, the limit is 1.0 MiB"),
    (encrypted(zip_bytes(("first", TEXT))), "made is a damaged archive"),
    (change_all(zip_bytes(("first", TEXT), method=zipfile.ZIP_STORED), b"one", b"two"), "made is a damaged archive"),
    (zip_bytes(("first", TEXT))[:-30], "made is a damaged archive"),
], ids=["twice", "too large", "encrypted", "wrong checksum", "cut off"])
def test_zips_that_are_refused(archive: bytes, said: str) -> None:
    with pytest.raises(UserError, match=f"^{said}"):
        zip_file(archive, "first", MADE, LIMIT)


def test_a_zip_that_unpacks_to_more_than_it_declares_is_not_unpacked_whole() -> None:
    archive = zip_bytes(("first", bytes(100 * LIMIT)))
    lying = change_all(archive, struct.pack("<I", 100 * LIMIT), struct.pack("<I", 1000))
    found = attempt(zip_file, lying, "first", MADE, LIMIT)
    assert isinstance(found, UserError)


def test_a_zips_list_of_members_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    archive = zip_bytes(*[(f"{number}", b"") for number in range(1_000)], ("first", TEXT))
    assert zip_file(archive, "first", MADE, LIMIT) == TEXT
    monkeypatch.setattr(archives, "MOST_DIRECTORY_BYTES", 2**15)
    with pytest.raises(UserError, match="made is a damaged archive"):
        zip_file(archive, "first", MADE, LIMIT)


READERS: list[tuple[bytes, Callable[[bytes], Any]]] = [
    (gzip.compress(TEXT), lambda content: gunzip(content, MADE, LIMIT)),
    (packed_tar(("a/first", TEXT)), lambda content: tar_files(content, ("first",), MADE, LIMIT)),
    (zip_bytes(("a/first", TEXT)), lambda content: zip_file(content, "first", MADE, LIMIT)),
]


@pytest.mark.parametrize("number", range(len(READERS)))
@given(data=st.data())
def test_damaged_archives_are_one_line_or_read(number: int, data: st.DataObject) -> None:
    content, read = READERS[number]
    attempt(read, data.draw(damaged(content) | st.binary(max_size=64)))
