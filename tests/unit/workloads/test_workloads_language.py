"""Language models: parameter and FLOP counts, the contract over every variant, state, and learning."""

import contextlib
import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, default_collate

from charact.core.errors import UserError
from charact.datasets._common.request import DataRequest
from charact.datasets._samples.text_streams import TokenStreams
from charact.execution.case import Case, cases_of
from charact.execution.loop import Loop
from charact.measure.passes.flops import flop_pass
from charact.workload.base import Workload
from charact.workload.registry import find_workload

NAMES = ["rnn_lm", "transformer_lm", "transformer", "llama"]
CASES = [(name, variant) for name in NAMES for variant in find_workload(name).variants]
QUICK = [("rnn_lm", "lstm"), ("transformer_lm", "small"), ("transformer", "small"), ("llama", "tiny")]
ONE_OF_EACH = [pytest.param(name, variant, marks=[] if (name, variant) in QUICK else pytest.mark.slow)
               for name, variant in CASES]  # fmt: skip
WIKITEXT_WORDS = 33_278

def prepared(name: str, variant: str) -> Workload:
    return find_workload(name).prepare(variant)


def first_batch(workload: Workload, input_size: int, batch_size: int) -> tuple[Any, Any]:
    """Made-up data at an input size, and their first batch."""
    dataset: Any = workload.dataset(input_size, DataRequest(batch_size=batch_size))
    collate = getattr(dataset, "collate", default_collate)
    return dataset, collate([dataset[index] for index in range(batch_size)])


def case_of(workload: Workload, input_size: int, mode: str = "train", batch_size: int = 2) -> Case:
    return Case(workload, input_size, batch_size, mode, "fp32", torch.device("cpu"), DataRequest())


@pytest.mark.slow_variants
@pytest.mark.parametrize(("name", "variant"), ONE_OF_EACH)
@pytest.mark.parametrize("mode", ["train", "infer"])
def test_every_variant_runs_at_its_default_and_its_smallest_size_with_all_flop_counted(
    name: str, variant: str, mode: str
) -> None:
    workload = prepared(name, variant)
    for size in (workload.default_input_size, workload.smallest_input_size):
        _, batch = first_batch(workload, size, batch_size=2)
        rows, facts = flop_pass(case_of(workload, size, mode), batch)
        assert facts.uncounted == []
        phases = {row["phase"] for row in rows if row["flop"]}
        assert phases == ({"forward", "backward"} if mode == "train" else {"forward"})


def test_an_lstms_flop_are_those_counted_by_hand() -> None:
    workload = prepared("rnn_lm", "lstm")
    _, batch = first_batch(workload, 35, batch_size=20)
    rows, _ = flop_pass(case_of(workload, 35, batch_size=20), batch)
    layers = 2 * (35 * 20) * 2 * 4 * 200 * (200 + 200)
    vocabulary = 2 * (35 * 20) * 200 * WIKITEXT_WORDS
    assert {(row["phase"], row["layer"]): row["flop"] for row in rows if row["flop"]} == {
        ("forward", "rnn"): layers, ("forward", "decoder"): vocabulary,
        ("backward", "rnn"): 2 * layers, ("backward", "decoder"): 2 * vocabulary,
    }


