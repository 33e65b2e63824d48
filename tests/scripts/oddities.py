"""Small training programs in forms that users write; the first argument is the name of one."""

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
from torch.utils.checkpoint import checkpoint


def lbfgs_then_evaluation(*, in_training_mode: bool = False) -> None:
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
        if not in_training_mode:
            evaluate(model)
            continue
        truth.begin("infer")
        with torch.no_grad():
            print(forward(model, x).argmax().item())


def lbfgs_then_evaluation_in_training_mode() -> None:
    lbfgs_then_evaluation(in_training_mode=True)


def rollouts() -> None:
    model, optimizer = new()
    for x, y in loaded():
        with torch.no_grad():
            old = forward(model.eval(), x)
        model.train()
        other()
        for _ in range(2):
            train(optimizer, forward(model, x) + 0 * old, y)


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


def loader_workers() -> None:
    """Batches made by worker processes, slower than they are used: the loop waits for them."""
    model, optimizer = new()
    for _ in range(2):
        for x, y in truth.batches(sleepy_loader(5, num_workers=2, prefetch_factor=1)):
            train(optimizer, forward(model, x), y)


def accumulation() -> None:
    """Gradients of three batches are summed before a step: an iteration is all three."""
    model, optimizer = new()
    for number, (x, y) in enumerate(truth.batches(sleepy_loader(12), every=3), 1):
        backward(loss_by_hand(forward(model, x), y) / 3)
        if number % 3 == 0:
            step(optimizer)
            print(f"{model.linear.bias.sum().item():.6f}")


def loss_by_operations() -> None:
    model, optimizer = new()
    for x, y in loaded():
        loss = loss_by_hand(forward(model, x), y)
        backward(loss)
        step(optimizer)
        print(f"{loss.item():.6f}")


class SquaredHinge(nn.Module):
    """A loss without weights, of one number."""

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        sleep("loss")
        return (1 - outputs[0, labels]).clamp(min=0).pow(2).mean()


def loss_as_module() -> None:
    """The forward's last layer has no weights either."""
    model, optimizer = new()
    activation, criterion = nn.Tanh(), SquaredHinge()
    for x, y in loaded():
        with truth("forward"):
            outputs = activation(model(x))
        with truth("loss"):
            loss = criterion(outputs, y)
        backward(loss)
        step(optimizer)
        print(f"{loss.item():.6f}")


class OwnLoss(SleepyModel):
    """Computes its own loss where it is given labels, as Hugging Face's do; more of its forward follows."""

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        outputs = super().forward(x)
        with truth("loss"):
            loss = functional.cross_entropy(outputs, labels)
        sleep("loss")
        return loss


def loss_in_model() -> None:
    model = OwnLoss()
    optimizer = SleepySGD(model.parameters(), lr=0.1)
    for x, y in loaded():
        loss = forward(model, x, y)
        backward(loss)
        step(optimizer)
        print(f"{loss.item():.6f}")


class Checkpointed(nn.Module):
    """Computes its activations again in the backward, whose time that is."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = SleepyModel()

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.inner, x, use_reentrant=False)


def recomputation() -> None:
    model = Checkpointed()
    optimizer = SleepySGD(model.parameters(), lr=0.1)
    for x, y in loaded():
        train(optimizer, forward(model, x), y)


class Called(SleepyModel):
    """Has a `__call__` of its own, with work before and after the usual one."""

    def __call__(self, x: Tensor) -> Tensor:
        sleep("forward")
        outputs = super().__call__(x)
        sleep("forward")
        return outputs


def own_call() -> None:
    model = Called()
    optimizer = SleepySGD(model.parameters(), lr=0.1)
    for x, y in loaded():
        train(optimizer, forward(model, x), y)


def scaled_gradients() -> None:
    """A scaler under autocast skips a step, since a gradient was infinite: the iteration counts no less."""
    model, optimizer = new()
    scaler = torch.amp.GradScaler("cpu")
    for number, (x, y) in enumerate(loaded()):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            outputs = forward(model, x)
            with truth("loss"):
                loss = functional.cross_entropy(outputs * (float("inf") if number == 2 else 1.0), y)
        backward(scaler.scale(loss))
        with truth("update"):
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        print(f"{loss.item():.6f} {scaler.get_scale()}")


def critic_steps() -> None:
    """Two steps of the critic for each of the generator: an iteration is one of the critic."""
    generator, critic = SleepyModel(2, 4), SleepyModel(4, 1)
    generator_optimizer, critic_optimizer = (SleepySGD(net.parameters(), lr=0.1) for net in (generator, critic))

    def run(net: nn.Module, x: Tensor, part: str) -> Tensor:
        with truth("forward", part):
            outputs: Tensor = net(x)
        return outputs

    def descend(loss: Tensor, optimizer: Any, part: str) -> None:
        with truth("backward", part):
            loss.mean().backward()
        with truth("update", part):
            optimizer.step()
            optimizer.zero_grad()

    for number, (real, _) in enumerate(truth.batches(sleepy_loader(8)), 1):
        real_score = run(critic, real, "critic")
        with torch.no_grad():
            fake = run(generator, torch.ones(1, 2), "generator")
        descend(run(critic, fake, "critic") - real_score, critic_optimizer, "critic")
        if number % 2 == 0:
            score = run(critic, run(generator, torch.ones(1, 2), "generator"), "critic")
            descend(-score, generator_optimizer, "generator")
            print(f"{score.item():.6f}")


globals()[sys.argv[1]]()
truth.write()
