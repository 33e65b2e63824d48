"""Tokens that models read: positions of the batches, with padding apart."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support.small import small_case

from charact.datasets._common.request import DataRequest
from charact.execution.case import Case
from charact.execution.loop import Loop, Step
from charact.measure.passes.timing import StopRule, timing_pass
from charact.measure.passes.token_counter import TokenCounter
from charact.workload.base import Workload
from charact.workload.registry import all_workloads, find_workload
from charact.workload.user_model.input_spec import parse_input_spec
from charact.workload.user_model.loss import default_loss
from charact.workload.user_model.model import OwnModel

SIZE, BATCH_SIZE = 6, 3
QUERY_LENGTH = 64
POSITIONS = {"rnn_lm": SIZE, "transformer_lm": SIZE, "llama": SIZE, "seq2seq": 2 * SIZE, "transformer": 2 * SIZE,
             "aoa_reader": SIZE + QUERY_LENGTH}
"""Positions that a model reads of one sample."""
PADDED = {"seq2seq", "transformer", "aoa_reader"}


def case_of(workload: Workload, size: int = SIZE, accumulate: int = 1) -> Case:
    return Case(workload, size, BATCH_SIZE, "infer", "fp32", torch.device("cpu"), DataRequest(), accumulate=accumulate)


def batch_of(case: Case) -> Any:
    dataset: Any = case.dataset()
    collate = getattr(dataset, "collate", torch.utils.data.default_collate)
    return collate([dataset[index] for index in range(BATCH_SIZE)])


def counted(case: Case, batch: Any) -> dict[str, int]:
    counter = TokenCounter(case)
    counter.add(counter.indices(Step(batch, None, None)))
    return counter.facts()


@pytest.mark.parametrize("name", POSITIONS)
def test_every_position_of_a_text_counts_once_and_padding_apart(name: str) -> None:
    case = case_of(find_workload(name).prepare())
    batch = batch_of(case)
    facts = counted(case, batch)
    assert facts["num_tokens"] + facts.get("num_padding", 0) == BATCH_SIZE * POSITIONS[name]
    assert ("num_padding" in facts) == (name in PADDED)
    if name in PADDED:
        assert facts["num_padding"] == sum(words.count(0) for part in batch[:2] for words in part.tolist())


def test_every_workload_of_text_has_tokens_and_images_have_none() -> None:
    for workload in all_workloads().values():
        prepared = workload.prepare()
        case = case_of(prepared, max(prepared.smallest_input_size, min(64, prepared.default_input_size)))
        assert bool(counted(case, batch_of(case))) == (prepared.input_kind == "sequence"), prepared.name


def test_accumulated_batches_all_count() -> None:
    workload = find_workload("seq2seq").prepare()
    once, four_times = case_of(workload), case_of(workload, accumulate=4)
    batch = batch_of(once)
    assert counted(four_times, batch) == {name: 4 * number for name, number in counted(once, batch).items()}


def test_the_timing_pass_counts_the_timed_iterations_only() -> None:
    case = case_of(find_workload("seq2seq").prepare())
    loop = Loop(case)
    fetched: list[Any] = []

    def recorded() -> Iterator[Any]:
        while True:
            fetched.append(batch)
            yield batch

    batch = loop.next_batch()
    loop.feed(recorded())
    facts = timing_pass(loop, StopRule(max_iterations=3), lambda *_: None).facts
    assert len(fetched) > 3
    assert facts.num_iterations == 3
    assert facts.num_padding == 3 * sum(words.count(0) for part in batch for words in part.tolist())
    assert facts.num_tokens == 3 * BATCH_SIZE * 2 * SIZE - facts.num_padding


def test_the_timing_pass_counts_no_tokens_of_other_inputs() -> None:
    facts = timing_pass(Loop(small_case("infer")), StopRule(max_iterations=2), lambda *_: None).facts
    assert (facts.num_tokens, facts.num_padding) == (None, None)


def test_tokens_of_a_users_model_are_its_indices() -> None:
    spec = parse_input_spec("ids=int64[30522] S, mask=int64[1:2] S, types=int32[2] S, pixels=3xSxS, "
                            "answers=int64[10] 4 -> int64[7]")
    workload = OwnModel(name="own", source="own", factory=torch.nn.Identity, arguments={}, spec=spec,
                        loss_of=default_loss, optimizer_class=torch.optim.SGD, learning_rate=0.1).prepare()
    case = case_of(workload)
    assert counted(case, batch_of(case)) == {"num_tokens": BATCH_SIZE * SIZE}
