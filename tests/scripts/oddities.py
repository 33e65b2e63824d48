"""Small training programs in forms that users write; the first argument is the name of one."""

import io
import sys
from itertools import chain
from typing import Any

import torch
from marked_steps import (
    NUM_ITERATIONS,
    backward,
    batch,
    evaluate,
    forward,
    functional_forward,
    loaded,
    loss_by_hand,
    new,
    other,
    step,
    train,
    truth,
)
from sleepy import SleepyModel, SleepySGD, sleep, sleepy_loader, slow_backward
from torch import Tensor, nn
from torch.func import grad
from torch.nn import functional


def lbfgs_then_evaluation() -> None:
    model = SleepyModel()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=2)
    x, y = torch.ones(1, 4), torch.tensor([1])

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_by_hand(forward(model, x), y)
        backward(loss)
        return loss

    for _ in range(NUM_ITERATIONS):
        truth.begin()
        with truth("update"):
            optimizer.step(closure)
        evaluate(model)


def lbfgs_then_evaluation_in_training_mode() -> None:
    model = SleepyModel()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=2)
    x, y = torch.ones(1, 4), torch.tensor([1])

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_by_hand(forward(model, x), y)
        backward(loss)
        return loss

    for _ in range(NUM_ITERATIONS):
        truth.begin()
        with truth("update"):
            optimizer.step(closure)
        truth.begin("infer")
        with torch.no_grad():
            print(forward(model, x).argmax().item())


def rollouts() -> None:
    model, optimizer = new()
    for x, y in loaded():
        with torch.no_grad():
            old = forward(model.eval(), x)
        model.train()
        other()
        for _ in range(2):
            train(optimizer, forward(model, x) + 0 * old, y)


def rollouts_by_hand() -> None:
    model, optimizer = new()
    x, y = torch.ones(1, 4), torch.tensor([1])
    for _ in range(NUM_ITERATIONS):
        truth.begin()
        with torch.no_grad():
            forward(model.eval(), x)
        model.train()
        for _ in range(2):
            train(optimizer, forward(model, x), y)


def skipped_steps() -> None:
    model, optimizer = new()
    for number, (x, y) in enumerate(loaded()):
        loss = loss_by_hand(forward(model, x), y)
        backward(loss)
        if number % 3 != 1:
            with truth("update"):
                optimizer.step()
        with truth("update"):
            optimizer.zero_grad()
        print(f"{loss.item():.6f}")


def previews_by_an_average() -> None:
    model, optimizer = new()
    average = SleepyModel()
    for number, (x, y) in enumerate(loaded()):
        train(optimizer, forward(model, x), y)
        if number % 4:
            evaluate(average)


def zero_grad_after_evaluation() -> None:
    model, optimizer = new()
    x, y = torch.ones(1, 4), torch.tensor([1])
    for _ in range(NUM_ITERATIONS):
        evaluate(model)
        truth.begin()
        with truth("update"):
            optimizer.zero_grad()
        loss = loss_by_hand(forward(model, x), y)
        backward(loss)
        with truth("update"):
            optimizer.step()


def pseudo_labels(*, by_hand: bool = False) -> None:
    model, optimizer = new()
    for number, loaded_x in enumerate(range(NUM_ITERATIONS) if by_hand else loaded()):
        if by_hand:
            truth.begin()
        x = batch(number)[0] if by_hand else loaded_x[0]
        model.eval()
        with torch.no_grad():
            labels = forward(model, x).argmax(1)
        model.train()
        train(optimizer, forward(model, x + 0.1), labels)


def pseudo_labels_by_hand() -> None:
    pseudo_labels(by_hand=True)


