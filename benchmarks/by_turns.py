"""Error rates and number of turns of `charact compare --ab`, which stops once the ratio of two programs is decided.

Run `python benchmarks/by_turns.py [--pairs 1000]`. Comparisons are drawn from `recorded_turns.json`: times of short
programs, each run in a new process, back to back. A comparison takes blocks of consecutive runs of one program from a
random place on (circular block bootstrap) and deals them out by turns, A B B A. So both sides are the same program, and
slow times of the machine last as long as they did. For a known difference, the times of B are multiplied. Synthetic
noise has the same treatment. The turns are judged by the functions that the command uses.

`--record` measures the file again: `wall_s`, on whatever the machine does, and `processor_s`, the processor time of the
same iterations, which waits for no other program and stands for an idle machine.
"""

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import geometric_mean, median

import numpy as np
from numpy.typing import NDArray

from charact.analysis.common import significance
from charact.analysis.common.significance import Judgement, Sample, judged, judged_by_turns
from charact.analysis.compare.turns import decision

RECORD = Path(__file__).with_name("recorded_turns.json")
MAX_TURNS = 40
"""Turns of 15 s that fit into the default of 10 minutes."""
BLOCK = 8
"""Consecutive runs that a drawn comparison keeps together: four turns."""
RATIOS = 1.0, 1.03, 1.1, 3.0
NUM_ITERATIONS = 60
PROGRAMS = {
    "matrix products": "x = numpy.ones((300, 300), dtype='float32')\ndef step(): x @ x",
    "Python": "def step(): sum(i * i for i in range(20000))",
    "memory": "x = numpy.ones(2_000_000)\ndef step(): x.copy()",
}
"""Programs of a few milliseconds per iteration."""
_HEAD, _TAIL = "import time, numpy\n", f"""
wall, processor = [], []
for _ in range({NUM_ITERATIONS}):
    before, used = time.perf_counter(), time.process_time()
    step()
    wall.append(time.perf_counter() - before)
    processor.append(time.process_time() - used)
print(numpy.median(wall[10:]), numpy.median(processor[10:]))
"""
Values = NDArray[np.float64]
Judge = Callable[[Sample, Sample], Judgement]


def record(minutes: float) -> None:
    """Run each program in new processes for a third of the time, and write the times."""
    found: dict[str, dict[str, list[float]]] = {}
    for name, code in PROGRAMS.items():
        begun, times = time.monotonic(), []
        while time.monotonic() - begun < 60 * minutes / len(PROGRAMS):
            ran = subprocess.run([sys.executable, "-c", _HEAD + code + _TAIL], env={"OMP_NUM_THREADS": "1"},
                                 capture_output=True, text=True, check=True)  # fmt: skip
            times.append([float(word) for word in ran.stdout.split()])
        found[name] = {kind: list(of_kind) for kind, of_kind in
                       zip(("wall_s", "processor_s"), zip(*times, strict=True), strict=True)}
    RECORD.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def drawn(times: Values, generator: np.random.Generator) -> tuple[Values, Values]:
    """Return times of A and of B in each turn, from blocks of consecutive runs."""
    starts = generator.integers(0, len(times), 2 * MAX_TURNS // BLOCK)
    return dealt(times[(starts[:, None] + np.arange(BLOCK)).ravel() % len(times)])


def dealt(times: Values) -> tuple[Values, Values]:
    """Return consecutive times as those of A and of B: A B B A."""
    turns = times.reshape(-1, 2).copy()
    turns[1::2] = turns[1::2, ::-1]
    return turns[:, 0], turns[:, 1]


def synthetic(name: str, generator: np.random.Generator) -> tuple[Values, Values]:
    """Return times of A and of B whose logarithms have a standard deviation of about 2 %."""
    size = 2 * MAX_TURNS
    noise = generator.standard_normal(size)
    if name == "heavy tails":
        noise = generator.standard_t(3, size)
    elif name == "slow outliers":
        noise = noise / 2 + (generator.random(size) < 0.1) * generator.exponential(10, size)
    elif name == "two speeds, 6 % apart":
        noise = noise / 10 + 3 * (generator.random(size) < 0.5)
    elif name.startswith("correlated"):
        correlation = float(name.split()[1])
        for number in range(1, size):
            noise[number] = correlation * noise[number - 1] + (1 - correlation**2) ** 0.5 * noise[number]
    elif name == "drift, 20 % in all":
        noise = noise / 2 + np.linspace(0, 10, size)
    elif name == "the second run is faster":
        noise = noise / 2 - np.tile([0.0, 1.0], MAX_TURNS)
    return dealt(np.exp(0.02 * noise))


SYNTHETIC = ("normal", "heavy tails", "slow outliers", "two speeds, 6 % apart", "correlated 0.5", "correlated 0.9",
             "drift, 20 % in all", "the second run is faster")  # fmt: skip


def outcome(base: Values, new: Values, judge: Judge) -> tuple[str, int]:
    """Return the decision and after how many turns it was reached; undecided after `MAX_TURNS`."""
    for number in range(significance.MIN_TURNS, MAX_TURNS + 1):
        samples = (Sample(geometric_mean(values[:number]), tuple(values[:number]), of_runs=True)
                   for values in (base.tolist(), new.tolist()))  # fmt: skip
        found = decision(judge(*samples))
        if found != "undecided":
            return found, number
    return "undecided", MAX_TURNS


def print_rates(name: str, draw: Callable[[np.random.Generator], tuple[Values, Values]], num_pairs: int) -> None:
    """Print the rates for a kind of noise, for each true ratio."""
    cells = []
    for ratio in RATIOS:
        generator = np.random.default_rng(0)
        pairs = (draw(generator) for _ in range(num_pairs))
        found = [outcome(base, ratio * new, judged_by_turns) for base, new in pairs]
        counts = Counter(what for what, _ in found)
        different = 100 * (counts["slower"] + counts["faster"]) / num_pairs
        turns = [number for _, number in found]
        cells.append(f"{different:5.1f} / {100 * counts['same'] / num_pairs:5.1f} % "
                     f"{median(turns):3.0f} ({np.quantile(turns, 0.95):.0f})")
    generator = np.random.default_rng(0)
    peeked = [outcome(*draw(generator), judged)[0] for _ in range(min(num_pairs, 200))]
    naive = 100 * (peeked.count("slower") + peeked.count("faster")) / len(peeked)
    print(f"{name:42} {' | '.join(cells)} | {naive:.1f} %", flush=True)


def main() -> None:
    """Print a row for each kind of noise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=1000, help="comparisons of each kind")
    parser.add_argument("--record", type=float, metavar="MINUTES", help="measure the recorded times again")
    options = parser.parse_args()
    if options.record:
        record(options.record)
        return
    print(f"{options.pairs} comparisons each; true ratios {', '.join(map(str, RATIOS))}: decided as different / as at "
          "most 3 %, turns: median (95 %); last: equal programs, 95 % intervals for a fixed number looked at each turn")
    for program, kinds in json.loads(RECORD.read_text(encoding="utf-8")).items():
        for kind, times in kinds.items():
            spread = np.log(times).std(ddof=1)
            print_rates(f"{program}, {kind}, {len(times)} runs, {100 * spread:.1f} %", partial(drawn, np.array(times)),
                 options.pairs)  # fmt: skip
    for name in SYNTHETIC:
        print_rates(f"synthetic: {name}", partial(synthetic, name), options.pairs)


if __name__ == "__main__":
    main()
