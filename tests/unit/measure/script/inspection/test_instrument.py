"""The inspection of programs whose gradients, inputs and calls are known.

It covers `charact.measure.script.inspection.module_calls`, too.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim.optimizer import _global_optimizer_pre_hooks
from torch.utils.checkpoint import checkpoint

from charact.measure.script.inspection import instrument
from charact.measure.script.inspection.gradient_use import OutputUse
from charact.measure.script.inspection.instrument import InspectionInstrument
from charact.measure.script.program_state import Clock, Moment, ProgramState
from charact.measure.script.spans.recorder import Kind, SpanRecorder

pytestmark = pytest.mark.clock


@pytest.fixture(autouse=True)
def nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what other tests have compiled."""
    monkeypatch.setattr(instrument, "compiles", lambda: False)


def trained(model: nn.Module, *inputs: Any, **named: Any) -> dict[str, Any]:
    """Facts of a training of a model by SGD."""
    optimizer = torch.optim.SGD(model.parameters())
    return Program(model=model, optimizer=optimizer).train(model, optimizer, *inputs, **named)


class Slow(nn.Module):
    """A layer whose forward and backward take known times."""

    def __init__(self, forward_s: float = 0.0, backward_s: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.forward_s, self.backward_s = forward_s, backward_s

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.forward_s)
        y = x * self.weight
        if y.requires_grad:
            y.register_hook(lambda _: time.sleep(self.backward_s))
        return y


class Program:
    """A watched program: its spans, and iterations of which the second is inspected."""

    def __init__(self, **objects: Any) -> None:
        self.recorder = SpanRecorder()
        self.recorder.on = True
        numbered = dict(enumerate(objects.values()))
        self.state = ProgramState(numbered, lambda: dict(enumerate(objects)))

    def span(self, kind: Kind, act: Callable[[], Any]) -> Any:
        self.recorder.enter(kind)
        try:
            return act()
        finally:
            self.recorder.leave()

    def inspected(self, iteration: Callable[[], None]) -> dict[str, Any]:
        inspection = InspectionInstrument(self.state, self.recorder, Path())
        inspection.prepare()
        iteration()
        inspection.begin()
        iteration()
        inspection.end(last=True)
        tables, facts = inspection.results()
        inspection.clean()
        assert tables == {}
        return facts

    def train(self, model: nn.Module, optimizer: torch.optim.Optimizer, *inputs: Any, **named: Any) -> dict[str, Any]:
        def iteration() -> None:
            loss = self.span(Kind.FORWARD, lambda: model(*inputs, **named)).sum()
            self.span(Kind.BACKWARD, loss.backward)
            self.span(Kind.STEP, optimizer.step)
            optimizer.zero_grad()

        return self.inspected(iteration)


def test_a_plain_training_has_no_findings_and_keeps_no_hooks() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    facts = trained(model, torch.ones(3, 2))
    assert facts.pop("recompute")["time_s"] == 0
    assert isinstance(facts.pop("held_tensors"), list)  # of other tests
    assert isinstance(facts.pop("held_graphs"), list)
    assert isinstance(facts.pop("held_data"), list)
    assert facts == {"embeddings": [], "denormals": [], "unused_gradients": [], "padding": [], "layer_calls": [],
                     "attention_weights": [], "unused_outputs": [], "repeated_rows": [], "token_inputs": [],
                     "num_iterations": 1, "missing": {}}
    assert not model[0].weight._post_accumulate_grad_hooks  # type: ignore[attr-defined]
    assert not nn.modules.module._global_forward_pre_hooks
    assert not nn.modules.module._global_forward_hooks
    assert not nn.modules.module._global_forward_hooks_with_kwargs
    assert not _global_optimizer_pre_hooks


@pytest.mark.parametrize("sparse", [False, True])
def test_rows_of_an_embedding_with_a_gradient(sparse: bool) -> None:
    model = nn.Sequential(nn.Embedding(50, 4, sparse=sparse), nn.Linear(4, 1))
    facts = trained(model, torch.tensor([[1, 2, 2, 9]]))
    assert facts["embeddings"] == [{"layer": "0", "num_rows": 50, "num_used_rows": 3, "sparse": sparse,
                                    "gradient_bytes": 4 * (8 + 4 * 4) if sparse else 800}]


