"""Work of a profiled iteration, replayed from its shapes: the FLOP of the same iteration counted while it runs."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from charact.measure.passes.event_tree import read_event_tree
from charact.measure.passes.flops import work_of
from charact.measure.passes.marks import layer_marks, phase_mark
from charact.measure.passes.replayed_work import replayed_work
from charact.record.schema import Rows


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.words, self.cells = nn.Embedding(10, 4), kind(4, 5)

    def forward(self, words: Tensor) -> Tensor:
        return torch.einsum("abc,dc->abd", self.cells(self.words(words))[0], torch.ones(3, 5))


PROGRAMS: dict[str, tuple[nn.Module, Callable[[], Tensor]]] = {
    "convolutions": (nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
                                   nn.Flatten(), nn.Linear(8 * 16, 10)), lambda: torch.randn(2, 3, 8, 8)),
    "transposed and grouped": (nn.Sequential(nn.ConvTranspose2d(4, 6, 3, stride=2), nn.Conv2d(6, 6, 3, groups=3)),
                               lambda: torch.randn(2, 4, 8, 8)),
    "attention": (nn.TransformerEncoderLayer(16, 2, dropout=0.0, batch_first=True), lambda: torch.randn(2, 6, 16)),
    "LSTM": (Recurrent(nn.LSTM), lambda: torch.randint(0, 10, (7, 2))),
    "GRU": (Recurrent(nn.GRU), lambda: torch.randint(0, 10, (7, 2))),
}


def replayed(iteration: Callable[[], object]) -> tuple[Rows, dict[str, object]]:
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        iteration()
    return replayed_work(read_event_tree(profiler, with_inputs=True), profiler, on_cuda=False)


@pytest.mark.parametrize("name", PROGRAMS)
def test_flop_are_those_of_the_running_program(name: str) -> None:
    model, batch = PROGRAMS[name]
    optimizer = torch.optim.Adam(model.parameters())

    def iteration() -> None:
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()

    inputs = batch()
    iteration()  # it makes the optimizer's state
    rows, facts = replayed(iteration)
    flop, num_bytes, uncounted = work_of(iteration)
    assert sum(row["flop"] or 0.0 for row in rows) == flop
    assert facts == {"uncounted": uncounted, "product_precision": "fp32", "recomputed_flop": 0.0}
    # Tensors that a call is given twice count twice, and what oneDNN's cells keep for the backward does not count.
    assert sum(row["bytes"] for row in rows) == pytest.approx(num_bytes, rel=0.4 if name == "LSTM" else 0.05)


class Checkpointed(nn.Module):
    """Two products, of which the first is computed again in the backward; its gradients are two products more."""

    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.first, self.second, self.reentrant = nn.Linear(6, 5), nn.Linear(5, 4), reentrant

    def forward(self, inputs: Tensor) -> Tensor:
        return self.second(checkpoint(self.first, inputs, use_reentrant=self.reentrant))


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputed_flop_are_those_of_checkpointed_layers(reentrant: bool) -> None:
    model = Checkpointed(reentrant=reentrant)
    inputs = torch.randn(3, 6, requires_grad=True)

    def iteration() -> None:
        with phase_mark("forward"):
            loss = model(inputs).sum()
        with phase_mark("backward"):
            loss.backward()

    with layer_marks(model):
        rows, facts = replayed(iteration)
    first, second = 2 * 3 * 6 * 5, 2 * 3 * 5 * 4
    assert facts["recomputed_flop"] == first
    assert sum(row["flop"] or 0.0 for row in rows) == 4 * first + 3 * second


def test_rows_have_phases_layers_and_precision() -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4)).bfloat16()
    inputs = torch.randn(3, 6, dtype=torch.bfloat16)

    def iteration() -> None:
        with phase_mark("forward"):
            loss = model(inputs).sum()
        with phase_mark("backward"):
            loss.backward()

    with layer_marks(model):
        rows, facts = replayed(iteration)
    flop = {(row["phase"], row["layer"]): row["flop"] for row in rows if row["flop"]}
    assert flop == {("forward", "0"): 180, ("forward", "1"): 120, ("backward", "0"): 180, ("backward", "1"): 240}
    assert facts["product_precision"] == "bf16"


def test_the_program_runs_no_code_again_and_keeps_its_modes() -> None:
    calls = []
    model = nn.Linear(6, 5)
    model.register_forward_hook(lambda *_: calls.append(1))
    with torch.autocast("cpu", dtype=torch.bfloat16), FlopCounterMode(display=False) as counter:
        rows, facts = replayed(lambda: model(torch.randn(3, 6)))
        before = counter.get_total_flops()
        assert torch.is_autocast_enabled("cpu")
    assert (len(calls), before, facts["product_precision"]) == (1, 180, "bf16")
    assert sum(row["flop"] or 0.0 for row in rows) == 180


def test_the_program_keeps_its_random_state() -> None:
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        torch.randperm(1000)
        nn.functional.dropout(torch.rand(50, 40)).normal_()
        torch.randint(0, 9, (30,))
    state = torch.get_rng_state()
    rows, _ = replayed_work(read_event_tree(profiler, with_inputs=True), profiler, on_cuda=False)
    assert torch.equal(torch.get_rng_state(), state)
    written = {row["operator"]: row["bytes"] for row in rows}
    assert written["aten::randperm"] >= 8000  # it is counted without being run
    assert written["aten::bernoulli_"] >= 2000 * 4


def test_tensors_are_not_created_again() -> None:
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        torch.rand(100_000)
    tree = read_event_tree(profiler, with_inputs=True)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as again:
        replayed_work(tree, profiler, on_cuda=False)
    assert sum(max(event.cpu_memory_usage, 0) for event in again.events()) < 20_000  # the random state