class WithLoss(SleepyModel):
    """Its forward returns the loss, too."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        outputs = super().forward(x)
        return outputs, functional.cross_entropy(outputs, y)


def prefetch_before_backward() -> None:
    model = WithLoss()
    optimizer = SleepySGD(model.parameters(), lr=0.1)
    truth.begin()
    x, y = batch(0)
    for number in range(NUM_ITERATIONS):
        if number:
            truth.begin()
        _, loss = forward(model, x, y)
        x, y = batch(number + 1)
        backward(loss)
        with truth("update"):
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        step(optimizer)
        print(f"{loss.item():.6f}")


def batches_by_hand() -> None:
    model, optimizer = new()
    for number in range(NUM_ITERATIONS):
        truth.begin()
        x, y = batch(number)
        train(optimizer, forward(model, x), y)


class SAM(torch.optim.Optimizer):
    """Sharpness-aware minimization around another optimizer."""

    def __init__(self, parameters: Any, base: type[torch.optim.Optimizer], **options: Any) -> None:
        super().__init__(parameters, options)
        self.base = base(self.param_groups, **options)

    def first_step(self) -> None:
        sleep("update")
        self.zero_grad()

    def second_step(self) -> None:
        sleep("update")
        self.base.step()
        self.zero_grad()


def sharpness_aware() -> None:
    model = SleepyModel()
    optimizer = SAM(model.parameters(), SleepySGD, lr=0.1)
    for x, y in loaded():
        for update in (optimizer.first_step, optimizer.second_step):
            outputs = forward(model, x)
            with truth("loss"):
                loss = functional.cross_entropy(outputs, y)
            backward(loss)
            with truth("update"):
                update()
        print(f"{loss.item():.6f}")


def reinforcement() -> None:
    policy, optimizer = new()
    for _ in range(NUM_ITERATIONS):
        states = [torch.zeros(1, 4)]
        for _ in range(3):
            truth.begin("infer")
            with torch.no_grad():
                action = forward(policy, states[-1]).argmax(1)
            other()  # the environment
            states.append(states[-1] + action)
        truth.begin()
        train(optimizer, forward(policy, states[-1]), action)


def averaged_teacher() -> None:
    student, optimizer = new()
    teacher = SleepyModel().eval()
    for x, _ in loaded():
        with torch.no_grad():
            target = forward(teacher, x).argmax(1)
        train(optimizer, forward(student, x), target)
        with torch.no_grad():
            other()
            for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
                slow.mul_(0.9).add_(fast, alpha=0.1)


def checkpoints() -> None:
    model, optimizer = new()
    for number, (x, y) in enumerate(loaded(), 1):
        train(optimizer, forward(model, x), y)
        if number % 5 == 0:
            other()
            torch.save(model.state_dict(), io.BytesIO())


def gradient_penalty() -> None:
    critic, optimizer = new()
    for x, _ in loaded():
        fake = torch.zeros_like(x)
        distance = forward(critic, fake).mean() - forward(critic, x).mean()
        mixed = ((x + fake) / 2).requires_grad_()
        outputs = forward(critic, mixed)
        with truth("backward"):
            slopes, = torch.autograd.grad(outputs.sum(), mixed, create_graph=True)
        with truth("loss"):
            sleep("loss")
            loss = distance + 10 * (slopes.norm(2, dim=1) - 1).pow(2).mean()
        backward(loss)
        step(optimizer)
        print(f"{loss.item():.6f}")


def inner_loop() -> None:
    model, optimizer = new()
    for x, y in loaded():
        weights = dict(model.named_parameters())
        for _ in range(2):
            loss = loss_by_hand(functional_forward(model, weights, x), y)
            with truth("backward"):
                slopes = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
            with truth("update"):
                sleep("update")
                weights = {name: weight - 0.1 * slope
                           for (name, weight), slope in zip(weights.items(), slopes, strict=True)}
        train(optimizer, functional_forward(model, weights, x), y)


def functional_training() -> None:
    model = SleepyModel()
    weights = {name: weight.detach() for name, weight in model.named_parameters()}

    def loss_of(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return loss_by_hand(functional_forward(model, weights, x), y)

    for x, y in loaded():
        with truth("backward"):
            slopes = grad(loss_of)(weights, x, y)
        with truth("update"):
            sleep("update")
            weights = {name: weight - 0.1 * slopes[name] for name, weight in weights.items()}
        print(f"{weights['linear.bias'].sum().item():.6f}")


def alternating_tasks() -> None:
    tasks = [new(), new()]
    for number, (x, y) in enumerate(loaded()):
        model, optimizer = tasks[number % 2]
        train(optimizer, forward(model, x), y)


def noise_by_hand() -> None:
    model = SleepyModel(4, 4)
    optimizer = SleepySGD(model.parameters(), lr=0.1)
    for x, _ in loaded():
        with truth("data"):
            sleep("data")
            noise = torch.full_like(x, 0.5)
            noisy = 0.9 * x + 0.1 * noise
        outputs = forward(model, noisy)
        with truth("loss"):
            loss = functional.mse_loss(outputs, noise)
        backward(loss)
        step(optimizer)
        print(f"{loss.item():.6f}")


class Parts(nn.Module):
    """Methods that are called by themselves, with work between their submodules."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 3)

    def encode(self, x: Tensor) -> Tensor:
        x = self.first(x)
        sleep("forward")
        return slow_backward(self.last(x))

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        with truth("forward"):
            sleep("forward")
            x = self.first(x)
            sleep("forward")
            outputs = slow_backward(self.last(x))
        with truth("loss"):
            return functional.cross_entropy(outputs, y)


