"""TensorBoard's tab "Characterization". Imports are light: one that fails prevents TensorBoard from starting."""

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tensorboard.backend import http_util
from tensorboard.plugins import base_plugin
from werkzeug import Request, Response

from charact.core.errors import UserError
from charact.views.html.scripts import TEMPLATES, scripts
from charact.views.tensorboard.records import Records

if TYPE_CHECKING:
    from charact.record.reader import Run

_LOG = logging.getLogger("tensorboard")
_HERE = Path(__file__).parent
_FILES = {
    "/index.js": (_HERE / "index.js", "text/javascript"),
    "/style.css": (_HERE / "style.css", "text/css"),
    "/report.css": (TEMPLATES / "style.css", "text/css"),
}
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
    """Wrap the app: it answers requests to other hosts with status 403 and one line.

    This protects from DNS rebinding by foreign pages.
    """

    def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        try:
            host = urlsplit(f"//{environ.get('HTTP_HOST', '')}")
            host.port  # noqa: B018 - raises an error where it is no number
            valid = host.netloc == environ.get("HTTP_HOST") and "@" not in host.netloc
        except ValueError:
            valid = False
        if hosts is None or (valid and host.hostname in hosts):
            return app(environ, start_response)
        message = "this TensorBoard answers requests to localhost only: open it there, or start it with --host"
        return Response(message + "\n", status=403, content_type="text/plain")(environ, start_response)

    return answer


class CharactPlugin(base_plugin.TBPlugin):  # type: ignore[misc]  # TensorBoard has no types
    """Serves the front end, the list of runs, and their sections, with TensorBoard's own content security policy."""

    plugin_name = "charact"
    read_run: Callable[[Path], "Run"] | None = None
    """Function that reads an unfinished run, as in `Records`."""

    def __init__(self, context: base_plugin.TBContext) -> None:
        self._records = Records(context.logdir or "", type(self).read_run)
        self._hosts = allowed_hosts(context.flags)

    def is_active(self) -> bool:
        """Return whether there is a run to show."""
        return self._records.exist()

    def frontend_metadata(self) -> base_plugin.FrontendMetadata:
        """Return the tab's name and the path of its script."""
        return base_plugin.FrontendMetadata(es_module_path="/index.js", tab_name="Characterization")

    def get_plugin_apps(self) -> dict[str, Callable[..., Any]]:
        """Return the routes below /data/plugin/charact; none answers a request to a foreign host."""
        routes = {route: _serve_file(path, content_type) for route, (path, content_type) in _FILES.items()}
        routes |= {
            "/report.js": Request.application(_serve_scripts),
            "/runs": Request.application(self._serve_runs),
            "/sections": Request.application(self._serve_sections),
            "/comparison": Request.application(self._serve_comparison),
        }
        return {route: guarded(app, self._hosts) for route, app in routes.items()}

    def _serve_runs(self, request: Request) -> Response:
        return _answer(request, self._records.listing)

    def _serve_sections(self, request: Request) -> Response:
        """Answer `?run=ID` with a list of {id, title, html}; with `&only_first`, that of the first section only."""
        only_first = "only_first" in request.args
        return _answer(request, lambda: self._records.sections(request.args.get("run", ""), only_first=only_first))

    def _serve_comparison(self, request: Request) -> Response:
        """Answer `?run=ID&run=ID...` with a list of {id, title, html}; the first run is the baseline."""
        return _answer(request, lambda: self._records.comparison(request.args.getlist("run")))


def _serve_file(path: Path, content_type: str) -> Callable[..., Any]:
    def serve(request: Request) -> Response:
        return _respond(request, path.read_bytes(), content_type)

    return Request.application(serve)


def _serve_scripts(request: Request) -> Response:
    return _respond(request, scripts(), "text/javascript")


def _answer(request: Request, read: Callable[[], Any]) -> Response:
    try:
        return _respond(request, read())
    except KeyError as error:
        message = f"no run {error} in the log directory: press Refresh to see the existing runs"
        return _respond(request, {"error": message}, code=404)
    except UserError as error:
        return _respond(request, {"error": str(error)}, code=422)
    except Exception as error:
        # Last resort: a page that fails for any reason must not break the others.
        _LOG.exception("charact cannot show %s", request.full_path)
        cause = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        return _respond(request, {"error": f"this page cannot be shown ({cause}); see TensorBoard's log"}, code=422)


def _respond(request: Request, content: Any, content_type: str = "application/json", code: int = 200) -> Response:
    response: Response = http_util.Respond(request, content, content_type, code)
    return response
