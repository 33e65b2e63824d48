"""Use of what backwards compute: gradients that no optimizer uses, and outputs of layers without a gradient."""

import contextlib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from charact.measure.script.inspection.tensor_contents import num_used_rows
from charact.measure.script.program_state import Clock, Moment

_COMPARED = 8
"""Number of a group's parameters whose first elements are compared, to detect updates without an optimizer."""
_MOST_LAYERS = 20
_LEAST_DIMENSIONS = 3
"""Rows of outputs with fewer dimensions are samples: a loss may have no gradient for those that are learned."""


@dataclass(eq=False)
class _Group:
    """Parameters of a model that the same optimizers update."""

    name: str
    optimizers: frozenset[str]
    parameters: list[nn.Parameter]
    samples: list[torch.Tensor] = field(default_factory=list)
    """First elements of some parameters at the start, if no optimizer updates them."""


@dataclass(eq=False)
class _Backward:
    """A backward, the groups whose gradients it computed, and the optimizer that used some of them."""

    start: Moment
    end: Moment | None = None
    last: dict[_Group, Moment] = field(default_factory=dict)
    """Time of each group's last gradient."""
    optimizer: str | None = None
    """The first optimizer that used a gradient of this backward."""
    unused: set[_Group] = field(default_factory=set)
    pending: set[_Group] = field(default_factory=set)
    """Groups whose gradients are neither used nor deleted yet."""


