import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.forked import Server

CHARACT = [sys.executable, "-m", "charact", "tensorboard"]


@contextmanager
def started(logdir: Path) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """The command running on a free port, and the lines it printed when it was ready."""
    server = subprocess.Popen([*CHARACT, str(logdir), "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True)  # fmt: skip
    try:
        assert server.stdout is not None
        yield server, [server.stdout.readline() for _ in range(3)]
    finally:
        if server.poll() is None:
            server.kill()
        server.communicate(timeout=20)


@pytest.mark.slow_variants
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_serves_until_it_is_stopped(record: Path, stop: signal.Signals) -> None:
    with started(record.parent) as (server, lines):
        assert lines[0].startswith(f"Serving {record.parent} (1 run) ")
        address = re.search(r"(http://127\.0\.0\.1:\d+/)#charact", lines[1])
        assert address is not None
        assert f"{address[1]}?smoothing=0#timeseries" in lines[2]
        with urllib.request.urlopen(f"{address[1]}data/plugin/charact/runs") as answer:
            assert record.name in answer.read().decode()
        for page in ("", "data/plugin/charact/runs", "data/environment"):  # TensorBoard's own pages, too
            foreign = urllib.request.Request(f"{address[1]}{page}", headers={"Host": "evil.example"})
            with pytest.raises(urllib.error.HTTPError, match="403"):
                urllib.request.urlopen(foreign)
        server.send_signal(stop)
        out, err = server.communicate(timeout=20)
        assert server.returncode == 0
        assert out == "Stopped.\n"
        assert "Traceback" not in err


@pytest.mark.slow
def test_says_that_there_are_no_runs_yet(tmp_path: Path) -> None:
    with started(tmp_path) as (server, lines):
        assert "(no runs yet)" in lines[0]
        assert server.stdout is not None
        assert "charact profile" in server.stdout.readline()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of TensorBoard
def test_no_directory_is_refused(tmp_path: Path, refused: Callable[..., None]) -> None:
    (tmp_path / "file").touch()
    refused("tensorboard", tmp_path / "absent", said=f"error: {tmp_path / 'absent'} does not exist: ")
    refused("tensorboard", tmp_path / "file", said=f"error: {tmp_path / 'file'} is a file: ")


def test_a_port_that_is_taken_is_refused(record: Path, tmp_path: Path, server: Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = server.charact("tensorboard", str(record), "--port", str(port), cwd=tmp_path)
        assert done.returncode == 2
        assert done.stderr.splitlines()[-1] == (
            f"error: port {port} is in use: choose another with --port, or any free one with --port 0")
