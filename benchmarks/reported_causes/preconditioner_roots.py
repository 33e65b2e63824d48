"""The optimizer computes the roots of its preconditioners in each step, although they change little from step to step.

Report: kozistr/pytorch_optimizer, pull request 129 (from issue 100).
"""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

REMEDY = bool(os.environ.get("REMEDY"))


def inverse_fourth_root(matrix):
    """Return the inverse fourth root of a symmetric matrix."""
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * values.clamp_min(1e-6) ** -0.25) @ vectors.T


class Shampoo(torch.optim.Optimizer):
    """Preconditions the gradients of matrices from both sides."""

    def __init__(self, parameters, lr, beta=0.99, root_steps=1):
        super().__init__(parameters, {"lr": lr, "beta": beta, "root_steps": root_steps})
        self.num_steps = 0

    @torch.no_grad()
    def step(self):
        """Update all parameters."""
        for group in self.param_groups:
            for parameter in group["params"]:
                self._update(parameter, self.state[parameter], group)
        self.num_steps += 1

    def _update(self, parameter, state, group):
        gradient = parameter.grad
        if parameter.ndim == 2:
            if not state:
                state["left"], state["right"] = (1e-4 * torch.eye(size) for size in parameter.shape)
            state["left"].lerp_(gradient @ gradient.T, 1 - group["beta"])
            state["right"].lerp_(gradient.T @ gradient, 1 - group["beta"])
            if self.num_steps % group["root_steps"] == 0:
                state["left_root"] = inverse_fourth_root(state["left"])
                state["right_root"] = inverse_fourth_root(state["right"])
            gradient = state["left_root"] @ gradient @ state["right_root"]
            gradient *= parameter.grad.norm() / gradient.norm()
        parameter.sub_(gradient, alpha=group["lr"])


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(128, 192), nn.GELU(), nn.Linear(192, 192), nn.GELU(), nn.Linear(192, 10))
optimizer = Shampoo(model.parameters(), 0.1, root_steps=20 if REMEDY else 1)
start = time.perf_counter()
for _ in range(220):
    inputs, labels = torch.randn(512, 128), torch.randint(0, 10, (512,))
    loss = F.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loop: {time.perf_counter() - start:.3f} s, loss {loss.item():.3f}")