@pytest.mark.parametrize(("name", "variant", "shape"), [
    ("rnn_lm", "lstm", (6, WIKITEXT_WORDS)), ("rnn_lm", "gru-tied", (6, WIKITEXT_WORDS)),
    ("transformer_lm", "small", (2, 3, WIKITEXT_WORDS)), ("transformer", "small", (2, 3, 37_000)),
    ("llama", "tiny", (2, 3, 4096)),
])
def test_new_weights_know_nothing(name: str, variant: str, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    workload = prepared(name, variant)
    dataset, batch = first_batch(workload, 3, batch_size=2)
    with torch.no_grad():
        outputs = workload.forward(workload.model(dataset).eval(), batch)
        loss = workload.loss(outputs, batch)
    assert tuple(outputs.shape) == shape
    assert loss.item() == pytest.approx(math.log(shape[-1]), rel=0.1)


@pytest.mark.slow_variants
@pytest.mark.parametrize(("name", "variant"), [
    ("rnn_lm", "lstm"), ("rnn_lm", "rnn_tanh-tied"), ("transformer_lm", "small"), ("transformer", "small"),
    ("llama", "tiny")])
def test_an_iteration_moves_every_parameter(name: str, variant: str) -> None:
    loop = Loop(case_of(prepared(name, variant), 4))
    before = {name: parameter.detach().clone() for name, parameter in loop.model.named_parameters()}
    loop.iteration(lambda _: contextlib.nullcontext())
    still = {name for name, parameter in loop.model.named_parameters() if torch.equal(before[name], parameter)}
    # A bias of the keys adds the same to all scores of a query, which softmax does not see: it may stay.
    assert not {name for name in still if not name.endswith("key.bias")}


def test_a_transformers_flop_are_those_counted_by_hand() -> None:
    workload = prepared("transformer_lm", "small")
    _, batch = first_batch(workload, 16, batch_size=2)
    rows, _ = flop_pass(case_of(workload, 16), batch)
    words, width = 2 * 16, 256
    projections = 2 * words * 4 * width**2
    scores = 2 * (2 * 16 * 16) * width  # of all heads together, masked ones too
    forward = 4 * (projections + 2 * scores + 2 * words * 8 * width**2) + 2 * words * width * WIKITEXT_WORDS
    # Backward: each product twice, and the scores of each layer once more, since they are not kept.
    backward = 2 * forward + 4 * scores
    for phase, by_hand in (("forward", forward), ("backward", backward)):
        assert sum(row["flop"] or 0 for row in rows if row["phase"] == phase) == by_hand
    attention = {(row["phase"], row["layer"]): row["flop"] for row in rows if row["operator_type"] == "attention"}
    assert attention["forward", "layers.3.attention"] == 2 * scores
    assert attention["backward", "layers.3.attention"] == 5 * scores


def outputs_of(name: str, *batches: Any) -> list[Tensor]:
    """Outputs of one small network in evaluation, whose positions are enough for all batches."""
    torch.manual_seed(0)
    workload = prepared(name, "small")
    model = workload.model(first_batch(workload, 8, batch_size=2)[0]).eval()
    with torch.no_grad():
        return [workload.forward(model, batch) for batch in batches]


def test_a_language_model_sees_no_word_after_its_place() -> None:
    words = torch.randint(0, 100, (8, 2))
    changed = words.clone()
    changed[5:] = 7
    one, other = outputs_of("transformer_lm", (words,), (changed,))
    assert torch.allclose(one[:, :5], other[:, :5], atol=1e-5)
    assert not torch.allclose(one[:, 5:], other[:, 5:], atol=1e-2)


def test_a_translator_sees_the_source_but_not_its_padding_and_no_target_from_its_place_on() -> None:
    sources = torch.tensor([[5, 6, 7, 1]])
    padded = torch.tensor([[5, 6, 7, 1, 0, 0]])
    targets = torch.tensor([[9, 8, 7, 6, 1]])
    later = torch.tensor([[9, 8, 3, 3, 1]])
    plain, same, other_target, other_source = outputs_of(
        "transformer", (sources, targets), (padded, targets), (sources, later), (sources + 1, targets))
    assert torch.allclose(plain, same, atol=1e-5)
    assert torch.allclose(plain[:, :3], other_target[:, :3], atol=1e-5)
    assert not torch.allclose(plain[:, 3:], other_target[:, 3:], atol=1e-2)
    assert not torch.allclose(plain[:, 0], other_source[:, 0], atol=1e-2)


def test_positions_are_the_papers() -> None:
    from charact.workloads.transformer import sinusoids

    table = sinusoids(50, 8)
    for place, pair in ((0, 0), (7, 1), (49, 3)):
        angle = place / 10_000 ** (2 * pair / 8)
        assert table[place, 2 * pair : 2 * pair + 2].tolist() == pytest.approx([math.sin(angle), math.cos(angle)],
                                                                             abs=1e-5)


def test_an_input_beyond_the_learned_positions_is_refused() -> None:
    (case,) = cases_of(prepared("transformer_lm", "gpt2"), [1025], [1], ["infer"], ["fp32"],
                       device=torch.device("cpu"), data=DataRequest())
    with pytest.raises(UserError, match=r"input size 1025 is too large for transformer_lm.gpt2 \(takes at most 1024\)"):
        case.check()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "variant", "num_iterations"), [
    pytest.param("rnn_lm", "lstm-tied", 199, marks=pytest.mark.slow),
    pytest.param("rnn_lm", "gru", 199, marks=pytest.mark.slow),
    ("transformer_lm", "small", 15), ("llama", "tiny", 15)])
