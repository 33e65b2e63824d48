"""Patches that record the fetches of data loaders, and their starts."""

import contextlib
import mmap
import weakref
from threading import get_ident
from time import perf_counter_ns
from typing import Any

from charact.measure.script.hooks.patch_context import PatchContext
from charact.measure.script.spans.recorder import Kind

_MOST_LOADERS, _MOST_WORKERS = 100, 64
_WORD_BYTES = 8


class LoaderPatches:
    """Patches of data loaders that record each fetch of a batch, and each start of an iterator, as a span.

    Forked workers of the first loaders add the times of their fetches to shared memory, see `notes`; workers that are
    started in another way have no patches, and add nothing. The context's replacements are what undoes the patches.
    """

    def __init__(self, context: PatchContext) -> None:
        self._context = context
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        """IDs of the loaders that were started, from 1."""
        self._num_loaders = 0
        self._starting = 0
        """ID of the loader that starts workers now; a forked worker keeps that of its own."""
        self.in_child = False
        """Whether this is a forked child of the watched program."""
        self._times = memoryview(mmap.mmap(-1, _MOST_LOADERS * _MOST_WORKERS * _WORD_BYTES)).cast("q")
        """Times (ns) of each worker of each loader."""
        self._noted: list[tuple[int, int]] = []
        self._loader_of: dict[int, int] = {}
        """Numbers of loaders by the owner ID of their iterators."""
        self._started: dict[int, tuple[int, int, int]] = {}
        """Loader, and begin and end of the start, of each iterator whose first batch was not fetched, by its `id`."""

    def install(self) -> None:
        """Install the patches."""
        from torch.utils.data import dataloader
        from torch.utils.data._utils import fetch

        replace = self._context.replacements.wrap
        replace(dataloader._BaseDataLoaderIter, "__next__", self._fetch)
        replace(dataloader.DataLoader, "__iter__", self._iterate)
        replace(dataloader.DataLoader, "__init__", self._create)
        for fetcher in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
            replace(fetcher, "fetch", self._fetch_in_worker)

    def _create(self, original: Any) -> Any:
        """Wrap the constructor, to note which line calls it."""
        places = self._context.places

        def wrapper(loader: Any, *args: Any, **kwargs: Any) -> None:
            places.note(loader)
            original(loader, *args, **kwargs)

        return wrapper

    def _iterate(self, original: Any) -> Any:
        """Wrap the creation of an iterator, which may start workers, or the restart of persistent ones."""
        recorder = self._context.recorder

        def wrapper(loader: Any) -> Any:
            if not recorder.on or get_ident() != self._context.thread:
                return original(loader)
            begin_ns, opens = perf_counter_ns(), self._context.may_open(Kind.FETCH)
            if loader not in self._numbers:
                from charact.measure.script.program.settings import loader_settings

                self._num_loaders += 1
                self._numbers[loader] = self._num_loaders
                with contextlib.suppress(Exception):  # the program's own loader may be anything
                    self._context.events.loader(
                        self._num_loaders, loader_settings(loader) | self._context.places.of(loader))
            self._starting = number = self._numbers[loader]
            if opens:
                recorder.enter(Kind.FETCH)
            try:
                iterator = original(loader)
            finally:
                self._starting = 0
                if opens:
                    recorder.leave()
            self._started[id(iterator)] = number, begin_ns, perf_counter_ns()
            workers = getattr(iterator, "_workers", ())
            self._context.events.memory.watch_workers(worker.pid for worker in workers)
            return iterator

        return wrapper

    def _fetch(self, original: Any) -> Any:
        """Wrap the fetch of a batch; a fetch that finds no batch starts no iteration."""
        recorder = self._context.recorder

        def wrapper(iterator: Any) -> Any:
            if not self._context.may_open(Kind.FETCH):
                return original(iterator)
            number = self._context.owner_id(iterator)
            started = self._started.pop(id(iterator), None)
            recorder.enter(Kind.FETCH, number)
            fetch_ns = recorder.changed_ns
            try:
                batch = original(iterator)
            except StopIteration:
                recorder.leave_as(Kind.EXHAUSTED)
                self._context.events.batch_loader = 0
                raise
            except BaseException:
                recorder.drop()
                raise
            recorder.leave()
            if started is not None:
                self._loader_of[number] = started[0]
                self._context.events.epoch(*started, number, fetch_ns, recorder.changed_ns)
            self._context.events.batch_loader = self._loader_of.get(number, 0)
            if recorder.idle:
                self._context.on_span_end(Kind.FETCH, number)
            return batch

        return wrapper

    def _fetch_in_worker(self, original: Any) -> Any:
        """Wrap the method of a fetcher that returns a batch."""
        def wrapper(fetcher: Any, index: Any) -> Any:
            if not self.in_child:
                return original(fetcher, index)
            begin_ns = perf_counter_ns()
            try:
                return original(fetcher, index)
            finally:
                from torch.utils.data import get_worker_info

                worker = get_worker_info()
                if worker is not None and worker.id < _MOST_WORKERS and 0 < self._starting <= _MOST_LOADERS:
                    self._times[(self._starting - 1) * _MOST_WORKERS + worker.id] += perf_counter_ns() - begin_ns

        return wrapper

    def notes(self) -> list[dict[str, Any]]:
        """Return a note with the time of each loader's workers, if it has changed since the last call."""
        rows = [(number, total) for number in range(1, min(self._num_loaders, _MOST_LOADERS) + 1)
                if (total := sum(self._times[(number - 1) * _MOST_WORKERS:number * _MOST_WORKERS]))]
        if rows == self._noted:
            return []
        self._noted = rows
        return [{"note": "worker fetch", "rows": rows}]
