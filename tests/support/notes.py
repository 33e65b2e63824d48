"""An observer of runs that keeps what it is told."""

from typing import Any

from charact.core.observer import Observer


class Notes(Observer):
    """Keeps what it is told; it may act at a case's start."""

    def __init__(self, at_case: Any = None) -> None:
        self.told: list[tuple[Any, ...]] = []
        self._at_case = at_case

    def case_started(self, case_id: str, number: int, total: int) -> None:
        self.told.append(("case", case_id, number, total))
        if self._at_case:
            self._at_case(number)

    def pass_started(self, name: str) -> None:
        self.told.append(("pass", name))

    def iteration(self, num_iterations: int, median_s: float) -> None:
        assert median_s > 0

    def case_ended(self, status: str, reason: str | None) -> None:
        self.told.append(("ended", status))
