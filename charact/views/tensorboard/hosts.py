"""Host check of TensorBoard requests: protects from DNS rebinding by foreign pages."""

from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import urlsplit

from werkzeug import Response

_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})

App = Callable[..., Iterable[bytes]]


def allowed_hosts(flags: Any) -> frozenset[str] | None:
    """Return the hosts that a request may name; None for all, if the user set `--bind_all`.

    Args:
        flags: TensorBoard's flags; None if it has none.
    """
    if getattr(flags, "bind_all", False):
        return None
    bound = getattr(flags, "host", None)
    return _LOCAL | {bound.lower().strip("[]")} if bound else _LOCAL


def guarded(app: App, hosts: frozenset[str] | None) -> App:
    """Wrap the app: it answers requests to other hosts with status 403 and one line."""

    def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        host = _name(environ.get("HTTP_HOST", ""))
        if hosts is None or host in hosts:
            return app(environ, start_response)
        message = "this TensorBoard answers requests to localhost only: open it there, or start it with --host"
        return Response(message + "\n", status=403, content_type="text/plain")(environ, start_response)

    return answer


def _name(host: str) -> str | None:
    """Return the name in a Host header, without its port; None if it is invalid."""
    try:
        split = urlsplit(f"//{host}")
        split.port  # noqa: B018 - raises an error where it is no number
    except ValueError:
        return None
    return split.hostname if split.netloc == host and "@" not in host else None
