"""Batches of a case's data."""

import itertools

import pytest
import torch
from support.small import small_case

from charact.datasets._common.request import DataRequest
from charact.execution.batches import Batches
from charact.execution.case import Case
from charact.workload.registry import find_workload


def text(mode: str) -> Case:
    workload = find_workload("seq2seq").prepare()
    return Case(workload, 12, 4, mode, "fp32", torch.device("cpu"), DataRequest())


@pytest.mark.parametrize("case", [small_case("train"), small_case("infer"), text("train"), text("infer")],
                         ids=lambda case: case.id)
def test_the_first_batch_comes_again_and_again(case: Case) -> None:
    batches = Batches(case, case.dataset(), shuffle=case.training, whole=True)
    expected = next(batches.epoch(5))
    another = next(batches.epoch(6))
    for batch in itertools.islice(batches.first(5), 3):
        assert len(batch) == len(expected)
        assert all(torch.equal(tensor, other) for tensor, other in zip(batch, expected, strict=True))
    if case.training:
        assert not all(tensor.shape == other.shape and torch.equal(tensor, other)
                       for tensor, other in zip(another, expected, strict=True))


def test_each_is_fetched_anew() -> None:
    case = small_case()
    first, second = itertools.islice(Batches(case, case.dataset(), shuffle=True, whole=True).first(0), 2)
    assert first[0].data_ptr() != second[0].data_ptr()
