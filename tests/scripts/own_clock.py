"""The clock of a script in the shape of PyTorch's public examples: seconds of each phase of its training, by its own.

When the script ends, the file that TRUTH names holds the sums, and how many iterations trained and predicted.
"""

import atexit
import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

seconds: defaultdict[str, float] = defaultdict(float)
num_iterations: Counter[str] = Counter()


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Add what runs inside to a phase."""
    begun_s = time.perf_counter()
    yield
    seconds[name] += time.perf_counter() - begun_s


@atexit.register
def _write() -> None:
    with open(os.environ["TRUTH"], "w", encoding="utf-8") as file:
        json.dump({"seconds": seconds, "num_iterations": num_iterations}, file)
