"""Records of programs that went on after their event log was full."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from charact.record.reader import Run
from support.watched_programs import watched_program

NUM, PER_WINDOW = 400, 500
"""Number of windows, and of iterations in each."""
Values = npt.NDArray[np.float64]


def correlated(seed: int, num: int = NUM, correlation: float = 0.9) -> Values:
    """Noise of standard deviation 1 whose consecutive values resemble each other."""
    generator = np.random.default_rng(seed)
    values = np.zeros(num)
    for place in range(1, num):
        values[place] = correlation * values[place - 1] + generator.normal(0, (1 - correlation**2) ** 0.5)
    return values


def long_program(out: Path, backward: Values | float = 0.004, rss_bytes: Values | float = 2e9, *, seed: int = 0) -> Run:
    """A record with windows of 5 s: data 0.1 ms, forward 5.9 ms, backward 4 ms; noise 1 %."""
    noise = 1 + 0.01 * correlated(seed)
    phases = {"data": 0.0001 * noise, "forward": 0.0059 * noise,
              "backward": np.broadcast_to(backward, NUM) * noise}
    wall = sum(phases.values())
    rows = []
    for number in range(NUM):
        place = {"window": number, "start_s": 5.0 * number, "end_s": 5.0 * (number + 1), "num_iterations": PER_WINDOW}
        for phase, values in {None: wall, **phases}.items():
            each = float(values[number])
            rows.append({**place, "phase": phase, "sum_s": each * PER_WINDOW, "median_s": each, "p90_s": 1.1 * each,
                         "p99_s": 1.2 * each, "max_s": 2 * each,
                         "rss_bytes": None if phase else float(np.broadcast_to(rss_bytes, NUM)[number])})
    return watched_program(out, {"data": 0.0001, "forward": 0.0059, "backward": 0.004}, windows=rows)
