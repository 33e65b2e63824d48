"""BERT: parameters and FLOP against closed forms, what a word sees, and the masked words."""

from typing import Any

import pytest
import torch
from support.published import build
from torch._subclasses.fake_tensor import FakeTensorMode

from charact.datasets._common.request import DataRequest
from charact.measure.passes.flops import work_of
from charact.workload.registry import find_workload
from charact.workloads.bert import NOT_PREDICTED

WORDS, MASK = 30_522, 30_521


def parameters_by_hand(layers: int, width: int) -> int:
    embeddings = (WORDS + 512 + 2) * width + 2 * width
    layer = 4 * (width * width + width) + 4 * width * width + 4 * width + 4 * width * width + width + 4 * width
    head = width * width + width + 2 * width + WORDS
    return embeddings + layers * layer + head


@pytest.mark.parametrize(("variant", "layers", "width"), [("tiny", 2, 128), ("base", 12, 768)])
def test_parameters_are_those_counted_by_hand(variant: str, layers: int, width: int) -> None:
    _, model = build("bert", variant)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters_by_hand(layers, width)


def test_parameters_of_base_are_the_published_ones_with_the_head_for_masked_words() -> None:
    assert parameters_by_hand(12, 768) == 109_514_298


@pytest.mark.parametrize(("variant", "layers", "width"), [("tiny", 2, 128), ("base", 12, 768)])
@pytest.mark.parametrize("num_words", [1, 128, 512])
def test_flop_are_those_counted_by_hand(variant: str, layers: int, width: int, num_words: int) -> None:
    with FakeTensorMode(), torch.inference_mode():
        workload = find_workload("bert").prepare(variant)
        model = workload.model(workload.dataset(8, DataRequest())).eval()
        found, _, uncounted = work_of(lambda: model(torch.zeros(2, num_words, dtype=torch.int64)))
    per_word = layers * (2 * 12 * width * width + 2 * 2 * num_words * width) + 2 * width * width + 2 * width * WORDS
    assert uncounted == []
    assert found == pytest.approx(2 * num_words * per_word, rel=1e-6)


def test_a_word_sees_those_on_both_sides() -> None:
    torch.manual_seed(0)
    workload = find_workload("bert").prepare()
    model: Any = workload.model(workload.dataset(8, DataRequest())).eval()
    words = torch.randint(0, 1000, (1, 8))
    with torch.inference_mode():
        plain = model(words)
        for place in (0, 7):
            changed = words.clone()
            changed[0, place] += 1
            assert not torch.allclose(plain[0, 3], model(changed)[0, 3], atol=1e-4)


def test_15_percent_of_the_words_are_predicted_from_masked_replaced_or_kept_ones() -> None:
    workload = find_workload("bert").prepare()
    dataset = workload.dataset(100, DataRequest(batch_size=2))
    plain = dataset.segments
    masked = replaced = kept = 0
    for index in range(400):
        (inputs, targets), (words, _) = dataset[index], plain[index]
        predicted = targets != NOT_PREDICTED
        assert predicted.sum() == 15
        assert torch.equal(targets[predicted], words[predicted])
        assert torch.equal(inputs[~predicted], words[~predicted])
        assert words.max() < MASK
        masked += int((inputs[predicted] == MASK).sum())
        kept += int((inputs[predicted] == words[predicted]).sum())
        replaced += int(((inputs != words) & (inputs != MASK))[predicted].sum())
    assert masked + kept + replaced == 400 * 15
    assert masked / 6000 == pytest.approx(0.8, abs=0.03)
    assert kept / 6000 == pytest.approx(0.1, abs=0.03)
    assert replaced / 6000 == pytest.approx(0.1, abs=0.03)


def test_masks_depend_on_the_seed_and_the_segment_only() -> None:
    workload = find_workload("bert").prepare()
    one, same, other = (workload.dataset(64, DataRequest(batch_size=2, seed=seed)) for seed in (1, 1, 2))
    assert torch.equal(one[3][1], same[3][1])
    assert not torch.equal(one[3][1] == NOT_PREDICTED, other[3][1] == NOT_PREDICTED)
    assert not torch.equal(one[3][1] == NOT_PREDICTED, one[5][1] == NOT_PREDICTED)


def test_the_shortest_segment_has_a_word_to_predict() -> None:
    _, targets = find_workload("bert").prepare().dataset(1, DataRequest(batch_size=2))[0]
    assert (targets != NOT_PREDICTED).all()


def test_it_has_512_positions_and_generates_nothing() -> None:
    workload = find_workload("bert").prepare("base")
    assert (workload.longest_input_size, workload.generates) == (512, False)
