"""Comparisons of many runs: read once or twice each, one at a time; those of few runs come to what they always did."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from many_runs import write_copies
from support import records
from support.compared import scattered, side

from charact.analysis.compare import Group, geometric_means, metric_ratios, ratios
from charact.analysis.compare.differences import differences
from charact.analysis.compare.pairs import MAX_HELD_RUNS
from charact.analysis.compare.ratios import phases_by_side
from charact.analysis.compare.selection import in_pair, most_different, read_parts, read_times
from charact.record.reader import Run, load_run
from charact.record.schema import TABLES

BEFORE: dict[str, dict[str, list[list[Any]]]] = json.loads(
    Path(__file__).with_name("comparisons_of_few_runs.json").read_text())
"""Results of comparisons of seeded records, as they were when all runs were held at once."""
CASE = "resnet50-32-b8-train-fp32-cpu"
LATER_METRICS = {"process_memory", "program_time", "tokens_per_s", "mfu", "hfu"}


def plain(frame: pd.DataFrame) -> list[list[Any]]:
    rows = frame.drop(columns="reason", errors="ignore").astype("object").to_numpy().tolist()
    return [[None if value is None or value != value else value for value in row] for row in rows]


@pytest.mark.slow_variants
@pytest.mark.parametrize(("name", "num_base", "num_new"), [("one", 1, 1), ("three", 3, 2)])
def test_few_runs_give_the_numbers_that_they_gave(tmp_path: Path, name: str, num_base: int, num_new: int) -> None:
    base = [scattered(tmp_path, seed=number) for number in range(num_base)]
    new = [scattered(tmp_path, {"forward": 1.05, "loss": 2}, seed=10 + number, activations=1.1)
           for number in range(num_new)]  # fmt: skip
    sides = [Group("a", tuple(base)), Group("b", tuple(new))]
    found = {f"ratios/{by}": ratios(sides, by) for by in ("case", "phase", "operator", "layer")}
    found |= {"metrics": metric_ratios(sides), "means": geometric_means(sides), "phases": phases_by_side(sides),
              "diff/b": differences(*sides, CASE)}  # fmt: skip
    assert found.keys() == BEFORE[name].keys()
    for table, frame in found.items():
        rows = [row for row in plain(frame) if not LATER_METRICS & set(row)]
        for row, before in zip(rows, BEFORE[name][table], strict=True):
            # The last digit depends on the processor: numpy has other loops for others.
            assert row == [pytest.approx(value, rel=1e-13) if isinstance(value, float) else value for value in before]


class Reads:
    """Counts the tables that are read of each run, and how many runs are held at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.of_run: dict[Path, int] = {}
        self.num_held = 0
        self._seen: list[Run] = []
        monkeypatch.setattr(Run, "_read", self._counting(Run._read))

    def _counting(self, read: Any) -> Any:
        def counted(run: Run, name: str) -> pd.DataFrame:
            self.of_run[run.path] = self.of_run.get(run.path, 0) + 1
            if all(run is not other for other in self._seen):
                self._seen.append(run)
            self.num_held = max(self.num_held, sum(bool(other._tables) or other is run for other in self._seen))
            return read(run, name)

        return counted


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Ten runs of one case, which differ in their times."""
    made = records.write_record(tmp_path_factory.mktemp("one"), sizes=(32,), modes=("infer",))
    return write_copies(made, tmp_path_factory.mktemp("many"), 10)


@pytest.mark.slow
def test_of_many_runs_one_is_held_at_a_time_and_read_in_two_passes(
    copies: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = Reads(monkeypatch)
    done: list[Run] = []
    runs = [load_run(path) for path in copies]
    sides = [Group("a", tuple(runs[:5]), on_run=done.append), Group("b", tuple(runs[5:]), on_run=done.append)]
    assert len(runs) > MAX_HELD_RUNS
    read_times(sides, ["case", "phase", "operator"])
    assert done == runs
    first = dict(reads.of_run)
    assert max(first.values()) <= len(TABLES)
    for by in ("case", "phase", "operator", "brick"):
        ratios(sides, by)
    metric_ratios(sides)
    assert reads.of_run == first  # what was gathered is not read again
    read_parts(sides, ["layer", "kernel"], {"resnet50-32-b8-infer-fp32-cpu"})
    assert done == runs * 2
    for by in ("layer", "kernel"):
        ratios(sides, by)
    phases_by_side(sides)
    differences(*sides, "resnet50-32-b8-infer-fp32-cpu")
    assert done == runs * 2
    assert max(reads.of_run.values()) <= 2 * len(TABLES)
    assert reads.num_held == 1
    assert not any(run._tables or run.found for run in runs)


def test_few_runs_keep_what_was_read_of_them(copies: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    reads = Reads(monkeypatch)
    sides = [side("a", load_run(copies[0])), side("b", load_run(copies[1]))]
    for by in ("case", "phase", "operator", "layer"):
        ratios(sides, by)
    phases_by_side(sides)
    assert max(reads.of_run.values()) <= len(TABLES)


def test_repeats_are_not_resampled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The interval of a group of runs comes from how these differ: draws of each would cost 8 kB and 1 ms a number."""
    drawn = []
    monkeypatch.setattr("charact.analysis.common.significance.np.random.default_rng", drawn.append)
    runs = [scattered(tmp_path, seed=number, num_iterations=8) for number in range(4)]
    found = ratios([Group("a", tuple(runs[:2])), Group("b", tuple(runs[2:]))], "phase")
    assert found["low"].notna().any()
    assert not drawn


def test_of_many_cases_those_that_differ_most_are_chosen(tmp_path: Path) -> None:
    made = records.write_record(tmp_path / "one", sizes=(32,), modes=("infer",))
    base, new = (write_copies(made, tmp_path / name, 4, "sweep") for name in ("base", "new"))
    slower = load_run(new[2])
    slower._tables["iterations"] = slower.iterations.assign(host_s=slower.iterations["host_s"] * 3)
    runs = (*map(load_run, new[:2]), slower, load_run(new[3]))
    sides = [Group("base", tuple(map(load_run, base))), Group("new", runs)]
    places, num_left = most_different(sides, 1)
    assert places == {("resnet50_002-32-b8-infer-fp32-cpu", "new")}
    assert num_left == 3
    assert in_pair(sides, sides[1], {"resnet50_002-32-b8-infer-fp32-cpu"}) == {"resnet50_002-32-b8-infer-fp32-cpu"}
    assert most_different(sides, 4)[1] == 0
