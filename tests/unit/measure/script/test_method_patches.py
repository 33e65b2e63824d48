"""Which methods of modules become forwards when a program calls them by themselves."""

import sys
import weakref
from collections.abc import Callable, Iterator
from itertools import groupby

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from charact.measure.script.hooks.patches import Patches
from charact.measure.script.spans.recorder import Kind, SpanRecorder


class Base(nn.Module):
    """A method that classes inherit, and what it calls."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)

    def encode(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


class Net(Base):
    """Methods of all kinds."""

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))

    def encode_twice(self, x: Tensor) -> Tensor:
        return self.encode(self.encode(x))

    @torch.no_grad()
    def embed(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))

    def loss_by_hand(self, x: Tensor) -> Tensor:
        return (self.second(self.first(x)) - x).pow(2).mean()

    def loss(self, x: Tensor) -> Tensor:
        return functional.mse_loss(self.second(self.first(x)), x)

    def forward_and_loss(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.second(self.first(x))
        return y, functional.mse_loss(y, x)

    def training_step(self, x: Tensor) -> None:
        self.second(self.first(x)).sum().backward()

    def predict(self, x: Tensor) -> list[Tensor]:
        rows = []
        with torch.no_grad():
            for row in x:
                rows.append(self.second(self.first(row)))
        return rows

    @torch.no_grad()
    def generate(self, x: Tensor) -> Tensor:
        for _ in range(8):
            x = torch.cat([x, self(x[:, -2:])[:, :1]], 1)
        return x

    def twice(self, x: Tensor) -> Tensor:
        return self(self(x))


@pytest.fixture
def recorder() -> Iterator[SpanRecorder]:
    recorder = SpanRecorder()
    patches = Patches(recorder, lambda thing, number: None, lambda kind, owner: None)
    patches.install()
    recorder.on = True
    before = [dict(vars(kind)) for kind in (Base, Net)]
    yield recorder
    patches.remove()
    assert [dict(vars(kind)) for kind in (Base, Net)] == before


def forwards(recorder: SpanRecorder, call: Callable[[Tensor], object]) -> list[int]:
    """Return the number of forwards in each of four calls."""
    counts = []
    for _ in range(4):
        call(torch.ones(2, 2))
        counts.append(sum(one.kind is Kind.FORWARD and one.begins for one in recorder.take()))
    return counts


@pytest.mark.parametrize(("name", "counts"), [
    ("forward", [1, 1, 1, 1]),
    ("encode", [2, 2, 1, 1]),
    ("encode_twice", [4, 3, 2, 1]),
    ("embed", [2, 2, 1, 1]),
    ("forward_and_loss", [2, 2, 1, 1]),
    ("loss", [2, 2, 1, 1]),
    ("loss_by_hand", [2, 2, 2, 2]),
    ("training_step", [2, 2, 2, 2]),
    ("predict", [4, 4, 1, 1]),
    ("generate", [8, 8, 1, 1]),
    ("twice", [2, 2, 2, 2]),
])
def test_a_method_becomes_one_forward_if_it_is_no_more(recorder: SpanRecorder, name: str, counts: list[int]) -> None:
    net = Net()
    assert forwards(recorder, lambda x: getattr(net, name)(x)) == counts


def test_a_method_is_observed_though_slices_are_written_in_between() -> None:
    written = []

    def write(*_: object) -> None:
        if not recorder.keeps:
            written.append(recorder.take())

    recorder = SpanRecorder()
    patches = Patches(recorder, lambda thing, number: None, write)
    patches.install()
    recorder.on = True
    net = Net()
    for _ in range(3):
        net.encode(torch.ones(2, 2))
    written.clear()
    net.encode(torch.ones(2, 2))
    patches.remove()
    assert [one.kind for slices in written for one in slices if one.begins] == [Kind.FORWARD]


def test_functions_are_no_methods_and_a_forward_called_by_a_module_stays_one(recorder: SpanRecorder) -> None:
    net = Net()
    assert forwards(recorder, lambda x: net.second(net.first(x))) == [2, 2, 2, 2]
    assert forwards(recorder, net) == [1, 1, 1, 1]
    assert forwards(recorder, lambda x: net.forward(x)) == [1, 1, 1, 1]
    assert forwards(recorder, net) == [1, 1, 1, 1]


class Fails(Net):
    def forward(self, x: Tensor) -> Tensor:
        raise ValueError(self.first(x).shape)


def test_a_first_forward_that_is_called_by_itself_is_one_span_until_it_returns(recorder: SpanRecorder) -> None:
    def slices(net: nn.Module) -> list[tuple[bool, bool]]:
        net.forward(torch.ones(2, 2))
        torch.ones(2).to("cpu")
        assert sys.getprofile() is None
        assert recorder.idle
        return [(each.begins, each.ends) for each in recorder.take() if each.kind is Kind.FORWARD]

    assert slices(Net()) == [(True, True)]
    with pytest.raises(ValueError, match="2"):
        slices(Fails())
    assert (sys.getprofile(), recorder.idle, len(recorder.take())) == (None, True, 1)


def test_tensors_of_a_method_are_not_kept(recorder: SpanRecorder) -> None:
    class Later(Net):
        def fit(self, x: Tensor) -> bool:
            outputs = x * 2
            alive = weakref.ref(outputs)
            self.first(outputs)  # the method is found here
            del outputs
            return alive() is not None

    with torch.no_grad():
        assert not Later().fit(torch.ones(2, 2))


def test_a_program_keeps_its_profile_function(recorder: SpanRecorder) -> None:
    events = []
    sys.setprofile(lambda frame, event, _: events.append(event))
    try:
        Net().forward(torch.ones(2, 2))
        assert sys.getprofile() is not None
    finally:
        sys.setprofile(None)
    assert "return" in events
    assert [each.begins for each in recorder.take() if each.kind is Kind.FORWARD] == [True, True]


@pytest.mark.parametrize(("name", "grad", "kinds"), [
    ("embed", False, [Kind.FORWARD]), ("encode", True, [Kind.FORWARD]),
    ("loss", True, [Kind.FORWARD, Kind.LOSS, Kind.FORWARD]),
    ("forward_and_loss", True, [Kind.FORWARD, Kind.LOSS, Kind.FORWARD])])
def test_a_method_has_the_gradients_and_the_loss_that_it_computes(recorder: SpanRecorder, name: str, grad: bool,
                                                                  kinds: list[Kind]) -> None:
    net = Net()
    forwards(recorder, lambda x: getattr(net, name)(x))
    getattr(net, name)(torch.ones(2, 2))
    slices = recorder.take()
    assert [kind for kind, _ in groupby(each.kind for each in slices)] == kinds
    assert all(each.grad is grad and each.method for each in slices if each.kind is Kind.FORWARD)
