"""Two steps of the critic for each of the generator: an iteration is a critic's step, and the generator's if any."""

import torch
from sleepy import SleepyModel, SleepySGD, sleepy_loader
from truth import Truth

truth = Truth()
generator, critic = SleepyModel(2, 4), SleepyModel(4, 1)
generator_optimizer, critic_optimizer = (SleepySGD(net.parameters(), lr=0.1) for net in (generator, critic))
for number, (real, _) in enumerate(truth.batches(sleepy_loader(8)), 1):
    with truth("forward", "critic"):
        real_score = critic(real)
    with torch.no_grad(), truth("forward", "generator"):
        fake = generator(torch.ones(1, 2))
    with truth("forward", "critic"):
        fake_score = critic(fake)
    with truth("backward", "critic"):
        (fake_score - real_score).mean().backward()
    with truth("update", "critic"):
        critic_optimizer.step()
        critic_optimizer.zero_grad()
    if number % 2 == 0:
        with truth("forward", "generator"):
            fake = generator(torch.ones(1, 2))
        with truth("forward", "critic"):
            fake_score = critic(fake)
        with truth("backward", "generator"):
            (-fake_score).mean().backward()
        with truth("update", "generator"):
            generator_optimizer.step()
            generator_optimizer.zero_grad()
    print(f"{fake_score.item():.6f}")
truth.write()
