"""Lightning: a callback that profiles a whole `fit`, `validate`, `test` or `predict`."""

from typing import Any

from charact.core.errors import UserError
from charact.profiler import Profiler

try:
    try:
        from lightning.pytorch import Callback
    except ImportError:
        from pytorch_lightning import Callback
except ImportError as error:
    raise UserError("charact.integrations.lightning needs Lightning: pip install 'charact[lightning]'") from error


class CharactCallback(Callback):  # type: ignore[misc]  # the framework has no types
    """Profiles each call of a `Trainer`, as one run: `Trainer(callbacks=[CharactCallback()])`.

    Training and validation are separate cases. With several processes, the first one is profiled.

    Args:
        name: name of the runs; by default the class of the trained module.
        out: parent directory of the runs' directories.
    """

    def __init__(self, name: str | None = None, out: str = "runs") -> None:
        self.profiler: Profiler | None = None
        """Profiler of the last call; its `run`, `iterations` and `phases` are available when the call has ended."""
        self._name, self._out = name, out

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Start to profile; Lightning calls it first."""
        self.profiler = Profiler(self._name or type(pl_module).__name__, self._out, enabled=trainer.is_global_zero)
        self.profiler.__enter__()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Write the run; Lightning calls it last, unless an error was raised."""
        if self.profiler is not None:
            self.profiler.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Write the run of the time until the error."""
        if self.profiler is not None:
            self.profiler.__exit__(type(exception), exception, exception.__traceback__)
