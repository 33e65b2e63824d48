"""Holding out a part: every sample in one part, streams cut at whole batches, and the dataset's own attributes kept."""

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset

from charact.core.errors import UserError
from charact.datasets._common.holdout import hold_out
from charact.datasets._common.request import DataRequest
from charact.datasets._samples.images import image_dataset
from charact.datasets._samples.text_streams import TokenStreams
from charact.datasets._samples.translation_pairs import translation_dataset


class Numbers(Dataset[int]):
    """Sample i is i; fetches of several at once, as torch's loaders do them, would miss a part's own numbering."""

    num_classes = 3

    def __init__(self, num_samples: int, shuffled: bool = True) -> None:
        self.num_samples = num_samples
        self.shuffled = shuffled

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> int:
        assert isinstance(index, int)
        return index

    def __getitems__(self, indices: list[int]) -> list[int]:
        return indices

    def collate(self, samples: list[int]) -> list[int]:
        return [-sample for sample in samples]


def samples(part: Any) -> list[int]:
    return [part[index] for index in range(len(part))]


@given(st.integers(1, 400), st.floats(0, 1), st.integers(0, 9), st.integers(1, 20), st.booleans())
def test_every_sample_is_in_one_part(num_samples: int, frac: float, seed: int, batch_size: int, shuffled: bool) -> None:
    try:
        rest, held = hold_out(Numbers(num_samples, shuffled), frac, seed, batch_size)
    except UserError:
        assert min(round(frac * num_samples), num_samples - round(frac * num_samples)) < 1.5 * batch_size
        return
    assert sorted(samples(rest) + samples(held)) == list(range(num_samples))
    assert min(len(rest), len(held)) >= batch_size
    assert abs(len(held) - frac * num_samples) <= (0.5 if shuffled else batch_size / 2 + 0.5)
    if not shuffled:
        assert samples(rest) == list(range(len(rest)))
        assert len(rest) % batch_size == 0


def test_the_choice_is_random_and_the_seeds_own() -> None:
    held = [samples(hold_out(Numbers(10_000), 0.2, seed, 32)[1]) for seed in (0, 0, 1)]
    assert held[0] == held[1] != held[2]
    assert len(held[0]) == 2_000
    assert np.mean(held[0]) == pytest.approx(5_000, abs=4 * 10_000 / np.sqrt(12 * 2_000))
    # Of two independent fifths, a fifth is common.
    assert len(set(held[0]) & set(held[2])) == pytest.approx(400, abs=80)


def test_streams_go_on_in_both_parts() -> None:
    streams = TokenStreams(np.arange(4 * 101), 404, 10, DataRequest(batch_size=4))
    rest, held = hold_out(streams, 0.3, 0, 4)
    assert (len(rest), len(held)) == (7 * 4, 3 * 4)
    batches = [batch for part in (rest, held) for batch in DataLoader(part, batch_size=4, collate_fn=part.collate)]
    words = torch.cat([inputs for inputs, _ in batches])
    assert words.T.tolist() == [list(range(start, start + 100)) for start in (0, 101, 202, 303)]
    assert (rest.shuffled, rest.num_words, held.input_size) == (False, 404, 10)


def test_attributes_are_the_datasets_own() -> None:
    rest, held = hold_out(image_dataset(DataRequest(), input_size=8, num_synthetic_classes=7), 0.1, 0, 4)
    assert (rest.num_classes, held.input_size, len(held), len(rest)) == (7, 8, 5_000, 45_000)
    assert not hasattr(rest, "collate")
    assert getattr(rest, "shuffled", "as usual") == "as usual"
    pairs = translation_dataset(DataRequest(), input_size=6, num_source_words=20, num_target_words=30)
    rest, held = hold_out(pairs, 0.5, 0, 4)
    assert (len(rest.source_vocabulary), len(held.target_vocabulary), held.sentence_length) == (20, 30, 6)
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = rest.no_such_thing


@pytest.mark.parametrize("index", [-1, 20, 10**9])
def test_a_part_ends(index: int) -> None:
    rest, held = hold_out(Numbers(40), 0.5, 0, 4)
    assert len(rest) == len(held) == 20
    with pytest.raises(IndexError):
        held[index]


def test_a_part_can_be_pickled_for_workers() -> None:
    _, held = hold_out(Numbers(40), 0.25, 0, 4)
    assert samples(pickle.loads(pickle.dumps(held))) == samples(held)


# Python 3.12 warns of every fork beside torch's threads, torch of more workers than cores.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning", "ignore:This DataLoader will create:UserWarning")
@pytest.mark.parametrize(("num_workers", "start"), [(0, None), (2, "fork"), (1, "spawn")])
def test_loaders_fetch_the_parts_own_samples(num_workers: int, start: str | None) -> None:
    _, held = hold_out(Numbers(40), 0.25, 0, 4)
    loader: DataLoader[Any] = DataLoader(held, batch_size=4, num_workers=num_workers, collate_fn=held.collate,
                                         multiprocessing_context=start)
    assert [-sample for batch in loader for sample in batch] == samples(held)


@pytest.mark.parametrize(("frac", "num_samples", "shuffled"), [
    (0.1, 50, True), (0.9, 50, True), (0.0, 50, True), (1.0, 50, False), (0.1, 50, False), (0.5, 30, False),
    (0.5, 0, True), (-1.0, 50, True), (2.0, 50, True),
])
def test_a_part_smaller_than_a_batch_is_refused(frac: float, num_samples: int, shuffled: bool) -> None:
    with pytest.raises(UserError, match=rf"^holding out {frac:g} of {num_samples} samples leaves .*, fewer than a "
                                        r"batch of 20: choose another share or a smaller batch size$"):
        hold_out(Numbers(num_samples, shuffled), frac, 0, 20)


@pytest.mark.parametrize("frac", [0.2, 0.8])
def test_a_part_of_exactly_a_batch_is_taken(frac: float) -> None:
    rest, held_out = hold_out(Numbers(10), frac, 0, 2)
    assert (len(rest), len(held_out)) == (10 - 10 * frac, 10 * frac)
