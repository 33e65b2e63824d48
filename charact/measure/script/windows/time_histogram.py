"""Histogram of times with bins of equal ratio, from which quantiles are read. No torch in here.

*Error*: a quantile is within 1 % of the time of that rank.

*Source*: C. Masson, J. E. Rim, H. K. Lee, DDSketch: a fast and fully-mergeable quantile sketch with relative-error
guarantees (VLDB 2019).
"""

import math
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

if TYPE_CHECKING:
    import numpy as np

RELATIVE_ERROR = 0.01
"""Largest relative error of a quantile."""
_LOG_RATIO = math.log((1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR))
"""Logarithm of the ratio of a bin's ends."""


Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
_Bin = Annotated[int, Meta(ge=0, le=2200)]
"""Index of a bin; the last ones are of 2^63 ns."""


class TimeHistogram(msgspec.Struct):
    """Numbers of times by bin, their sum and the longest one (ns)."""

    sum_ns: Count = 0
    max_ns: Count = 0
    bins: dict[_Bin, Count] = {}
    """Number of times by the index of their bin; times of 0 are not counted."""

    def add(self, time_ns: int) -> None:
        """Count a time."""
        if time_ns <= 0:
            return
        self.sum_ns += time_ns
        if time_ns > self.max_ns:
            self.max_ns = time_ns
        index = int(math.log(time_ns) / _LOG_RATIO)
        self.bins[index] = self.bins.get(index, 0) + 1

    def add_all(self, times_ns: "np.ndarray[Any, np.dtype[np.int64]]") -> None:
        """Count several times."""
        import numpy as np

        times_ns = times_ns[times_ns > 0]
        if times_ns.size:
            self.sum_ns += int(times_ns.sum())
            self.max_ns = max(self.max_ns, int(times_ns.max()))
            indices, numbers = np.unique((np.log(times_ns) / _LOG_RATIO).astype(np.int64), return_counts=True)
            for index, number in zip(indices.tolist(), numbers.tolist(), strict=True):
                self.bins[index] = self.bins.get(index, 0) + number

    def merge(self, other: "TimeHistogram") -> None:
        """Count the times of another histogram, too."""
        self.sum_ns += other.sum_ns
        self.max_ns = max(self.max_ns, other.max_ns)
        for index, number in other.bins.items():
            self.bins[index] = self.bins.get(index, 0) + number

    @property
    def num_times(self) -> int:
        """Number of counted times."""
        return sum(self.bins.values())

    def quantile_ns(self, share_frac: float, total: int) -> float:
        """Return the time (ns) that a share of `total` times does not exceed; those that were not counted are 0."""
        rank = max(1, math.ceil(share_frac * total)) - (total - self.num_times)
        if rank <= 0:
            return 0.0
        for index in sorted(self.bins):
            rank -= self.bins[index]
            if rank <= 0:
                return min(math.exp(index * _LOG_RATIO) * (1 + RELATIVE_ERROR), float(self.max_ns))
        return float(self.max_ns)
