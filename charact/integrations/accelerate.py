"""Hugging Face Accelerate: a tracker that profiles a loop from `init_trackers` to `end_training`."""

import weakref
from typing import Any

from charact.core.errors import UserError
from charact.profiler import Profiler

try:
    from accelerate import PartialState
    from accelerate.tracking import GeneralTracker
except ImportError as error:
    raise UserError("charact.integrations.accelerate needs Accelerate: pip install 'charact[accelerate]'") from error


class CharactTracker(GeneralTracker):  # type: ignore[misc]  # the framework has no types
    """Profiles a loop without changes to its code: `Accelerator(log_with=CharactTracker("my model"))`.

    The run begins with `accelerator.init_trackers(...)` and is written by `accelerator.end_training()`. With several
    processes, the main one is profiled. If the loop raises an error, the run is written when the tracker is deleted.
    `with charact.Profiler(name):` around the loop needs no tracker, and writes it at once.

    Args:
        name: name of the run.
        out: parent directory of the run's directory.
    """

    name = "charact"
    requires_logging_directory = False

    def __init__(self, name: str, out: str = "runs") -> None:
        super().__init__()
        self.profiler: Profiler | None = None
        """Its `run`, `iterations` and `phases` are available when the training has ended."""
        self._run_name, self._out = name, out

    @property
    def tracker(self) -> Profiler | None:
        """The profiler, for Accelerate."""
        return self.profiler

    def start(self) -> None:
        """Start to profile."""
        self.profiler = Profiler(self._run_name, self._out, enabled=PartialState().is_main_process)
        self.profiler.__enter__()
        weakref.finalize(self, self.profiler.close, "not reported")

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Ignore the configuration."""

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Ignore logged values."""

    def finish(self) -> None:
        """Write the run."""
        if self.profiler is not None:
            self.profiler.close()
