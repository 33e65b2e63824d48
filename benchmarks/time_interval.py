"""How often the 95 % interval of an iteration's time contains the true median, and how fast it is computed.

Run `python benchmarks/time_interval.py [--trials 1000]`. Times are log-normal with a spread of 10 % and a given
correlation of consecutive iterations. The rows compare the interval of order statistics, the quantiles of the block
bootstrap, and the interval that charact reports, which contains both.
"""

import argparse
import time

import numpy as np
from numpy.typing import NDArray

from charact.analysis.common.significance import timed
from charact.core.statistics import median_interval

_NUMBERS = (6, 10, 20, 30, 50, 100, 400)
_CORRELATIONS = (0.0, 0.3, 0.6)
_SETTLING = 50


def times(generator: np.random.Generator, number: int, correlation: float) -> NDArray[np.float64]:
    """Return times with a median of 1 whose logarithms are an autoregressive process of first order."""
    noise = generator.standard_normal(number + _SETTLING)
    logs = np.zeros(number + _SETTLING)
    for place in range(1, len(logs)):
        logs[place] = correlation * logs[place - 1] + noise[place] * np.sqrt(1 - correlation**2)
    return np.exp(0.1 * logs[_SETTLING:])


def coverage(number: int, correlation: float, num_trials: int) -> list[float]:
    """Return the shares of intervals with the true median: order statistics, bootstrap, both."""
    generator, hits = np.random.default_rng(0), np.zeros(3)
    for _ in range(num_trials):
        values = times(generator, number, correlation)
        sample, ordered = timed(values.tolist()), median_interval(values.tolist())
        assert sample.draws is not None
        assert sample.interval is not None
        assert ordered is not None
        drawn = tuple(np.quantile(sample.draws, (0.025, 0.975)))
        hits += [low <= 1 <= high for low, high in (ordered, drawn, sample.interval)]
    return [float(share) for share in hits / num_trials]


def main() -> None:
    """Print the coverage by number of iterations and correlation, and the time for 10,000 iterations."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=1000)
    num_trials = parser.parse_args().trials
    for correlation in _CORRELATIONS:
        for number in _NUMBERS:
            shares = " ".join(f"{100 * share:5.1f} %" for share in coverage(number, correlation, num_trials))
            print(f"{number:4} iterations, correlation {correlation}: order statistics, bootstrap, both {shares}")
    values = times(np.random.default_rng(0), 10_000, 0.3).tolist()
    begun = time.perf_counter()
    assert timed(values).interval is not None
    print(f"10,000 iterations: {1000 * (time.perf_counter() - begun):.0f} ms")


if __name__ == "__main__":
    main()