def test_denormal_state_of_an_optimizer() -> None:
    model = nn.Linear(4, 1, bias=False)
    optimizer = torch.optim.Adam(model.parameters())
    program = Program(model=model, adam=optimizer)
    facts = program.train(model, optimizer, torch.tensor([[1e-18, 1e-18, 1.0, 1.0]]))
    assert facts["denormals"] == [
        {"optimizer": "adam", "state": "exp_avg", "denormal_frac": 0.0, "num_elements": 4},
        {"optimizer": "adam", "state": "exp_avg_sq", "denormal_frac": 0.5, "num_elements": 4}]


class Reads(nn.Module):
    """A model of text that reads words and types of sentences, and takes labels and pixels that it does not read."""

    def __init__(self, padding_idx: int | None = None) -> None:
        super().__init__()
        self.words, self.types = nn.Embedding(9, 4, padding_idx=padding_idx), nn.Embedding(2, 4)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None,
                token_type_ids: torch.Tensor | None = None, labels: torch.Tensor | None = None,
                pixels: torch.Tensor | None = None) -> torch.Tensor:
        states: torch.Tensor = self.words(input_ids.view(-1, input_ids.shape[-1]))
        return states if token_type_ids is None else states + self.types(token_type_ids)


WORDS = torch.tensor([[1, 2, 3, 4], [5, 6, 0, 0], [7, 0, 0, 0]])
MASK = (WORDS > 0).long()


@pytest.mark.parametrize(("padding_idx", "inputs", "named", "expected"), [
    (None, [WORDS], {}, [(1, 0, 12, None)]),
    (0, [WORDS], {}, [(1, 0, 12, 5)]),
    (None, [WORDS, MASK], {}, [(1, 0, 12, 5)]),
    (None, [WORDS, torch.ones_like(MASK)], {}, [(1, 0, 12, 0)]),
    (None, [], {"labels": WORDS.clone(), "input_ids": WORDS, "attention_mask": MASK}, [(1, 1, 12, 5)]),
    (None, [WORDS], {"token_type_ids": torch.zeros_like(WORDS), "pixels": torch.ones(3, 4)}, [(1, 0, 12, None)]),
    (None, [WORDS], {"labels": WORDS, "attention_mask": MASK}, [(1, 0, 12, 5)]),
    (None, [WORDS[:, 0]], {}, []),  # a class of each sample
])
def test_tokens_are_what_an_embedding_reads(padding_idx: int | None, inputs: list[torch.Tensor],
                                            named: dict[str, torch.Tensor], expected: list[tuple[Any, ...]]) -> None:
    model = Reads(padding_idx)
    optimizer = torch.optim.SGD(model.parameters())
    facts = Program(optimizer=optimizer, model=model).train(model, optimizer, *inputs, **named)
    assert facts["token_inputs"] == expected
    assert facts["missing"] == {}


