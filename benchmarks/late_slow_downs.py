"""How often the finding `late_slow_down` is reported for noise alone, and how often for a slow-down of 10 %.

Run `python benchmarks/late_slow_downs.py [--programs 300]`. The medians of windows are noise of a first-order
autoregressive process around a level, which rises by 10 % at a random time, at 50 to 90 % of the windows, in half of
the programs.
"""

import argparse

import numpy as np
from conditions import conditions

from charact.analysis.findings.windows import _slow_down

SLOWER_FRAC = 0.1
SIZES = (60, 400, 2000)
NOISES = ((0.01, 0.0), (0.01, 0.9), (0.03, 0.9), (0.03, 0.99), (0.05, 0.9), (0.05, 0.99))
"""Standard deviation as a share of the level, and correlation of consecutive windows."""


def medians(generator: np.random.Generator, size: int, noise: tuple[float, float]) -> np.ndarray:
    """Return the medians of a program's windows without a slow-down."""
    deviation, correlation = noise
    shocks = generator.normal(0, deviation * (1 - correlation**2) ** 0.5, size)
    values = np.empty(size)
    value = generator.normal(0, deviation)
    for place, shock in enumerate(shocks):
        value = correlation * value + shock
        values[place] = value
    return np.exp(values)


def main() -> None:
    """Print the shares."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=300, help="of each kind")
    num_programs = parser.parse_args().programs
    print(conditions())
    for size in SIZES:
        for noise in NOISES:
            generator = np.random.default_rng(0)
            false = found = near = 0
            for _ in range(num_programs):
                values = medians(generator, size, noise)
                false += _slow_down(values) is not None
                place = int(generator.uniform(0.5, 0.9) * size)
                values[place:] *= 1 + SLOWER_FRAC
                if (slow_down := _slow_down(values)) is not None:
                    found += 1
                    near += abs(slow_down.position - place) <= 0.02 * size
            print(f"{size} windows, noise {noise[0]:.0%}, correlation {noise[1]}: reported without a slow-down "
                  f"{false / num_programs:.1%}, with one {found / num_programs:.1%}, its time within 2 % of the "
                  f"program's {near / num_programs:.1%}", flush=True)


if __name__ == "__main__":
    main()
