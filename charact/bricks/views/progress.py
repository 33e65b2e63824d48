"""Progress of timing bricks."""

from charact.views.terminal.progress import LiveProgress


class BrickProgress(LiveProgress):
    """Progress of rounds over the bricks of a suite."""

    def pass_started(self, name: str) -> None:
        """Show the current step: timing rounds or memory."""
        self._progress.update(self._task, state="first round" if name == "bricks" else name)
        self._draw()

    def iteration(self, num_iterations: int, median_s: float) -> None:
        """Show the number of rounds, and the time of the last one."""
        if self._is_due:
            self._progress.update(self._task, state=f"{num_iterations} rounds, {median_s:.3g} s each")
            self._draw()
