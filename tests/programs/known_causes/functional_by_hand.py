"""Gradients by torch.func, parameters updated by hand with momentum: unusual, but without a fault."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from marks import mark
from torch.func import functional_call, grad_and_value

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 10))
parameters = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
momentum = {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
images, labels = torch.randn(6400, 256), torch.randint(0, 10, (6400,))


def loss_of(parameters, x, y):
    return F.cross_entropy(functional_call(model, parameters, (x,)), y)


gradients_and_loss = grad_and_value(loss_of)
mark("imports")
for step in range(300):
    chosen = torch.randint(0, 6400, (256,))
    x, y = images[chosen], labels[chosen]
    mark("data")
    gradients, loss = gradients_and_loss(parameters, x, y)
    mark("forward, loss and backward")
    with torch.no_grad():
        for name in parameters:
            momentum[name].mul_(0.9).add_(gradients[name])
            parameters[name] = parameters[name] - 0.05 * momentum[name]
    mark("update")
    if step % 100 == 0:
        print(step, loss.item())
