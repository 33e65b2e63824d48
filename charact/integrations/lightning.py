"""Lightning: a callback that watches a whole `fit`, `validate`, `test` or `predict`."""

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


class CharactCallback(Callback):  # type: ignore[misc]  # the framework tells mypy nothing
    """Writes a run of each call of a `Trainer`: `Trainer(callbacks=[CharactCallback()])`.

    Training and validation become cases of their own. With several processes the first one is watched.

    Args:
        name: name of the runs; by default the class of the module that is trained.
        out: directory that the runs' directories are made in.
    """

    def __init__(self, name: str | None = None, out: str = "runs") -> None:
        self.profiler: Profiler | None = None
        """That of the last call; its `run`, `iterations` and `phases` are there when the call has ended."""
        self._name, self._out = name, out

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Begin; Lightning calls it first."""
        self.profiler = Profiler(self._name or type(pl_module).__name__, self._out, enabled=trainer.is_global_zero)
        self.profiler.__enter__()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Write the run; Lightning calls it last, unless something was raised."""
        if self.profiler is not None:
            self.profiler.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Write the run of what there was until something was raised."""
        if self.profiler is not None:
            self.profiler.__exit__(type(exception), exception, exception.__traceback__)
