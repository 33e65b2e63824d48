"""What the patches see of PyTorch, and that they leave no trace.

All of `charact.measure.script.hooks.patches`, `charact.measure.script.hooks.optimizer_patches`,
`charact.measure.script.hooks.loader_patches` and `charact.measure.script.hooks.patch_context`.
"""

import gc
import pickle
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, dataloader

from charact.measure.script.hooks import functional_patches
from charact.measure.script.hooks.patches import Patches
from charact.measure.script.program.frames import variable_name
from charact.measure.script.spans.recorder import Kind, SpanRecorder

PLACES = (
    torch, torch.nn.Module, functional, torch.autograd, torch.optim.Optimizer, torch.optim.SGD, torch.nn.utils,
    torch.nn.utils.clip_grad, torch.amp.GradScaler, dataloader._BaseDataLoaderIter, DataLoader, torch.Tensor,
    torch.distributed, torch.distributed.Work, torch.no_grad, torch._functorch.eager_transforms,
)


class Watched:
    """Patches that are in place, and what they told."""

    def __init__(self) -> None:
        self.recorder = SpanRecorder()
        self.seen: list[tuple[str, int]] = []
        self.ended: list[tuple[Kind, int]] = []
        self.patches = Patches(
            self.recorder, lambda thing, number: self.seen.append((type(thing).__name__, number)),
            lambda kind, owner: self.ended.append((kind, owner)))
        self.install()

    def install(self) -> None:
        self.patches.install()
        self.recorder.on = True

    def kinds(self, *, untracked: bool = False) -> list[Kind]:
        """Kinds of all slices; blocks without gradients only if asked, since PyTorch initializes weights in some."""
        assert self.recorder.idle
        return [one.kind for one in self.recorder.take() if untracked or one.kind is not Kind.UNTRACKED]


@pytest.fixture
def watched() -> Iterator[Watched]:
    watched = Watched()
    yield watched
    watched.patches.remove()


def square(weights: Tensor, x: Tensor) -> Tensor:
    return (weights * x).square().sum()


@pytest.mark.parametrize(("transform", "kinds"), [
    (lambda w, x: torch.func.grad(square)(w, x), [Kind.TRANSFORM, Kind.BACKWARD, Kind.TRANSFORM]),
    (lambda w, x: torch.func.grad_and_value(square)(w, x), [Kind.TRANSFORM, Kind.BACKWARD, Kind.TRANSFORM]),
    (lambda w, x: torch.func.vjp(square, w, x)[1](torch.ones(())), [Kind.TRANSFORM, Kind.BACKWARD]),
    (lambda w, x: torch.func.grad(lambda w: torch.func.grad(square)(w, x).sum())(w),
     [Kind.TRANSFORM, Kind.BACKWARD, Kind.TRANSFORM, Kind.BACKWARD, Kind.TRANSFORM]),
])  # fmt: skip
def test_transforms_of_torch_func_are_spans(
        watched: Watched, transform: Callable[[Tensor, Tensor], object], kinds: list[Kind]) -> None:
    transform(torch.ones(3), torch.ones(3))
    assert watched.kinds() == kinds
    assert {kind for kind, _ in watched.ended} == {Kind.BACKWARD}


