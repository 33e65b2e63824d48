"""`charact tensorboard`."""

import functools
import io
import signal
import sys
import threading
from pathlib import Path
from typing import Annotated, Any, TextIO, cast

import typer

from charact.commands._shared import completion
from charact.core.errors import UserError
from charact.core.output import PrintableStream, show

# TensorBoard's default is 1000 scalars and 10 images per series.
_SAMPLES = "scalars=100000,images=100"


def command(
    logdir: Annotated[Path, typer.Argument(
        metavar="LOGDIR", help="Directory of runs, or one run.", autocompletion=completion.runs)] = Path("runs"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 takes any free one.")] = 6006,
) -> int:
    """Show runs in TensorBoard, on this machine only.

    Runs are in the Characterization tab, and their scalars in Time Series. An unfinished run is shown with its results
    so far; press Refresh to update. Ctrl-C stops the server.
    """
    if not logdir.is_dir():
        problem = "is a file" if logdir.exists() else "does not exist"
        raise UserError(f"{logdir} {problem}: give a directory of runs, such as charact profile's --out")

    from charact.record.runs import run_directories

    num_runs = sum(1 for _ in run_directories(logdir))
    address = _start(logdir, port)
    found = f"{num_runs} run{'s' if num_runs > 1 else ''}" if num_runs else "no runs yet"
    show(f"Serving {logdir} ({found}) with TensorBoard; Ctrl-C stops it")
    show(f"  Characterization  {address}#charact")
    show(f"  Time Series       {address}?smoothing=0#timeseries")
    if not num_runs:
        show(f"Write one, e.g. with charact profile resnet18 --out {logdir}, then press Refresh")
    _wait()
    return 0


def _start(logdir: Path, port: int) -> str:
    """Start the server in a thread; return its address, which ends in a slash."""
    from tensorboard import default, program

    from charact.commands._shared import runs
    from charact.views.tensorboard.plugin import CharactPlugin, allowed_hosts, guarded

    class Plugin(CharactPlugin):
        """The plugin, which also reads event logs of watched programs that have not ended."""

        read_run = staticmethod(functools.partial(runs.read_run, partial=True))

    def guarded_server(app: Any, flags: Any) -> Any:
        return program.create_port_scanning_werkzeug_server(guarded(app, allowed_hosts(flags)), flags)

    # Loggers of libraries would print names of runs.
    sys.stderr = cast(TextIO, PrintableStream(sys.stderr or io.StringIO()))
    plugins = [Plugin if plugin is CharactPlugin else plugin for plugin in default.get_plugins()]
    server = program.TensorBoard(plugins=plugins, server_class=guarded_server)
    flags = [f"--logdir={logdir}", "--host=127.0.0.1", f"--port={port}", f"--samples_per_plugin={_SAMPLES}"]
    server.configure(argv=["", *flags])
    try:
        return str(server.launch())
    except program.TensorBoardPortInUseError as error:
        raise UserError(f"port {port} is in use: choose another with --port, or any free one with --port 0") from error
    except program.TensorBoardServerException as error:
        raise UserError(f"cannot listen on 127.0.0.1:{port} ({error.msg}): choose another with --port") from error


def _wait() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        show("Stopped.")
