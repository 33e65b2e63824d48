"""Worker processes of a DataLoader."""

from pathlib import Path
from typing import Any

import pytest
from support.remedied import Trials, chosen, program, refused, tried

from charact.analysis.findings._finding import Place

LOADER = {"class": "DataLoader", "num_workers": 0, "wait_s": 3.0, "file": "data/train.py", "line": 5}


def numbers(loader: dict[str, Any], num_cores: int = 4, cause: str | None = None) -> list[int]:
    of = program({"loaders": [LOADER | loader]}, num_cores=num_cores, causes={"data_loading": cause or ""},
                 findings={} if cause is None else {"data_loading": (0.1, 0.3, "high")})
    return [setting.values["num_workers"] for setting in chosen("workers", of)]


@pytest.mark.parametrize(("now", "num_cores", "expected"), [
    (0, 4, [2, 4]), (0, 1, [1]), (0, 2, [1, 2]), (None, 4, [2, 4]), (1, 4, [0, 2, 4]), (2, 4, [0, 4]),
    (4, 4, [0, 8]), (6, 4, [0, 4, 12])])
def test_numbers_of_workers(now: int | None, num_cores: int, expected: list[int]) -> None:
    assert numbers({"num_workers": now, "persistent_workers": bool(now)}, num_cores) == expected


@pytest.mark.parametrize(("num_batches", "num_iterators", "least"), [
    (100, 5, 80), (100, 1, 400), (104, 5, 80), (None, None, 0), (7, 0, 28)])
def test_workers_may_stay_from_epoch_to_epoch(num_batches: int | None, num_iterators: int | None, least: int) -> None:
    loader = LOADER | {"num_workers": 2, "persistent_workers": False, "num_batches": num_batches,
                       "num_iterators": num_iterators}
    *others, stay = chosen("workers", program({"loaders": [loader]}, findings={
        "data_loading": (0.1, 0.3, "high"), "epoch_start": (0.4, 0.6, "high")}))
    assert (stay.values, stay.added) == ({"num_workers": 2, "file": "data/train.py", "line": 5},
                                         "persistent_workers=True")
    assert stay.expected_frac == pytest.approx(0.5)
    assert stay.least_iterations == least  # those of four epochs
    assert {each.least_iterations for each in others} == {0}
    assert [each.expected_frac for each in others] == pytest.approx([0.2] * len(others))


def test_more_workers_than_cores_where_loading_waits() -> None:
    assert numbers({}, cause="loading waits for the disk") == [2, 4, 8]
    assert numbers({}, cause="loading computes") == [2, 4]


def test_the_loader_that_is_waited_for_longest_is_changed_where_it_is_created() -> None:
    of = program({"loaders": [LOADER | {"wait_s": None}, LOADER, LOADER | {"line": 9, "wait_s": 4.0}]}, num_cores=2,
                 findings={"loader_workers": (0.1, 0.3, "high")})
    one, two = chosen("workers", of)
    assert two.values == {"num_workers": 2, "file": "data/train.py", "line": 9}
    assert two.place == Place("data/train.py", 9)
    assert two.added == "num_workers=2, persistent_workers=True"
    assert one.expected_frac == two.expected_frac == pytest.approx(0.2)


@pytest.mark.parametrize(("facts", "added"), [
    ({"persistent_workers": False, "prefetch_factor": 2}, "num_workers=0"),
    ({"persistent_workers": None, "prefetch_factor": None}, "num_workers=0"),
    ({"persistent_workers": True, "prefetch_factor": 4},
     "num_workers=0, persistent_workers=False, prefetch_factor=None")])
def test_what_a_loader_without_workers_refuses_is_removed(facts: dict[str, Any], added: str) -> None:
    none, more, *_ = chosen("workers", program({"loaders": [LOADER | facts | {"num_workers": 2}]}))
    assert (none.values["num_workers"], none.added) == (0, added)
    assert more.added == "num_workers=4, persistent_workers=True"


def test_programs_without_a_loader() -> None:
    assert "DataLoader" in refused("workers", program())
    assert "--workers" in refused("workers", program(is_watched=False))


def test_the_loader_at_the_line_gets_workers_and_no_other(trials: Trials) -> None:
    assert trials.without["workers"] == [0, False, 0]
    assert trials.remedied["workers"] == [1, True, 0]


ITERABLE = """
from torch.utils.data import DataLoader, IterableDataset
class Items(IterableDataset):
    def __iter__(self):
        return iter(range(4))
facts = {}
if __name__ == "__main__":
    facts["items"] = [int(value) for batch in DataLoader(Items(), num_workers=2, prefetch_factor=3, timeout=9,
        persistent_workers=True, multiprocessing_context="fork") for value in batch]
"""


@pytest.mark.parametrize(("number", "items"), [(0, [0, 1, 2, 3]), (1, None)])
def test_more_workers_would_read_an_iterable_again(tmp_path: Path, number: int, items: list[int] | None) -> None:
    trial, facts = tried(tmp_path, ITERABLE, ("workers", {"num_workers": number, "file": None, "line": None}))
    assert facts.get("items") == items
    assert ("IterableDataset" in (trial.failure or "")) == (items is None), trial
