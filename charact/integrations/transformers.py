"""Hugging Face transformers: a callback that watches a `Trainer`'s training."""

import weakref
from typing import Any

from charact.core.errors import UserError
from charact.profiler import Profiler

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise UserError("charact.integrations.transformers needs transformers: pip install 'charact[transformers]'"
                    ) from error


class CharactCallback(TrainerCallback):  # type: ignore[misc]  # the framework tells mypy nothing
    """Writes a run of each training of a `Trainer`: `Trainer(..., callbacks=[CharactCallback("bert")])`.

    Training and the evaluations in it become cases of their own. With several processes the first one is watched. A
    training that raises an error tells its callbacks nothing: its run is written when the next training begins, or
    when the callback goes. `with charact.Profiler(name): trainer.train()` writes it at once.

    Args:
        name: name of the runs; by default the class of the model that is trained.
        out: directory that the runs' directories are made in.
    """

    def __init__(self, name: str | None = None, out: str = "runs") -> None:
        self.profiler: Profiler | None = None
        """That of the last training; its `run`, `iterations` and `phases` are there when the training has ended."""
        self._name, self._out = name, out
        self._close: weakref.finalize[[], CharactCallback] | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin."""
        if self._close is not None:
            self._close()
        self.profiler = Profiler(self._name or type(kwargs["model"]).__name__, self._out,
                                 enabled=state.is_world_process_zero)
        self.profiler.__enter__()
        self._close = weakref.finalize(self, self.profiler.close, "not told")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write the run."""
        if self.profiler is not None:
            self.profiler.close()
