"""How often `charact history` finds a change point in noise, and how often it finds a step that is there.

Run `python benchmarks/change_points.py [--series 4000] [--lengths 12,30,100]`. It takes some 30 s. The noise has a
spread of 2 % or 5 %, as medians of runs of one machine have: normal; heavy-tailed (Student's t with 3 degrees of
freedom); normal with slow outliers, 7 % of the runs up to 10 spreads slower; or normal and correlated from run to run.
"""

import argparse
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from charact.analysis.history.change_points import change_points

Values = NDArray[np.float64]
STEP_FRAC = 0.10
SPREADS_FRAC = (0.02, 0.05)
_SLOW_FRAC, _SLOWEST = 0.07, 10.0


def normal(generator: np.random.Generator, num: int) -> Values:
    """Return independent normal noise."""
    return generator.standard_normal(num)


def heavy(generator: np.random.Generator, num: int) -> Values:
    """Return heavy-tailed noise."""
    return generator.standard_t(3, num)


def slow(generator: np.random.Generator, num: int) -> Values:
    """Return normal noise, in which some runs are much slower."""
    is_slow = generator.random(num) < _SLOW_FRAC
    return generator.standard_normal(num) + np.where(is_slow, _SLOWEST * generator.random(num), 0.0)


def correlated(correlation: float) -> Callable[[np.random.Generator, int], Values]:
    """Return a function that returns noise whose consecutive values have this correlation."""
    def noise(generator: np.random.Generator, num: int) -> Values:
        fresh = generator.standard_normal(num)
        found = np.empty(num)
        found[0] = fresh[0]
        for number in range(1, num):
            found[number] = correlation * found[number - 1] + np.sqrt(1 - correlation**2) * fresh[number]
        return found

    return noise


NOISES = {"normal": normal, "heavy-tailed": heavy, "slow outliers": slow, "correlated 0.3": correlated(0.3),
          "correlated 0.5": correlated(0.5), "correlated 0.7": correlated(0.7)}


def false_alarms(noise: str, length: int, num_series: int) -> float:
    """Return the share of series of noise in which a change point is found."""
    generator = np.random.default_rng(length)
    found = (change_points((1 + 0.02 * NOISES[noise](generator, length)).tolist()) for _ in range(num_series))
    return sum(map(bool, found)) / num_series


def found_steps(noise: str, length: int, spread_frac: float, num_series: int) -> float:
    """Return the share of series with a step of 10 % in the middle in which it is found, at most one run off."""
    generator, middle, num_found = np.random.default_rng(length), length // 2, 0
    for _ in range(num_series):
        values = 1 + spread_frac * NOISES[noise](generator, length)
        values[middle:] *= 1 + STEP_FRAC
        num_found += any(abs(position - middle) <= 1 for position in change_points(values.tolist()))
    return num_found / num_series


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--series", type=int, default=4000, help="series of noise; a fourth of them for steps")
    parser.add_argument("--lengths", default="12,30,100", help="numbers of runs")
    options = parser.parse_args()
    spreads = " | ".join(f"step found, spread {100 * spread:.0f} %" for spread in SPREADS_FRAC)
    print(f"| noise | runs | false alarms | {spreads} |\n|---|---|---|---|---|")
    for noise in NOISES:
        for length in map(int, options.lengths.split(",")):
            found = [found_steps(noise, length, spread, options.series // 4) for spread in SPREADS_FRAC]
            print(f"| {noise} | {length} | {100 * false_alarms(noise, length, options.series):.1f} % | "
                  + " | ".join(f"{100 * share:.0f} %" for share in found) + " |", flush=True)


if __name__ == "__main__":
    main()