class Attends(nn.Module):
    """Attention with and without weights, to long and to short sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.plain, self.short = nn.MultiheadAttention(8, 2), nn.MultiheadAttention(8, 2)
        self.quick = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        quick, _ = self.quick(x[None], x[None], x[None], need_weights=False)
        return self.plain(x, x, x)[0] + self.short(x, x[:300], x[:300])[0] + quick[0]


def test_attention_that_returns_weights_of_long_sequences() -> None:
    facts = trained(Attends(), torch.ones(400, 8))
    assert [(each["layer"], each["num_calls"]) for each in facts["attention_weights"]] == [("plain", 1)]


def test_denormal_weights_of_a_layer() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 1, bias=False))
    with torch.no_grad():
        model[1].weight[0, :2] = 1e-39
    program = Program(model=model)
    facts = program.train(model, torch.optim.SGD(model.parameters(), 0.0), torch.ones(1, 4))
    assert facts["denormals"] == [{"layer": "1", "denormal_frac": 0.5, "num_elements": 4}]


@pytest.mark.parametrize("reentrant", [False, True])
def test_time_of_forwards_inside_backwards(reentrant: bool) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([nn.Sequential(Slow(0.01)), nn.Sequential(Slow(0.03))])
            self.last = Slow(0.05, 0.02)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=reentrant)
            return self.last(x)  # type: ignore[no-any-return]

    model = Checkpointed()
    recompute = trained(model, torch.ones(1, requires_grad=True))["recompute"]
    assert 0.04 <= recompute["time_s"] <= recompute["backward_s"] - 0.019
    assert recompute["layers"] == ["blocks.1", "blocks.0"]


class TestUnusedGradients:
    @pytest.mark.parametrize("detached", [False, True])
    @pytest.mark.parametrize("to_none", [False, True])
    def test_a_generator_in_the_graph_of_its_critic(self, detached: bool, to_none: bool) -> None:
        generator, critic = nn.Sequential(Slow(), Slow(0, 0.04)), nn.Sequential(Slow(0, 0.02))
        steps = [torch.optim.SGD(net.parameters(), 1e-3) for net in (generator, critic)]
        program = Program(generator=generator, critic=critic, og=steps[0], oc=steps[1])

        def iteration() -> None:
            steps[0].zero_grad(to_none)
            program.span(Kind.BACKWARD, critic(generator(torch.ones(1))).sum().backward)
            program.span(Kind.STEP, steps[0].step)
            steps[1].zero_grad(to_none)
            fake = generator(torch.ones(1))
            program.span(Kind.BACKWARD, critic(fake.detach() if detached else fake).sum().backward)
            program.span(Kind.STEP, steps[1].step)

        unused = program.inspected(iteration)["unused_gradients"]
        if detached:
            assert unused == []
        else:
            (row,) = unused
            assert (row["model"], row["optimizer"]) == ("generator", "oc")
            assert 0.04 <= row["time_s"] <= row["backward_s"] - 0.019

    @pytest.mark.parametrize("by_hand", [False, True])
    def test_a_part_that_no_optimizer_updates(self, by_hand: bool) -> None:
        model = nn.Sequential()
        model.backbone, model.head = nn.Sequential(Slow(), Slow(0, 0.03)), Slow(0, 0.01)
        optimizer = torch.optim.SGD(model.head.parameters(), 1e-3)
        program = Program(model=model, sgd=optimizer)

        def iteration() -> None:
            program.span(Kind.BACKWARD, model(torch.ones(1)).sum().backward)
            program.span(Kind.STEP, optimizer.step)
            for parameter in model.backbone.parameters() if by_hand else []:
                parameter.data -= 0.1 * parameter.grad
            model.zero_grad()

        unused = program.inspected(iteration)["unused_gradients"]
        assert [(row["model"], row["optimizer"]) for row in unused] == ([] if by_hand else [("backbone", "sgd")])
        assert all(0.03 <= row["time_s"] <= row["backward_s"] - 0.009 for row in unused)

    def test_gradients_that_add_up_or_are_merged_are_used(self) -> None:
        model = Slow()
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        program = Program(model=model, optimizer=optimizer)

        def iteration() -> None:
            optimizer.zero_grad()
            for _ in range(2):
                program.span(Kind.BACKWARD, model(torch.ones(1)).sum().backward)
            gradient = model.weight.grad
            optimizer.zero_grad()
            program.span(Kind.BACKWARD, model(torch.ones(1)).sum().backward)
            assert gradient is not None
            model.weight.grad = gradient / 2
            program.span(Kind.STEP, optimizer.step)

        assert program.inspected(iteration)["unused_gradients"] == []


def test_repeated_rows_are_of_all_calls_of_a_layer() -> None:
    policy, critic = nn.Linear(12, 1).eval(), nn.Linear(12, 1)
    optimizer = torch.optim.SGD([*policy.parameters(), *critic.parameters()])
    program = Program(policy=policy, critic=critic, optimizer=optimizer)
    inputs = torch.arange(24.0).view(2, 12).repeat_interleave(3, 0)

    def iteration() -> None:
        for each in (inputs, torch.randn(6, 12), torch.randn(6, 12)):
            program.span(Kind.FORWARD, lambda each=each: policy(each))
        program.span(Kind.FORWARD, lambda: critic(inputs))  # it may have dropout

    assert program.inspected(iteration)["repeated_rows"] == [{"layer": "policy", "num_rows": 18, "num_repeated": 4}]


def test_padding_of_inputs_by_the_names_of_arguments() -> None:
    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(9, 2)

        def forward(self, ids: torch.Tensor, batch: dict[str, torch.Tensor], *, mask: torch.Tensor) -> torch.Tensor:
            return self.words(ids) * mask[..., None]  # type: ignore[no-any-return]

    model, ids = Padded(), torch.tensor([[5, 6, 7, 8], [4, 3, 0, 0]])
    mask = (ids != 0).long()
    facts = trained(model, ids, {"attention_mask": mask}, mask=mask)
    assert facts["padding"] == [{"name": name, "padding_frac": 0.25} for name in ("ids", "attention_mask", "mask")]


def test_modules_that_are_called_often() -> None:
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.rare = Slow(0.001), Slow()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(25):
                x = self.cell(x)
            return self.rare(x)  # type: ignore[no-any-return]

    (row,) = trained(Loop(), torch.ones(1))["layer_calls"]
    assert (row["layer"], row["layer_type"], row["num_calls"]) == ("cell", "Slow", 25)
    assert row["time_s"] >= 0.025


def test_compiled_programs_get_no_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instrument, "compiles", lambda: True)
    model = nn.Sequential(nn.Embedding(5, 1))
    facts = trained(model, torch.tensor([1]))
    assert facts["missing"].keys() == {
        "recompute", "unused_gradients", "padding", "layer_calls", "tokens"}
    assert facts["recompute"] is None
    assert facts["embeddings"][0]["num_used_rows"] == 1


def test_an_error_leaves_its_reason_and_does_not_reach_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise ValueError("broken\nhere")

    monkeypatch.setattr(instrument, "num_used_rows", fail)
    model = nn.Sequential(nn.Embedding(5, 1))
    facts = trained(model, torch.tensor([1]))
    assert facts["missing"] == {"embeddings": "ValueError: broken"}
    assert facts["embeddings"] == []


def test_a_discarded_iteration_leaves_nothing() -> None:
    model = nn.Sequential(nn.Embedding(5, 1))
    optimizer = torch.optim.SGD(model.parameters())
    program = Program(model=model, optimizer=optimizer)
    inspection = InspectionInstrument(program.state, program.recorder, Path())
    inspection.prepare()
    inspection.begin()
    for _ in range(30):
        model(torch.tensor([1]))
    inspection.drop()
    inspection.begin()
    inspection.end(last=True)
    assert inspection.results()[1]["layer_calls"] == []
    inspection.clean()


@pytest.mark.parametrize(("shape", "num_ignored", "expected"), [
    ((4, 30), 24, [{"layer": "head", "num_rows": 120, "num_used_rows": 24}]),
    ((4, 30), 0, []),
    ((21,), 20, []),  # samples do not count
])
def test_ignored_tokens_are_not_used(shape: tuple[int, ...], num_ignored: int, expected: list[object]) -> None:
    head, outputs = nn.Linear(8, 50), OutputUse()
    logits, labels = head(torch.randn(*shape, 8)), torch.randint(0, 50, shape)
    labels[..., :num_ignored] = -100
    outputs.watch("head", head, logits)
    functional.cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=-100).backward()
    assert outputs.unused() == expected


def test_calls_add_up_and_those_without_gradients_do_not_count() -> None:
    layer, outputs = nn.Linear(8, 8), OutputUse()
    for _ in range(2):
        output = layer(torch.randn(3, 10, 8))
        outputs.watch("layer", layer, output)
        output[:, -1].relu().sum().backward()  # the last token of sequences
    with torch.no_grad():
        outputs.watch("layer", layer, layer(torch.randn(3, 10, 8)))
    outputs.watch("layer", layer, None)
    (facts,) = outputs.unused()
    assert facts["num_rows"] == 60
    assert 0 < facts["num_used_rows"] <= 6


class Event:
    """An event of a device at a time in milliseconds."""

    def __init__(self, at_ms: float) -> None:
        self.at_ms = at_ms

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, other: "Event") -> float:
        return other.at_ms - self.at_ms


@pytest.mark.parametrize(("start", "end", "expected"), [
    (Event(1.0), Event(3.5), 0.0025), (None, Event(3.5), 7e-9), (Event(1.0), None, 7e-9), (None, None, 7e-9)])
def test_time_is_the_device_s_if_both_moments_have_an_event(start: Any, end: Any, expected: float) -> None:
    assert Clock(torch.device("cpu")).seconds(Moment(10, start), Moment(17, end)) == expected