def two_views() -> None:
    model = Parts()
    optimizer = SleepySGD(model.parameters(), lr=0.1)
    for x, _ in loaded():
        with truth("forward"):
            first = model.encode(x)
        with truth("forward"):
            second = model.encode(x + 0.1)
        with truth("loss"):
            sleep("loss")
            loss = 1 - functional.normalize(first) @ functional.normalize(second).T
        backward(loss)
        step(optimizer)
        print(f"{loss.item():.6f}")


def loss_method() -> None:
    model = Parts()
    optimizer = SleepySGD(model.parameters(), lr=0.1)
    for x, y in loaded():
        loss = model.loss(x, y)
        backward(loss)
        step(optimizer)
        print(f"{loss.item():.6f}")


class Recurrent(SleepyModel):
    """A cell that carries a state."""

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        state = torch.tanh(super().forward(x) + state)
        return state, state


def truncated_backpropagation() -> None:
    model, state = Recurrent(), torch.zeros(1, 3)
    optimizer = SleepySGD(model.parameters(), lr=0.1)
    for x, y in loaded():
        outputs, state = forward(model, x, state.detach())
        train(optimizer, outputs, y)


def two_loaders() -> None:
    model, optimizer = new()
    short = sleepy_loader(2)
    others = iter(short)
    for x, y in loaded():
        with truth("data"):
            try:
                second_x, second_y = next(others)
            except StopIteration:
                others = iter(short)
                second_x, second_y = next(others)
        train(optimizer, forward(model, torch.cat([x, second_x])), torch.cat([y, second_y]))


def clipped_and_scheduled() -> None:
    model, optimizer = new()
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda number: 0.9**number)
    total = 0.0
    for x, y in loaded():
        optimizer.zero_grad()
        outputs = forward(model, x)
        loss = loss_by_hand(outputs, y)
        backward(loss)
        with truth("update"):
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
        other()  # metrics
        total += (outputs.argmax(1) == y).float().mean().item() + loss.item()
        print(f"{total:.6f}")


def two_backwards() -> None:
    model, optimizer = new()
    for x, y in loaded():
        outputs = forward(model, x)
        backward(loss_by_hand(outputs, y), retain_graph=True)
        backward(loss_by_hand(outputs.tanh(), y))
        step(optimizer)
        print(f"{outputs.sum().item():.6f}")


def steps_in_accumulating_hooks() -> None:
    model, _ = new()
    optimizers = {weight: SleepySGD([weight], lr=0.1) for weight in model.parameters()}
    last = False
    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(lambda weight: step(optimizers[weight]) if last else None)
    batches = truth.batches(chain(*[sleepy_loader(2)] * NUM_ITERATIONS), every=2)
    for number, (x, y) in enumerate(batches):
        last = number % 2 == 1
        loss = loss_by_hand(forward(model, x), y)
        backward(loss)
        print(f"{loss.item():.6f}")


globals()[sys.argv[1]]()
truth.write()
