"""Workloads that generate: the words with what is kept between them are those without it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import default_collate

from charact.core.errors import UserError
from charact.datasets._common.request import DataRequest
from charact.datasets.tatoeba import SOS
from charact.execution.case import Case, cases_of
from charact.execution.loop import Loop
from charact.workload import Generator
from charact.workload.registry import all_workloads, find_workload

NUM_OUTPUTS, BATCH, LENGTH = 7, 3, 9
QUICK = {"rnn_lm": "lstm", "seq2seq": "bahdanau", "transformer_lm": "small", "transformer": "small", "llama": "tiny",
         "moe": "tiny", "mistral": "tiny"}
GENERATING = [name for name, workload in all_workloads().items() if workload.generates]


def language_model(model: Any, batch: Any) -> Callable[[Tensor], Tensor]:
    """Return a function of outputs so far, (N, T), to the logits of the next words, from whole sequences."""
    return lambda outputs: model(torch.cat((batch[0].T, outputs), 1))[:, -1]


def recurrent(model: Any, batch: Any) -> Callable[[Tensor], Tensor]:
    def logits(outputs: Tensor) -> Tensor:
        whole = torch.cat((batch[0], outputs.T))
        return model(whole, None)[0].unflatten(0, whole.shape)[-1]  # type: ignore[no-any-return]
    return logits


def seq2seq(model: Any, batch: Any) -> Callable[[Tensor], Tensor]:
    def logits(outputs: Tensor) -> Tensor:
        written = torch.zeros(BATCH, outputs.shape[1] + 1, dtype=torch.int64)
        result: Tensor = model(batch[0], written)  # writes greedily, and never reads the targets
        assert bool((result[:, :-1].argmax(2) == outputs).all())
        return result[:, -1]
    return logits


def transformer(model: Any, batch: Any) -> Callable[[Tensor], Tensor]:
    def logits(outputs: Tensor) -> Tensor:
        targets = torch.cat((outputs, torch.full((BATCH, 1), SOS)), 1)  # the last one is not read
        return model(batch[0], targets)[:, -1]  # type: ignore[no-any-return]
    return logits


WHOLE = {"rnn_lm": recurrent, "seq2seq": seq2seq, "transformer": transformer}


def built(name: str, seed: int, length: int = LENGTH) -> tuple[Any, Any, Any]:
    """Return a workload, its model in evaluation mode, and a batch."""
    torch.manual_seed(seed)
    workload = find_workload(name).prepare(QUICK[name])
    dataset: Any = workload.dataset(length, DataRequest(batch_size=BATCH, seed=seed))
    collate = getattr(dataset, "collate", default_collate)
    return workload, workload.model(dataset).eval(), collate([dataset[index] for index in range(BATCH)])


def written(generator: Generator, batch: Any, num_words: int = NUM_OUTPUTS) -> Tensor:
    """Return the most likely words, (N, T)."""
    words = [generator.prefill(batch).argmax(-1)]
    for _ in range(num_words - 1):
        words.append(generator.decode(words[-1]).argmax(-1))
    return torch.stack(words, 1)


def test_every_one_is_tested() -> None:
    assert set(GENERATING) == set(QUICK)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(("name", "cache"), [
    (name, cache) for name in GENERATING for cache in find_workload(name).caches if cache != "int8"])  # it rounds
@torch.inference_mode()
def test_words_are_those_without_a_cache(name: str, cache: str, seed: int) -> None:
    assert_as_without_a_cache(name, cache, *built(name, seed))


@pytest.mark.parametrize("length", [10, 15, 16, 40])
@pytest.mark.parametrize("cache", ["static", "growing", "none"])
@torch.inference_mode()
def test_words_across_the_edge_of_a_window(cache: str, length: int) -> None:
    """The window has 16 words."""
    assert_as_without_a_cache("mistral", cache, *built("mistral", 0, length))


def assert_as_without_a_cache(name: str, cache: str, workload: Any, model: Any, batch: Any) -> None:
    generator = workload.generator(model, NUM_OUTPUTS, cache)
    words = written(generator, batch)
    recomputed = torch.empty(BATCH, 0, dtype=torch.int64)
    next_logits = WHOLE.get(name, language_model)(model, batch)
    for _ in range(NUM_OUTPUTS):
        recomputed = torch.cat((recomputed, next_logits(recomputed).argmax(-1, keepdim=True)), 1)
    assert words.tolist() == recomputed.tolist()
    generator.go_to(0)
    assert generator.decode(words[:, 0]).argmax(-1).tolist() == words[:, 1].tolist()
    assert written(generator, batch).tolist() == words.tolist()  # other prompts were forgotten


@pytest.mark.parametrize("cache", ["static", "none"])
@pytest.mark.parametrize("name", GENERATING)
@torch.inference_mode()
def test_it_goes_on_at_any_word(name: str, cache: str) -> None:
    workload, model, batch = built(name, 0)
    generator = workload.generator(model, NUM_OUTPUTS, cache if cache in workload.caches else "growing")
    words = generator.prefill(batch).argmax(-1)
    generator.go_to(NUM_OUTPUTS - 2)
    assert bool(generator.decode(words).isfinite().all())


def case(mode: str, **options: Any) -> Case:
    (one,) = cases_of(find_workload("rnn_lm").prepare(), [LENGTH], [BATCH], [mode], ["fp32"],
                      device=torch.device("cpu"), data=DataRequest(), **options)
    return one


def test_a_loop_decodes_each_word_once_and_begins_anew() -> None:
    loop = Loop(case("decode", output_sizes=[4]))
    steps: list[tuple[str, ...]] = []
    words = []
    for _ in range(7):
        phases: list[str] = []

        def mark(phase: str, phases: list[str] = phases) -> Any:
            phases.append(phase)
            return torch.inference_mode()

        words.append(loop.iteration(mark).outputs.tolist())
        steps.append(tuple(phases))
    assert set(steps) == {("forward", "sample")}
    assert words[3:6] == words[:3]
    loop.place(1.0)
    loop.iteration(lambda phase: torch.inference_mode())
    assert loop._num_read == 3


def test_a_loop_reads_prompts() -> None:
    phases: list[str] = []

    def mark(phase: str) -> Any:
        phases.append(phase)
        return torch.inference_mode()

    outputs = Loop(case("prefill", output_sizes=[1])).iteration(mark).outputs
    assert phases == ["data", "forward", "sample"]
    assert outputs.shape == (BATCH,)


def test_cases_of_a_generation() -> None:
    workload, options = find_workload("rnn_lm").prepare(), {"device": torch.device("cpu"), "data": DataRequest()}
    cases = cases_of(workload, [LENGTH], [2], ["infer", "prefill", "decode"], ["fp32"], output_sizes=[1, 8],
                     caches=["static", "growing"], **options)
    assert [each.id for each in cases] == [
        "rnn_lm-9-b2-infer-fp32-cpu", "rnn_lm-9+1-b2-prefill-fp32-cpu", "rnn_lm-9+1-b2-prefill.growing-fp32-cpu",
        "rnn_lm-9+8-b2-prefill-fp32-cpu", "rnn_lm-9+8-b2-prefill.growing-fp32-cpu",
        "rnn_lm-9+8-b2-decode-fp32-cpu", "rnn_lm-9+8-b2-decode.growing-fp32-cpu"]
    assert [each.cache for each in cases_of(workload, None, None, ["decode"], ["fp32"], **options)] == ["static"]
    with pytest.raises(UserError, match="resnet18 does not generate"):
        cases_of(find_workload("resnet18").prepare(), None, None, ["prefill"], ["fp32"], **options)
    with pytest.raises(UserError, match="rnn_lm does not generate with --cache none: choose from static, growing, int"):
        cases_of(workload, None, None, ["decode"], ["fp32"], caches=["none"], **options)
