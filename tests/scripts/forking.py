"""Forks while it trains: children that leave by os._exit, by their end, and as multiprocessing's, and train on."""

import multiprocessing
import os
import sys

from sleepy import SleepyModel, SleepySGD, sleepy_loader
from torch.nn import functional
from truth import Truth


def train_once(x, y) -> None:
    with truth("forward"):
        outputs = model(x)
    with truth("loss"):
        loss = functional.cross_entropy(outputs, y)
    with truth("backward"):
        loss.backward()
    with truth("update"):
        optimizer.step()
        optimizer.zero_grad()


def in_child(batch) -> None:
    train_once(*batch)


truth = Truth()
model = SleepyModel()
optimizer = SleepySGD(model.parameters(), lr=0.1)
for number, batch in enumerate(truth.batches(sleepy_loader(6))):
    train_once(*batch)
    with truth("other"):
        if number == 1 and (child := os.fork()) == 0:
            train_once(*batch)
            os._exit(4)
        if number == 2 and (child := os.fork()) == 0:
            train_once(*batch)
            sys.exit(5)
        if number in (1, 2):
            print(f"child: {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}", flush=True)
        if number == 3:
            process = multiprocessing.get_context("fork").Process(target=in_child, args=(batch,))
            process.start()
            process.join()
            print(f"process: {process.exitcode}", flush=True)
truth.write()
