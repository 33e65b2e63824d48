"""Times of `charact profile --mode generate` over those of a stopwatch in a loop of its own.

Run `python benchmarks/generation_time.py [--pairs 10]`, for some ten minutes. Both sides are new processes with the
same model, prompts and cache; the loop knows nothing of how charact measures.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from conditions import conditions

from charact.analysis.profile.case_summary import iteration_times
from charact.core.statistics import median_interval
from charact.record.reader import load_run

WORKLOADS = {"llama": "static", "transformer_lm": "growing", "rnn_lm": "static"}
"""Names of workloads, and their caches."""
INPUT_SIZE, OUTPUT_SIZE, BATCH_SIZE = 64, 32, 4
NUM_WARMUP, NUM_TIMES = 3, 20
STOPWATCH = f"""
import json, sys, time, torch
from torch.utils.data import DataLoader
from charact.workload import DataRequest
from charact.workload.registry import find_workload
torch.manual_seed(0)
workload = find_workload(sys.argv[1]).prepare()
data = workload.dataset({INPUT_SIZE}, DataRequest(batch_size={BATCH_SIZE}))
model = workload.model(data).eval()
generator = workload.generator(model, {OUTPUT_SIZE}, sys.argv[2])
batches = iter(DataLoader(data, batch_size={BATCH_SIZE}, collate_fn=data.collate))
first, further = [], []
with torch.inference_mode():
    for _ in range({NUM_WARMUP + NUM_TIMES}):
        begun = time.perf_counter()
        words = generator.prefill(next(batches)).argmax(-1)
        now = time.perf_counter()
        first.append(now - begun)
        for _ in range({OUTPUT_SIZE} - 1):
            words = generator.decode(words).argmax(-1)
            begun, now = now, time.perf_counter()
            further.append(now - begun)
print(json.dumps([first[{NUM_WARMUP}:], further[{NUM_WARMUP} * ({OUTPUT_SIZE} - 1):]]))
"""


def by_stopwatch(name: str) -> tuple[float, float]:
    """Return the medians of the time to the first token, and of each further one (s), of a loop without charact."""
    ran = subprocess.run([sys.executable, "-c", STOPWATCH, name, WORKLOADS[name]], capture_output=True, text=True,
                         check=True)
    first, further = json.loads(ran.stdout)
    return median(first), median(further)


def by_charact(name: str) -> tuple[float, float]:
    """Return the same medians as charact measures them."""
    sizes = ["--input-sizes", str(INPUT_SIZE), "--output-sizes", str(OUTPUT_SIZE), "--batch-sizes", str(BATCH_SIZE)]
    with tempfile.TemporaryDirectory() as out:
        subprocess.run([sys.executable, "-m", "charact", "profile", name, "--mode", "generate", *sizes, "--cache",
                        WORKLOADS[name], "--passes", "timing", "--quiet", "--out", out], check=True,
                       stdout=subprocess.DEVNULL)
        run = load_run(next(Path(out).glob("*/run.json")).parent)
        walls = iteration_times(run).groupby("case")["wall_s"].median()
    modes = {entry.mode: walls[entry.case] for entry in run.entries}
    return float(modes["prefill"]), float(modes["decode"])


def main() -> None:
    """Print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=10)
    num_pairs = parser.parse_args().pairs
    print(conditions())
    for name, cache in WORKLOADS.items():
        ratios: list[tuple[float, float]] = []
        for pair in range(num_pairs):
            sides = (by_stopwatch, by_charact) if pair % 2 else (by_charact, by_stopwatch)
            times = {side: side(name) for side in sides}
            first, further = (one / other for one, other in zip(times[by_charact], times[by_stopwatch], strict=True))
            ratios.append((first, further))
        for what, values in zip(("first token", "each further one"), zip(*ratios, strict=True), strict=True):
            low, high = median_interval(list(values)) or (min(values), max(values))
            print(f"{name} ({cache}), {what}: {median(values):.3f} (95 % interval {low:.3f} to {high:.3f}, "
                  f"{num_pairs} pairs)", flush=True)


if __name__ == "__main__":
    main()
