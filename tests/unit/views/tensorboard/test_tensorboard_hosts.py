"""Which hosts a request to TensorBoard may name."""

from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from tensorboard.plugins import base_plugin
from werkzeug.test import Client

from charact.views.tensorboard.plugin import CharactPlugin, allowed_hosts, guarded

LOCAL = ["localhost", "localhost:6006", "LOCALHOST:80", "127.0.0.1:6006", "[::1]:6006", "[::1]"]
FOREIGN = [
    "evil.example", "evil.example:6006", "127.0.0.1.evil.example", "localhost.evil.example:6006", "", "127.0.0.2",
    "localhost@evil.example", "evil.example@localhost", "localhost:x", "localhost/evil", "[::1", "localhost,evil",
]  # fmt: skip


def status(host: str, flags: Any = None) -> int:
    """Status of the answer to a request that names a host."""
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [])
        return [b""]

    environ = {"REQUEST_METHOD": "GET", "HTTP_HOST": host, "wsgi.url_scheme": "http", "SERVER_NAME": "x",
               "SERVER_PORT": "1"}
    codes: list[str] = []
    b"".join(guarded(app, allowed_hosts(flags))(environ, lambda code, headers: codes.append(code)))
    return int(codes[0].split()[0])


@pytest.mark.parametrize("host", LOCAL)
def test_this_machine_is_answered(host: str) -> None:
    assert status(host) == 200
    assert status(host, Namespace(host=None, bind_all=False)) == 200
    assert status(host, Namespace(host="10.0.0.7", bind_all=False)) == 200


@pytest.mark.parametrize("host", FOREIGN)
def test_another_host_is_refused(host: str) -> None:
    assert status(host) == 403
    assert status(host, Namespace(host="10.0.0.7", bind_all=False)) == 403


def test_a_host_that_the_user_chose_is_answered() -> None:
    assert status("Box.example:6006", Namespace(host="box.example", bind_all=False)) == 200
    assert status("[fe80::1]:6006", Namespace(host="fe80::1", bind_all=False)) == 200
    assert status("anything.example", Namespace(host=None, bind_all=True)) == 200


@pytest.mark.parametrize("flags", [None, Namespace(host="127.0.0.1", bind_all=False)])
def test_no_route_of_the_tab_answers_another_host(record: Path, flags: Namespace | None) -> None:
    apps = CharactPlugin(base_plugin.TBContext(logdir=str(record.parent), flags=flags)).get_plugin_apps()
    assert len(apps) >= 7
    for route, app in apps.items():
        refused = Client(app).get(route, headers={"Host": "evil.example"})
        assert (refused.status_code, refused.text.count("\n")) == (403, 1)
        assert Client(app).get(route, headers={"Host": "localhost:6006"}).status_code != 403
