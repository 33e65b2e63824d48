"""Times of a function's calls, by the clock of the device that it uses."""

from collections.abc import Callable

import torch

from charact.measure.passes.phase_timer import HostPhases, phases_for


class CallTimer:
    """Times calls by the host's clock, or by a GPU's events, which are read when the GPU has passed them.

    Args:
        work: function to call.
    """

    def __init__(self, work: Callable[[], object]) -> None:
        self.work, self.device = work, torch.device("cpu")
        self._phases = HostPhases()

    def use(self, device: torch.device) -> None:
        """Use the clock of a device."""
        self.device, self._phases = device, phases_for(device)

    def call(self, *, wait: bool = False) -> list[float]:
        """Call the function; return the times (s) of calls that have become available.

        Args:
            wait: whether to wait for the device. Otherwise the host is at most one call ahead of it.
        """
        with self._phases:
            self.work()
        if not wait:
            self._phases.keep_up()
        return self.available(wait=wait)

    def available(self, *, wait: bool) -> list[float]:
        """Return the times (s) of the calls that the device has finished, or of all."""
        return [iteration.wall_s for iteration in self._phases.take(wait=wait)]
