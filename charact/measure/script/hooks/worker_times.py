"""Time in which the workers of data loaders fetch and collate, measured inside of them. No torch in here."""

import mmap
from time import perf_counter_ns
from typing import Any

_MOST_LOADERS, _MOST_WORKERS = 100, 64
_WORD_BYTES = 8


class WorkerTimes:
    """Times (ns) in shared memory, one for each worker of each loader; forked workers add to them.

    Workers that are started in another way have no patches, and add nothing.
    """

    def __init__(self) -> None:
        self.starting = 0
        """ID, from 1, of the loader that starts workers now; a forked worker keeps that of its own."""
        self.in_child = False
        """Whether this is a forked child of the watched program."""
        self._times = memoryview(mmap.mmap(-1, _MOST_LOADERS * _MOST_WORKERS * _WORD_BYTES)).cast("q")
        self._noted: list[tuple[int, int]] = []

    def fetch(self, original: Any) -> Any:
        """Wrap the method of a fetcher that returns a batch."""
        def wrapper(fetcher: Any, index: Any) -> Any:
            if not self.in_child:
                return original(fetcher, index)
            begin_ns = perf_counter_ns()
            try:
                return original(fetcher, index)
            finally:
                self._add(perf_counter_ns() - begin_ns)

        return wrapper

    def notes(self, num_loaders: int) -> list[dict[str, Any]]:
        """Return a note with the time of each loader's workers, if it has changed."""
        rows = [(number, total) for number in range(1, min(num_loaders, _MOST_LOADERS) + 1)
                if (total := sum(self._times[(number - 1) * _MOST_WORKERS:number * _MOST_WORKERS]))]
        if rows == self._noted:
            return []
        self._noted = rows
        return [{"note": "worker fetch", "rows": rows}]

    def _add(self, time_ns: int) -> None:
        from torch.utils.data import get_worker_info

        worker = get_worker_info()
        if worker is not None and worker.id < _MOST_WORKERS and 0 < self.starting <= _MOST_LOADERS:
            self._times[(self.starting - 1) * _MOST_WORKERS + worker.id] += time_ns
