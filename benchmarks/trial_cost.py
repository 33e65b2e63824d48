"""Cost of a trial of `charact try` that applies nothing: a program's mean iteration in it over that of Python alone.

Run `python benchmarks/trial_cost.py [--pairs 30]`, for some six minutes. The program times its iterations itself, after
a warm-up.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from conditions import conditions
from interleaved import compare

from charact.remedies.process import Command

NUM_ITERATIONS, NUM_WARMUP = 1000, 100
PROGRAM = f"""
import os, time, torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
optimizer = torch.optim.Adam(model.parameters())
data = TensorDataset(torch.randn({64 * NUM_ITERATIONS}, 256), torch.randint(0, 10, ({64 * NUM_ITERATIONS},)))
for number, (batch, target) in enumerate(DataLoader(data, batch_size=64)):
    if number == {NUM_WARMUP}:
        begun = time.perf_counter()
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(batch), target).backward()
    optimizer.step()
with open(os.environ["SPENT"], "w") as file:
    file.write(str((time.perf_counter() - begun) / {NUM_ITERATIONS - NUM_WARMUP}))
"""


def main() -> None:
    """Print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=30)
    num_pairs = parser.parse_args().pairs
    print(conditions())
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        program, spent = directory / "train.py", directory / "spent"
        program.write_text(PROGRAM)
        os.environ["SPENT"] = str(spent)
        trials = Command("run", (program.name,), b"", directory)

        def alone() -> float:
            subprocess.run([sys.executable, program.name], cwd=directory, check=True)
            return float(spent.read_text())

        def in_trial() -> float:
            trial = trials.measured(["--iterations", str(2 * NUM_ITERATIONS), "--stop"], (), directory / "trial", 60.0)
            if trial.run is None:
                raise SystemExit(f"the trial failed: {trial.failure}")
            return float(spent.read_text())

        print(f"mean iteration in a trial over that of Python alone: {compare(in_trial, alone, num_pairs)}; "
              f"{1e3 * alone():.2f} ms alone")


if __name__ == "__main__":
    main()
