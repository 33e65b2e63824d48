"""A generator and a discriminator, each with its optimizer, all of it local; `--no-loader` makes batches by hand."""

import sys
from collections.abc import Iterator

import torch
from sleepy import SleepyModel, SleepySGD, sleepy_loader
from torch import Tensor, nn
from torch.nn import functional
from truth import Truth


def batches(truth: Truth) -> Iterator[Tensor]:
    if "--no-loader" in sys.argv:
        for number in range(5):
            truth.begin()
            yield torch.full((1, 4), number / 10)
    else:
        for x, _ in truth.batches(sleepy_loader(5)):
            yield x


def judged(truth: Truth, net: nn.Module, x: Tensor, label: float, part: str) -> Tensor:
    with truth("forward", "netD"):
        outputs = net(x)
    with truth("loss", part):
        return functional.binary_cross_entropy_with_logits(outputs, torch.full_like(outputs, label))


def main() -> None:
    truth = Truth()
    netG, netD = SleepyModel(2, 4), SleepyModel(4, 1)
    optimizerG, optimizerD = (SleepySGD(net.parameters(), lr=0.1) for net in (netG, netD))
    for real in batches(truth):
        netD.zero_grad()
        real_loss = judged(truth, netD, real, 1.0, "netD")
        with truth("backward", "netD"):
            real_loss.backward()
        with truth("forward", "netG"):
            fake = netG(torch.ones(1, 2))
        fake_loss = judged(truth, netD, fake.detach(), 0.0, "netD")
        with truth("backward", "netD"):
            fake_loss.backward()
        with truth("update", "netD"):
            optimizerD.step()
        netG.zero_grad()
        generator_loss = judged(truth, netD, fake, 1.0, "netG")
        with truth("backward", "netG"):
            generator_loss.backward()
        with truth("update", "netG"):
            optimizerG.step()
        print(f"{real_loss.item() + fake_loss.item():.6f} {generator_loss.item():.6f}")
    truth.write()


main()