class GradientUse:
    """Detects gradients that backwards compute between `start` and `stop`, and that nothing uses.

    A hook on each parameter records when its gradient is ready. A gradient is unused if it is deleted before an
    optimizer of the parameter steps, or if the parameter has no optimizer and its value does not change.

    *Error*: only the time after a backward's last used gradient counts, because earlier work may be needed for used
    gradients, too.
    """

    def __init__(self, models: Mapping[str, nn.Module], optimizers: Mapping[str, torch.optim.Optimizer],
                 clock: Clock) -> None:
        self._clock = clock
        self._names = {id(optimizer): name for name, optimizer in optimizers.items()}
        self._groups = [group for prefix, model in models.items() for group in _groups(prefix, model, optimizers)]
        self._handles: list[Any] = []
        self._backwards: list[_Backward] = []
        self._current: _Backward | None = None

    def start(self) -> None:
        """Add the hooks."""
        for group in self._groups:
            if not group.optimizers:
                group.samples = [_sample(parameter) for parameter in group.parameters[:_COMPARED]]
            hook = partial(self._gradient_ready, group)
            add = torch.Tensor.register_post_accumulate_grad_hook
            self._handles += [add(parameter, hook) for parameter in group.parameters]  # type: ignore[no-untyped-call]
        self._handles += [register_optimizer_step_pre_hook(self._step), register_optimizer_step_post_hook(self._step)]

    def stop(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def backward_begins(self) -> None:
        """Record the start of a backward, and the gradients that were deleted before it."""
        self._look_for_deleted()
        self._current = _Backward(self._clock.now())

    def backward_ends(self) -> None:
        """Record the end of a backward."""
        if self._current is not None:
            self._current.end = self._clock.now()
            self._backwards.append(self._current)
            self._current = None

    def unused(self, num_iterations: int) -> list[dict[str, Any]]:
        """Return the models with unused gradients, each with the optimizer whose backwards computed them.

        `time_s` is the time of the unused gradients and `backward_s` that of the backwards, per iteration. Gradients
        that are neither used nor deleted at the end count as unused if those of an earlier backward were.
        """
        self._look_for_deleted()
        by_hand = {group for group in self._groups if not all(
            torch.equal(before, _sample(parameter))
            for before, parameter in zip(group.samples, group.parameters, strict=False))}
        for backward in self._backwards:
            backward.unused |= {group for group in backward.pending if not group.optimizers}
            backward.unused -= by_hand
            backward.pending -= backward.unused | by_hand
        unused_before = {(group, backward.optimizer) for backward in self._backwards for group in backward.unused}
        totals: dict[tuple[str, str], list[float]] = {}
        for backward in self._backwards:
            if backward.optimizer is None or backward.end is None:
                continue
            unused = backward.unused | {group for group in backward.pending
                                        if (group, backward.optimizer) in unused_before}
            for group, time_s in self._late(backward, unused):
                total = totals.setdefault((group.name, backward.optimizer), [0.0, 0.0])
                total[0] += time_s / num_iterations
                total[1] += self._clock.seconds(backward.start, backward.end) / num_iterations
        return [{"model": model, "optimizer": optimizer, "time_s": time_s, "backward_s": backward_s}
                for (model, optimizer), (time_s, backward_s) in totals.items()]

    def _late(self, backward: _Backward, unused: set[_Group]) -> list[tuple[_Group, float]]:
        """Return the unused groups whose gradients come after the last used one, each with its time (s)."""
        since = max((last for group, last in backward.last.items() if group not in unused), default=backward.start)
        late = []
        for group in sorted(unused, key=lambda group: backward.last[group]):
            if backward.last[group] > since:
                late.append((group, self._clock.seconds(since, backward.last[group])))
                since = backward.last[group]
        return late

    def _gradient_ready(self, group: _Group, _: torch.Tensor) -> None:
        if self._current is not None:
            self._current.last[group] = self._clock.now()
            self._current.pending.add(group)

    def _step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Mark an optimizer's gradients as used, before and after its step: a closure computes them inside the step."""
        name = self._names.get(id(optimizer))
        backwards = self._backwards if self._current is None else [*self._backwards, self._current]
        for backward in backwards:
            for group in [group for group in backward.pending if name in group.optimizers and not _is_deleted(group)]:
                backward.pending.discard(group)
                backward.optimizer = backward.optimizer or name

    def _look_for_deleted(self) -> None:
        deleted: dict[_Group, bool] = {}
        for backward in self._backwards:
            for group in list(backward.pending):
                if group not in deleted:
                    deleted[group] = _is_deleted(group)
                if deleted[group]:
                    backward.pending.discard(group)
                    backward.unused.add(group)


def _groups(prefix: str, model: nn.Module, optimizers: Mapping[str, torch.optim.Optimizer]) -> list[_Group]:
    owners: dict[int, set[str]] = {}
    for name, optimizer in optimizers.items():
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                owners.setdefault(id(parameter), set()).add(name)
    parameters: dict[frozenset[str], list[tuple[str, nn.Parameter]]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.is_leaf:
            parameters.setdefault(frozenset(owners.get(id(parameter), ())), []).append((prefix + name, parameter))
    groups = []
    for optimizers_of_group, named in parameters.items():
        modules = [name.split(".")[:-1] for name, _ in named]
        common = takewhile(lambda pair: pair[0] == pair[1], zip(min(modules), max(modules), strict=False))
        innermost = ".".join(part for part, _ in common)
        groups.append(_Group(innermost or type(model).__name__, optimizers_of_group,
                             [parameter for _, parameter in named]))
    return groups


def _is_deleted(group: _Group) -> bool:
    """Return whether no parameter has a gradient, or all gradients are zero."""
    gradients = [parameter.grad for parameter in group.parameters if parameter.grad is not None]
    contents = [gradient._values() if gradient.is_sparse else gradient for gradient in gradients]
    return not any(bool(values.any()) for values in sorted(contents, key=lambda values: values.numel()))


def _sample(parameter: nn.Parameter) -> torch.Tensor:
    return parameter.detach().reshape(-1)[:16].clone()


class OutputUse:
    """Counts the rows of linear layers' outputs for sequences, such as tokens, and those with a nonzero gradient.

    *Error*: a row whose gradient is zero by chance, or below the smallest number, counts as unused.
    """

    def __init__(self) -> None:
        self._rows: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        """Numbers of rows and of used rows by layer."""

    def watch(self, layer: str, module: nn.Module, output: Any) -> None:
        """Count the rows of a call's output in the backward that follows."""
        if (isinstance(module, nn.Linear) and type(output) is torch.Tensor and output.requires_grad
                and output.dim() >= _LEAST_DIMENSIONS):
            output.register_hook(partial(self._count, layer))  # type: ignore[no-untyped-call]

    def unused(self) -> list[dict[str, Any]]:
        """Return the layers with rows that nothing used, those with most rows first."""
        layers = sorted(self._rows, key=lambda layer: self._rows[layer][1] - self._rows[layer][0])
        return [{"layer": layer, "num_rows": self._rows[layer][0], "num_used_rows": self._rows[layer][1]}
                for layer in layers[:_MOST_LAYERS] if self._rows[layer][1] < self._rows[layer][0]]

    def _count(self, layer: str, gradient: torch.Tensor) -> None:
        with contextlib.suppress(Exception), torch.no_grad():  # subclasses of tensors may do anything
            rows = gradient.reshape(-1, gradient.shape[-1])
            num_used = num_used_rows(rows)
            self._rows[layer][0] += len(rows)
            self._rows[layer][1] += num_used
