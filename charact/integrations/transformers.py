"""Hugging Face transformers: a callback that profiles a `Trainer`'s training."""

import weakref
from typing import Any

from charact.core.errors import UserError
from charact.profiler import Profiler

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise UserError("charact.integrations.transformers needs transformers: pip install 'charact[transformers]'"
                    ) from error


class CharactCallback(TrainerCallback):  # type: ignore[misc]  # the framework has no types
    """Profiles each training of a `Trainer`, as one run: `Trainer(..., callbacks=[CharactCallback("bert")])`.

    Training and the evaluations in it are separate cases. With several processes, the first one is profiled. If a
    training raises an error, transformers calls no callback: the run is written when the next training begins, or when
    the callback is deleted. `with charact.Profiler(name): trainer.train()` writes it at once.

    Args:
        name: name of the runs; by default the class of the trained model.
        out: parent directory of the runs' directories.
    """

    def __init__(self, name: str | None = None, out: str = "runs") -> None:
        self.profiler: Profiler | None = None
        """Profiler of the last training; its `run`, `iterations` and `phases` are available when it has ended."""
        self._name, self._out = name, out
        self._close: weakref.finalize[[], CharactCallback] | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start to profile."""
        if self._close is not None:
            self._close()
        self.profiler = Profiler(self._name or type(kwargs["model"]).__name__, self._out,
                                 enabled=state.is_world_process_zero)
        self.profiler.__enter__()
        self._close = weakref.finalize(self, self.profiler.close, "not reported")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write the run."""
        if self.profiler is not None:
            self.profiler.close()
