"""Downloads from a server on loopback: verified, in place only when right; and every way that they fail."""

import io
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from support.file_server import FileServer, serving

from charact.core.bounded_reading import limited_to
from charact.core.errors import UserError
from charact.datasets import _fetch
from charact.datasets._fetch import check_address, download

CONTENT = bytes(range(256)) * 40
SIZE = len(CONTENT)
LIMIT = 2**20


@pytest.fixture(autouse=True)
def direct(monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxy that the environment names."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server() -> Iterator[FileServer]:
    with serving({"set.gz": CONTENT}) as server:
        yield server


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "set" / "set.gz"


def verify(part: Path) -> None:
    if part.read_bytes() != CONTENT:
        raise UserError("it is wrong")


def fetch(server: FileServer, target: Path, num_bytes: int | None = SIZE, told: Any = lambda done, total: None) -> None:
    download(f"{server.address}set.gz", target, num_bytes, LIMIT, verify, told)


def assert_fetched(target: Path) -> None:
    assert target.read_bytes() == CONTENT
    assert [path.name for path in target.parent.iterdir()] == ["set.gz"]


@pytest.mark.parametrize("num_bytes", [SIZE, None])
@pytest.mark.parametrize("no_lengths", [False, True])
def test_a_file_arrives_whole_and_its_progress_is_told(server: FileServer, target: Path, num_bytes: int | None,
                                                       no_lengths: bool) -> None:
    server.no_lengths = no_lengths
    told: list[tuple[int, int | None]] = []
    fetch(server, target, num_bytes, lambda done, total: told.append((done, total)))
    assert_fetched(target)
    assert told[-1] == (SIZE, None if no_lengths and num_bytes is None else SIZE)
    assert [done for done, _ in told] == sorted(done for done, _ in told)


@pytest.mark.parametrize("num_bytes", [SIZE, None])
def test_a_connection_that_is_cut_leaves_nothing(server: FileServer, target: Path, num_bytes: int | None) -> None:
    server.cuts = [3_000]
    with pytest.raises(UserError, match=r"set.gz (was cut|cannot be fetched).*: try later, or name"):
        fetch(server, target, num_bytes)
    assert list(target.parent.iterdir()) == []


def test_a_file_that_is_wrong_is_deleted_and_leaves_the_old_one(server: FileServer, target: Path) -> None:
    server.files["set.gz"] = CONTENT[::-1]
    target.parent.mkdir()
    target.write_bytes(b"old")
    with pytest.raises(UserError, match=r"^it is wrong$"):
        fetch(server, target)
    assert [path.name for path in target.parent.iterdir()] == ["set.gz"]
    assert target.read_bytes() == b"old"


def test_an_announced_length_other_than_the_published_is_refused_before_it_is_fetched(server: FileServer,
                                                                                      target: Path) -> None:
    server.files["set.gz"] = CONTENT + b"more"
    with pytest.raises(UserError, match=r"has 10,244 bytes, 10,240 were published: name a mirror with --source"):
        fetch(server, target)
    assert list(target.parent.iterdir()) == []


def test_a_stream_longer_than_published_is_not_taken_to_its_end(server: FileServer, target: Path) -> None:
    server.files["set.gz"] = CONTENT * 1_000
    server.no_lengths = True
    longest = 0

    def told(done: int, total: int | None) -> None:
        nonlocal longest
        longest = done

    with pytest.raises(UserError, match=r"^it is wrong$"):
        fetch(server, target, SIZE, told)
    assert SIZE < longest <= SIZE + 2**18
    assert list(target.parent.iterdir()) == []


@pytest.mark.parametrize(("status", "headers", "said"), [
    (404, {}, r"cannot be fetched \(404 Not Found\)"),
    (416, {}, r"cannot be fetched \(416 Requested Range Not Satisfiable\)"),
    (500, {}, r"cannot be fetched \(500 Internal Server Error\)"),
    (302, {"Location": "file:///etc/hostname"}, r"cannot be fetched \(it is redirected to an invalid address\)"),
    (307, {"Location": "ftp://127.0.0.1/x"}, r"cannot be fetched \(it is redirected to an invalid address\)"),
    (302, {"Location": "http://[::"}, r"cannot be fetched \(Invalid IPv6 URL\)"),
    (303, {"Location": "set.gz"}, r"cannot be fetched \(it has too many redirections\)"),
    (302, {}, r"cannot be fetched \(302 Found\)"),
])
def test_an_answer_without_the_file_is_one_line(server: FileServer, target: Path, status: int, headers: dict[str, str],
                                                said: str) -> None:
    server.status, server.headers = status, headers
    with pytest.raises(UserError, match=rf"^http://127.*/set.gz {said}: try later, or name a mirror with --source$"):
        fetch(server, target)
    assert list(target.parent.iterdir()) == []


@pytest.mark.parametrize("raw", [b"", b"\n", b"SSH-2.0-x\r\n", b"HTTP/1.1 abc\r\n\r\n",
                                 b"HTTP/1.1 200 OK\r\nX" * 9_999])
def test_what_is_no_answer_of_a_web_server_is_one_line(server: FileServer, target: Path, raw: bytes) -> None:
    server.raw = raw
    with pytest.raises(UserError, match="cannot be fetched") as refusal:
        fetch(server, target)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 400


def test_a_redirection_is_followed(server: FileServer, target: Path) -> None:
    with serving({}) as other:
        other.status, other.headers = 301, {"Location": f"{server.address}set.gz"}
        download(f"{other.address}set.gz", target, SIZE, LIMIT, verify, lambda done, total: None)
    assert_fetched(target)


def test_a_redirection_from_https_to_http_is_not_followed(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(self: Any, address: str, **options: Any) -> Any:
        asked.append(address)
        response = requests.Response()
        response.status_code, response.headers["Location"] = 301, "http://127.0.0.1:1/set.gz"
        response.raw = io.BytesIO()
        return response

    asked: list[str] = []
    monkeypatch.setattr(requests.Session, "get", answer)
    with pytest.raises(UserError, match=r"^https://a.test/set.gz cannot be fetched \(it is redirected from https"):
        download("https://a.test/set.gz", target, SIZE, LIMIT, verify, lambda done, total: None)
    assert asked == ["https://a.test/set.gz"]


def test_the_body_of_a_redirection_is_not_read(server: FileServer, target: Path) -> None:
    with serving({}) as other:
        head = f"HTTP/1.1 302 Found\r\nLocation: {server.address}set.gz\r\nContent-Length: {2**40}\r\n\r\n"
        other.raw = head.encode() + bytes(2**16)
        download(f"{other.address}set.gz", target, SIZE, LIMIT, verify, lambda done, total: None)
    assert_fetched(target)


@pytest.mark.parametrize("no_lengths", [False, True])
def test_a_file_of_unknown_size_is_limited(server: FileServer, target: Path, no_lengths: bool) -> None:
    server.files["set.gz"] = bytes(2 * LIMIT)
    server.no_lengths = no_lengths
    taken = 0

    def told(done: int, total: int | None) -> None:
        nonlocal taken
        taken = done

    with pytest.raises(UserError, match=r"set.gz has .*, the limit is 1.0 MiB: if you trust it, raise the limit with "):
        fetch(server, target, None, told)
    assert taken <= LIMIT + 2**18
    assert list(target.parent.iterdir()) == []
    with limited_to(2 * LIMIT):
        download(f"{server.address}set.gz", target, None, 2 * LIMIT, lambda part: None, told)
    assert target.stat().st_size == 2 * LIMIT


def test_a_refused_connection_is_one_line(target: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with pytest.raises(UserError, match=rf"^http://127.0.0.1:{port}/set.gz cannot be fetched \(connection refused\)"):
        download(f"http://127.0.0.1:{port}/set.gz", target, None, LIMIT, verify, lambda done, total: None)


def test_an_unknown_host_is_one_line(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with pytest.raises(UserError, match=r"^http://nowhere/set.gz cannot be fetched \(name or service not known\)"):
        download("http://nowhere/set.gz", target, None, LIMIT, verify, lambda done, total: None)


def test_a_server_that_never_answers_is_one_line(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_fetch, "TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/set.gz"
        with pytest.raises(UserError, match=r"cannot be fetched \(.*timed out"):
            download(address, target, None, LIMIT, verify, lambda done, total: None)


def test_a_server_that_stops_in_the_middle_is_one_line(server: FileServer, target: Path,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_fetch, "TIMEOUT_S", 0.1)
    server.hold = threading.Event()
    with pytest.raises(UserError, match=r"set.gz cannot be fetched \(.*timed out.*\): try later"):
        fetch(server, target)
    assert list(target.parent.iterdir()) == []


def test_a_place_that_cannot_be_written_is_one_line(server: FileServer, target: Path) -> None:
    target.parent.write_bytes(b"a file")
    with pytest.raises(UserError, match=r"cannot write .*set.gz \((file exists|not a directory)\)"):
        fetch(server, target)
    assert server.paths == []


def test_two_fetches_at_once_leave_one_right_file(server: FileServer, target: Path) -> None:
    threads = [threading.Thread(target=fetch, args=(server, target)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert_fetched(target)


def test_the_environments_proxy_is_asked(server: FileServer, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", server.address)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    download("http://nowhere.test/set.gz", target, SIZE, LIMIT, verify, lambda done, total: None)
    assert_fetched(target)
    assert server.paths == ["http://nowhere.test/set.gz"]


@pytest.mark.parametrize("address", [
    "", "mnist", "ftp://a/b", "file:///etc/passwd", "http://", "http:///a", "http://[a", "http://a:b/", "http://a:99999/",
    "http://a/b c", "http://a/ä", "http://a/\n", "javascript:x",
])
def test_what_is_no_address_of_the_web_is_refused(address: str) -> None:
    with pytest.raises(UserError, match=r"is not the address of a web server: write it as in https://mirror.org/mnist/"):
        check_address(address)


@pytest.mark.parametrize("address", ["http://a/", "https://a.org:8443/b?c=d", "HTTP://127.0.0.1:1/x", "http://[::1]/"])
def test_addresses_of_the_web_are_taken(address: str) -> None:
    check_address(address)


def test_the_server_of_these_tests_is_stopped() -> None:
    with serving({}) as server:
        port = server.server_port
    begun = time.monotonic()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    assert time.monotonic() - begun < 5
