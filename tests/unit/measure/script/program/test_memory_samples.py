"""Memory, garbage collections and workers' times of a watched program: `charact.measure.script.session` writes them."""

import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from support.watched import cases, program_facts, training, watched
from torch.utils.data import DataLoader, Dataset

from charact.core.timeline import Iteration
from charact.measure.script.program.events import MemorySamples
from charact.measure.script.spans.event_log_reader import EventLog
from charact.record.schema import Rows

MIB = 2**20


class Slow(Dataset[torch.Tensor]):
    """Takes 20 ms an item."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.02)
        return torch.ones(4)


def rows_of(directory: Path, program: Callable[[], Any]) -> Rows:
    (_, tables), *_ = cases(watched(directory, program))
    return tables["program_iterations"]


def test_the_resident_set_grows_by_what_an_iteration_keeps(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, training(8, lambda _: (time.sleep(0.025), torch.ones(16 * MIB))))
    sizes = [row["rss_bytes"] for row in rows if row["rss_bytes"] is not None]
    assert len(sizes) >= 4
    growth = (sizes[-1] - sizes[0]) / (len(sizes) - 1)
    assert 0.7 * 64 * MIB < growth < 1.5 * 64 * MIB * 8 / len(sizes)
    assert {row["allocated_bytes"] for row in rows} == {None}


def test_long_collections_count_in_their_iterations(tmp_path: Path) -> None:
    garbage = [[number] for number in range(300_000)]
    before = len(gc.callbacks)
    rows = rows_of(tmp_path, training(4, lambda _: gc.collect()))
    assert len(gc.callbacks) == before
    assert any((row["gc_s"] or 0) >= 0.001 for row in rows)
    assert all(row["gc_s"] is None or 0.001 <= row["gc_s"] <= row["wall_s"] for row in rows)
    assert garbage


def test_only_the_part_of_a_collection_inside_of_an_iteration_counts() -> None:
    log = EventLog([Iteration(begin, begin + 10, []) for begin in (0, 10, 20)], [
        {"note": "collections", "rows": [[3, 5], [8, 12]]}, {"note": "workers' memory", "rows": [[15, 50]]},
        {"note": "memory", "rows": [[4, 100, None], [9, 200, 7], [25, 300, None]]}])
    ((_, tables),) = cases(log)
    rows = tables["program_iterations"]
    assert [row["gc_s"] for row in rows] == [4e-9, 2e-9, None]
    assert [(row["rss_bytes"], row["allocated_bytes"]) for row in rows] == [(200, 7), (None, None), (300, None)]
    assert [row["workers_bytes"] for row in rows] == [None, 50, None]


def test_time_in_forked_workers_is_what_they_sleep_and_without_workers_it_is_unknown(tmp_path: Path) -> None:
    def program(num_workers: int) -> Callable[[], Any]:
        def run() -> Any:
            model = torch.nn.Linear(4, 1)
            optimizer = torch.optim.SGD(model.parameters())
            loader = DataLoader(Slow(), batch_size=2, num_workers=num_workers)
            for batch in loader:
                model(batch).sum().backward()
                optimizer.step()
            return model, optimizer, loader

        return run

    times = []
    for num_workers in (0, 2):
        facts = program_facts(tmp_path / str(num_workers), program(num_workers))
        times.append(facts["settings"]["loaders"][0]["worker_fetch_s"])
    assert times[0] is None
    assert 8 * 0.02 <= times[1] < 5 * 8 * 0.02


def test_workers_memory_is_what_they_alone_hold() -> None:
    context = torch.multiprocessing.get_context("fork")
    ready, done = context.Event(), context.Event()

    def hold() -> None:
        held = bytearray(b"1" * (64 * MIB))
        ready.set()
        done.wait(60)
        assert held

    worker = context.Process(target=hold)
    worker.start()
    assert ready.wait(60)
    samples = MemorySamples()
    samples.watch_workers([worker.pid])
    assert samples.sample_workers()
    assert not samples.sample_workers()  # too early
    done.set()
    worker.join()
    deadline = time.monotonic() + 60
    while not samples.sample_workers():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert not samples.sample_workers()  # no worker is left
    (note,) = samples.take()
    ((_, held_bytes),) = note["rows"]  # type: ignore[misc,attr-defined]
    assert 64 * MIB <= held_bytes < 160 * MIB
