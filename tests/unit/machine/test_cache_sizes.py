"""Sizes of caches from a tree like that of Linux."""

import os
from pathlib import Path

import pytest

from charact.machine.cache_sizes import CacheLevel, cache_levels

INDICES = {"index0": ("1", "Data", "48K", "each"), "index1": ("1", "Instruction", "32K", "each"),
           "index2": ("2", "Unified", "2M", "pair"), "index3": ("3", "Unified", "1G", "all")}


@pytest.mark.parametrize(("cores", "num_threads", "numbers"), [
    ({0, 1, 2, 3}, 8, (4, 2, 1)), ({0, 1, 2, 3}, 2, (2, 2, 1)), ({0, 1}, 8, (2, 1, 1)), ({1, 2}, 1, (1, 1, 1)),
    ({7}, 8, None)])
def test_caches_of_the_usable_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: set[int], num_threads: int,
                                    numbers: tuple[int, int, int] | None) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: cores)
    for core in range(4):
        sharing = {"each": f"{core}", "pair": f"{core // 2 * 2}-{core // 2 * 2 + 1}", "all": "0-3"}
        for index, (level, kind, size, shared) in INDICES.items():
            folder = tmp_path / f"cpu{core}" / "cache" / index
            folder.mkdir(parents=True)
            for name, text in (("level", level), ("type", kind), ("size", size), ("shared_cpu_list", sharing[shared])):
                (folder / name).write_text(f"{text}\n")
    (tmp_path / "cpu1" / "cache" / "index0" / "size").write_text("64K")  # the larger of different ones
    found = cache_levels(num_threads, tmp_path)
    first = 64 if 1 in cores else 48
    assert found == ([] if numbers is None else [
        CacheLevel("L1", first * 1024, numbers[0]), CacheLevel("L2", 2 * 1024**2, numbers[1]),
        CacheLevel("L3", 1024**3, numbers[2])])
    assert [level.usable_bytes for level in found[:1]] == ([] if numbers is None else [first * 1024 * numbers[0]])