def test_a_repeating_text_is_learnt(name: str, variant: str, num_iterations: int) -> None:
    torch.manual_seed(0)
    workload = prepared(name, variant)
    text = np.tile(np.arange(20), 400)
    dataset = TokenStreams(text, 20, 10, DataRequest(batch_size=4))
    model = workload.model(dataset)
    (optimizer,) = workload.optimizers(model)
    losses = []
    for batch in itertools.islice(DataLoader(dataset, batch_size=4, collate_fn=dataset.collate), num_iterations):
        loss = workload.loss(workload.forward(model, batch), batch)
        loss.backward()
        workload.clip_gradients(model)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(math.log(20), rel=0.15)
    assert losses[-1] < math.log(2)


class TestStateOfTheRNN:
    """The hidden state: carried, detached, and begun anew where it does not fit."""

    def outputs(self, workload: Workload, model: Any, *batches: Tensor) -> list[Tensor]:
        return [workload.forward(model, (words,)).detach() for words in batches]

    def model(self, workload: Workload) -> Any:
        dataset, _ = first_batch(workload, 4, batch_size=2)
        return workload.model(dataset).eval()

    @pytest.mark.parametrize("variant", ["lstm", "gru", "rnn_relu"])
    def test_two_batches_are_as_one_long_one(self, variant: str) -> None:
        workload = prepared("rnn_lm", variant)
        model = self.model(workload)
        words = torch.randint(0, 100, (8, 2))
        halves = self.outputs(workload, model, words[:5], words[5:])
        (whole,) = self.outputs(prepared("rnn_lm", variant), model, words)
        assert torch.allclose(torch.cat(halves), whole, atol=1e-5)

    def test_it_begins_anew_with_an_epoch_another_batch_size_and_evaluation(self) -> None:
        workload = prepared("rnn_lm", "lstm")
        model = self.model(workload)
        words = torch.randint(0, 100, (4, 2))
        first, carried = self.outputs(workload, model, words, words)
        assert not torch.allclose(first, carried)
        workload.start_epoch()
        (epoch,) = self.outputs(workload, model, words)
        (single,) = self.outputs(workload, model, words[:, :1])
        assert torch.equal(first, epoch)
        assert torch.allclose(first.reshape(4, 2, -1)[:, 0], single, atol=1e-5)
        with torch.inference_mode():
            self.outputs(workload, model, words)
        workload.forward(model.train(), (words,)).sum().backward()

    def test_gradients_end_at_the_batchs_start(self) -> None:
        workload = prepared("rnn_lm", "lstm")
        model = self.model(workload).train()
        for _ in range(2):  # a second backward through the first batch's graph would raise
            workload.forward(model, (torch.randint(0, 100, (4, 2)),)).sum().backward()

    def test_copies_do_not_share_it(self) -> None:
        workload = find_workload("rnn_lm")
        one, other = workload.prepare(), workload.prepare()
        model = self.model(one)
        words = torch.randint(0, 100, (4, 2))
        first = self.outputs(one, model, words)[0]
        assert torch.equal(first, self.outputs(other, model, words)[0])
        assert torch.equal(first, self.outputs(one.prepare(one.variant), model, words)[0])


def test_the_rnns_gradients_are_clipped() -> None:
    workload = prepared("rnn_lm", "gru")
    dataset, batch = first_batch(workload, 4, batch_size=2)
    model = workload.model(dataset)
    (100 * workload.loss(workload.forward(model, batch), batch)).backward()
    workload.clip_gradients(model)
    squares = sum(float(parameter.grad.square().sum()) for parameter in model.parameters())
    assert math.sqrt(squares) == pytest.approx(0.25, rel=1e-4)