def test_blocks_without_gradients_are_recorded_if_nothing_runs_in_them_and_no_optimizer_exists(
        watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    def block(*calls: Callable[[], object]) -> list[Kind]:
        with torch.no_grad(), torch.no_grad():
            time.sleep(0.001)
            for call in calls:
                call()
        return watched.kinds(untracked=True)

    model = nn.Linear(2, 2)
    watched.recorder.take()
    watched.patches.context.events.any_optimizer = False  # other tests may have created some
    assert block() == [Kind.UNTRACKED]
    assert block(lambda: model(torch.ones(1, 2))) == [Kind.FORWARD]
    with monkeypatch.context() as patch:
        patch.setattr(functional_patches, "_SHORTEST_NS", 10**12)
        with torch.no_grad():
            time.sleep(0.001)  # too short
    assert watched.kinds(untracked=True) == []
    suspended = held_open()
    next(suspended)
    watched.recorder.enter(Kind.FORWARD)
    suspended.close()
    watched.recorder.leave()
    assert watched.kinds(untracked=True) == [Kind.FORWARD]
    torch.optim.SGD(model.parameters())
    assert block() == []


def held_open() -> Iterator[None]:
    with torch.no_grad():
        yield


class Scripted(nn.Module):
    """TorchScript compiles what a model calls, losses too."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.mse_loss(x.to(torch.float64), torch.zeros(2, dtype=torch.float64))


class Failing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("it fails")


class SharpnessAware(torch.optim.Optimizer):
    """An optimizer whose second step is another's."""

    def __init__(self, weights: list[nn.Parameter]) -> None:
        super().__init__(weights, {})
        self.inner = torch.optim.SGD(weights)

    def first_step(self) -> None:
        self.zero_grad()

    def second_step(self) -> None:
        self.inner.step()


class Warner(nn.Module):
    """Its warning is to name the line that calls it, beyond two frames of PyTorch's."""

    def forward(self, x: Tensor) -> Tensor:
        warnings.warn("beware", stacklevel=4)
        return x


class Called(nn.Linear):
    def __call__(self, x: Tensor) -> Tensor:
        return super().__call__(x) + 1


class Batches:
    """Fails when its third sample is asked for."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Tensor:
        if index == 2:
            raise OSError("the disk is gone")
        return torch.zeros(1)


class TestNoTrace:
    def everything(self) -> dict[tuple[Any, str], Any]:
        return {(place, name): value for place in PLACES for name, value in vars(place).items()}

    def test_all_is_put_back_as_it_was_time_and_again(self) -> None:
        model, optimizer = nn.Linear(1, 1), torch.optim.SGD([nn.Parameter(torch.zeros(1))])  # hooks SGD's step
        before = self.everything()
        for _ in range(2):
            watched = Watched()
            assert nn.Module.__call__ is not before[nn.Module, "__call__"]
            torch.optim.SGD(model.parameters()).step()
            optimizer.step()
            model(torch.ones(1))
            assert watched.kinds() == [Kind.STEP, Kind.STEP, Kind.FORWARD]
            watched.patches.remove()
            after = self.everything()
            assert before.keys() == after.keys()
            assert [key for key, value in before.items() if after[key] is not value] == []
            model(torch.ones(1))
            assert watched.kinds() == []

    def test_what_the_program_replaced_meanwhile_stays(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(functional, "mse_loss", functional.mse_loss)  # puts back what is there now
        watched = Watched()
        ours = functional.mse_loss
        own = lambda *args: ours(*args) * 2  # noqa: E731
        functional.mse_loss = own
        watched.patches.remove()
        assert functional.mse_loss is own
        assert functional.mse_loss(torch.ones(1), torch.zeros(1)).item() == 2

    def test_nothing_is_kept_alive(self, watched: Watched) -> None:
        model, loader = nn.Linear(1, 1), iter(DataLoader([1, 2]))
        model(torch.ones(1))
        next(loader)
        optimizer = torch.optim.SGD(model.parameters())
        optimizer.step()
        ends = [weakref.ref(thing) for thing in (model, loader, optimizer)]
        del model, loader, optimizer
        gc.collect()
        assert [end() for end in ends] == [None, None, None]
        nn.Linear(1, 1)(torch.ones(1))
        assert [number for _, number in watched.seen] == [1, 2, 3, 4]

    def test_an_error_closes_its_span(self, watched: Watched) -> None:
        with pytest.raises(ValueError, match="it fails"):
            nn.Sequential(Failing())(torch.ones(1))
        with pytest.raises(ValueError, match="size"):
            functional.cross_entropy(torch.ones(2, 2), torch.ones(1).long())
        assert watched.kinds() == [Kind.FORWARD, Kind.LOSS]

    def test_torchscript_compiles_losses_and_functions_can_be_pickled(self, watched: Watched) -> None:
        assert pickle.loads(pickle.dumps(functional.mse_loss)) is functional.mse_loss
        with pytest.warns((DeprecationWarning, FutureWarning), match="torch.jit"):
            scripted = torch.jit.script(Scripted())
        assert scripted(torch.ones(2)).item() == 1

    @pytest.mark.filterwarnings("default")
    @pytest.mark.parametrize("call", [
        lambda: Warner()(torch.ones(1)),
        lambda: functional.mse_loss(torch.ones(2), torch.ones(1, 2)),
    ])
    def test_warnings_name_the_programs_line(self, watched: Watched, call: Callable[[], Tensor]) -> None:
        with pytest.warns(UserWarning, match="beware|target size") as caught:
            call()
        assert [warning.filename for warning in caught] == [__file__]


class TestWhatIsSeen:
    @pytest.mark.parametrize(("call", "kinds"), [
        (lambda x: nn.Sequential(nn.Linear(2, 2), nn.ReLU())(x), [Kind.FORWARD]),
        (lambda x: nn.MSELoss()(x, x), [Kind.LOSS]),
        (lambda x: functional.kl_div(x, x, reduction="sum"), [Kind.LOSS]),
        (lambda x: nn.Sequential(nn.MSELoss(), nn.Identity())[0](x, x), [Kind.LOSS]),
        (lambda x: Scripted()(x[0]), [Kind.LOSS, Kind.LOSS, Kind.LOSS]),
        (lambda x: nn.Linear(2, 1)(x[0])[0].backward(), [Kind.FORWARD, Kind.BACKWARD]),
        (lambda x: torch.autograd.grad((x * 2).sum(), x), [Kind.BACKWARD]),
        (lambda x: nn.utils.clip_grad_norm_([x], 1.0), [Kind.UPDATE]),
        (lambda x: nn.utils.clip_grad.clip_grad_norm_([x], 1.0), [Kind.UPDATE]),
        (lambda x: nn.Linear(1, 1).zero_grad(), [Kind.UPDATE]),
        (lambda x: x.to(torch.float64).to("cpu"), []),
        (lambda x: Called(2, 2)(x), [Kind.FORWARD]),
        (lambda x: torch.optim.SGD([x]).step(), [Kind.STEP]),
        (lambda x: torch.optim.SGD([x]).zero_grad(), [Kind.UPDATE]),
        (lambda x: list(DataLoader([1, 2])), [Kind.FETCH, Kind.FETCH, Kind.FETCH, Kind.EXHAUSTED]),
    ], ids=lambda value: None if callable(value) else "-".join(kind.name for kind in value) or "nothing")  # fmt: skip
    def test_a_call_is_its_kind(self, watched: Watched, call: Any, kinds: list[Kind]) -> None:
        call(torch.ones(2, 2, requires_grad=True))
        assert watched.kinds() == kinds

    def test_waiting_for_others_is_communication(self, watched: Watched, tmp_path: Path) -> None:
        dist = torch.distributed
        dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
        try:
            watched.recorder.take()
            work = dist.all_reduce(torch.ones(2), async_op=True)
            assert watched.kinds() == [Kind.COMMUNICATION]
            work.wait()
            assert watched.kinds() == [Kind.COMMUNICATION]
            from torch.distributed import _functional_collectives as collectives

            found = collectives.all_reduce(torch.ones(2), "sum", dist.group.WORLD)
            watched.recorder.take()
            assert (found + 1).tolist() == [2, 2]  # waits
            assert watched.kinds() == [Kind.COMMUNICATION]
        finally:
            dist.destroy_process_group()

    def test_a_class_made_later_with_a_call_of_its_own_is_watched(self, watched: Watched) -> None:
        class Later(nn.Linear):
            def __call__(self, x: Tensor) -> Tensor:
                return super().__call__(x) * 2

        model = Later(1, 1)
        assert model(torch.ones(1)) == model.forward(torch.ones(1)) * 2
        assert watched.kinds() == [Kind.FORWARD]

    def test_a_module_with_weights_that_gives_one_number_is_a_model(self, watched: Watched) -> None:
        assert nn.Sequential(nn.Linear(2, 2), Scripted())(torch.ones(2)).dim() == 0
        assert watched.kinds() == [Kind.FORWARD, Kind.LOSS, Kind.FORWARD]  # the loss inside is one all the same

    def test_a_forward_tells_its_model_gradients_and_mode(self, watched: Watched) -> None:
        first, second = nn.Linear(1, 1), nn.Linear(1, 1).eval()
        first(torch.ones(1))
        with torch.no_grad():
            second(torch.ones(1))
        first(torch.ones(1))
        slices = watched.recorder.take()
        assert [(one.owner, one.grad, one.training) for one in slices] == [
            (1, True, True), (2, False, False), (1, True, True)]
        assert watched.ended == [(Kind.FORWARD, 1), (Kind.FORWARD, 2), (Kind.FORWARD, 1)]
        assert watched.seen == [("Linear", 1), ("Linear", 2)]

    def test_a_fetch_that_fails_leaves_nothing(self, watched: Watched) -> None:
        with pytest.raises(OSError, match="the disk is gone"):
            list(DataLoader(Batches()))  # type: ignore[arg-type]
        assert watched.kinds() == [Kind.FETCH, Kind.FETCH, Kind.FETCH]

    def test_a_step_that_a_scaler_skips_counts(self, watched: Watched) -> None:
        weight = nn.Parameter(torch.ones(1))
        optimizer, scaler = torch.optim.SGD([weight]), torch.amp.GradScaler("cpu")
        for factor in (1.0, float("inf")):
            scaler.scale((weight * factor).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        assert [kind for kind, _ in watched.ended] == 2 * [Kind.BACKWARD, Kind.STEP]
        steps = [one for one in watched.recorder.take() if one.kind is Kind.STEP]
        assert sum(one.begins for one in steps) == sum(one.ends for one in steps) == 2

    def test_both_steps_of_sharpness_aware_minimization_are_updates(self, watched: Watched) -> None:
        weight = nn.Parameter(torch.ones(1))
        optimizer = SharpnessAware([weight])
        for _ in range(2):
            weight.sum().backward()
            optimizer.first_step()
            weight.sum().backward()
            optimizer.second_step()
        step = [Kind.UPDATE, Kind.STEP, Kind.UPDATE]
        assert watched.kinds() == 2 * [Kind.BACKWARD, Kind.UPDATE, Kind.BACKWARD, *step]
        assert [kind for kind, _ in watched.ended] == 2 * [Kind.BACKWARD, Kind.BACKWARD, Kind.STEP]

    def test_optimizers_that_were_there_before(self) -> None:
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))])
        scheduled = torch.optim.SGD([nn.Parameter(torch.ones(1))])
        scheduler = torch.optim.lr_scheduler.StepLR(scheduled, 1)
        watched = Watched()
        assert watched.patches.context.events.any_optimizer
        for one in (optimizer, scheduled):
            one.step()
        scheduler.step()
        watched.patches.remove()
        assert watched.kinds() == [Kind.STEP, Kind.STEP]

    def test_other_threads_are_not_watched(self, watched: Watched) -> None:
        model = nn.Linear(1, 1)
        thread = threading.Thread(target=lambda: functional.mse_loss(model(torch.ones(1)), torch.ones(1)).backward())
        thread.start()
        thread.join()
        assert watched.kinds() == []
        assert watched.seen == []


class TestNames:
    def called(self, model: object) -> str | None:
        return variable_name(model)

    def test_the_outermost_variable_names_a_thing_or_an_attribute_or_a_path(self) -> None:
        netD = object()
        assert self.called(netD) == "netD"
        self.critic = object()
        name = variable_name(self.critic)
        assert name == "critic"
        model = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
        assert (variable_name(model[0][0]), variable_name(model[0][1])) == ("model.0.0", None)
        name = variable_name(object())
        assert name is None

    def test_no_local_variable_outlives_its_value_unless_the_program_holds_it(self) -> None:
        model, value = nn.Linear(1, 1), torch.ones(1)
        gone = weakref.ref(value)
        assert variable_name(model) == "model"
        del value
        assert gone() is None
        own = locals()
        variable_name(model)
        assert own["model"] is model
