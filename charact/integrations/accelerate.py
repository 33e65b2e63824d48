"""Hugging Face Accelerate: a tracker that watches a loop from `init_trackers` to `end_training`."""

import weakref
from typing import Any

from charact.core.errors import UserError
from charact.profiler import Profiler

try:
    from accelerate import PartialState
    from accelerate.tracking import GeneralTracker
except ImportError as error:
    raise UserError("charact.integrations.accelerate needs Accelerate: pip install 'charact[accelerate]'") from error


class CharactTracker(GeneralTracker):  # type: ignore[misc]  # the framework tells mypy nothing
    """Writes the run of a loop whose code stays as it is: `Accelerator(log_with=CharactTracker("my model"))`.

    It begins with `accelerator.init_trackers(...)` and is written by `accelerator.end_training()`. With several
    processes the main one is watched. A loop that raises an error does not get to its end: its run is written when the
    tracker goes. `with charact.Profiler(name):` around the loop needs no tracker, and writes it at once.

    Args:
        name: name of the run.
        out: directory that the run's directory is made in.
    """

    name = "charact"
    requires_logging_directory = False

    def __init__(self, name: str, out: str = "runs") -> None:
        super().__init__()
        self.profiler: Profiler | None = None
        """Its `run`, `iterations` and `phases` are there when the training has ended."""
        self._run_name, self._out = name, out

    @property
    def tracker(self) -> Profiler | None:
        """What tracks, as Accelerate asks for it."""
        return self.profiler

    def start(self) -> None:
        """Begin."""
        self.profiler = Profiler(self._run_name, self._out, enabled=PartialState().is_main_process)
        self.profiler.__enter__()
        weakref.finalize(self, self.profiler.close, "not told")

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Nothing: the configuration is none of what is measured."""

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Nothing: the values are none of what is measured."""

    def finish(self) -> None:
        """Write the run."""
        if self.profiler is not None:
            self.profiler.close()
