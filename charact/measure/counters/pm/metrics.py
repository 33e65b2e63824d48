"""Metrics of CUPTI's sampling, split into sets that the chip can count in one pass."""

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

ACTIVE = "sm__cycles_active.sum"
"""Active cycles of multiprocessors; in every set, to find when the device was active."""


DRAM_BYTES = "dram_bytes"
_PERCENT, _OF_32_THREADS = 1 / 100, 1 / 32
Fits = Callable[[Sequence[str]], bool]
"""Returns whether the hardware can count some metrics in one pass; sampling has only one."""


@dataclass(frozen=True)
class Chosen:
    """A counter and its metric, times a factor.

    A mean over samples is weighted by another metric, the denominator of the share; None weights by time.
    """

    counter: str
    metric: str
    weight: str | None = None
    factor: float = _PERCENT


WANTED = (
    Chosen("warp_occupancy_frac", "sm__warps_active.avg.pct_of_peak_sustained_active", ACTIVE),
    Chosen("nonpredicated_efficiency_frac", "sm__average_thread_inst_executed_pred_on_per_inst_executed_realtime.ratio",
           "sm__inst_executed_realtime.sum", _OF_32_THREADS),
    Chosen("nonpredicated_efficiency_frac", "smsp__thread_inst_executed_pred_on_per_inst_executed.pct",
           "smsp__inst_executed.sum"),
    Chosen("bandwidth_utilization_frac", "dram__throughput.avg.pct_of_peak_sustained_elapsed"),
    Chosen("bandwidth_utilization_frac", "dram__bytes.avg.pct_of_peak_sustained_elapsed"),
    Chosen(DRAM_BYTES, "dram__bytes.sum", factor=1.0),
    Chosen("tensor_pipe_frac", "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"),
    Chosen("tensor_pipe_frac", "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_elapsed"),
)
"""Counters in order of importance; of several metrics, the first that the chip can sample.

Source: queries of CUPTI 13.0 for every chip from TU102 to GB20B.
"""


def chosen_metrics(offered: AbstractSet[str], fits: Fits) -> tuple[list[Chosen], dict[str, str]]:
    """Return the counters that the chip can sample, and the reasons of the others, by counter.

    Args:
        offered: names of metrics without their suffixes.
        fits: whether metrics can be sampled in one pass.
    """
    chosen: dict[str, Chosen] = {}
    missing: dict[str, str] = {}
    for one in WANTED:
        if one.counter in chosen:
            continue
        names = {name.partition(".")[0] for name in metrics_of([one])}
        if not names <= offered:
            missing.setdefault(one.counter, "CUPTI has no metric of it for this chip")
        elif fits(metrics_of([one])):
            chosen[one.counter] = one
        else:
            missing[one.counter] = "the chip counts it in more than one pass, and sampling has one: use --counters ncu"
    return list(chosen.values()), {name: reason for name, reason in missing.items() if name not in chosen}


def metrics_of(chosen: Sequence[Chosen]) -> list[str]:
    """Return the distinct metrics of some counters."""
    weights = [one.weight for one in chosen if one.weight is not None]
    return list(dict.fromkeys([ACTIVE, *weights, *(one.metric for one in chosen)]))


def sets_of(chosen: Sequence[Chosen], fits: Fits) -> list[list[Chosen]]:
    """Split counters into sets that fit; each counter goes to the first set with room for it."""
    sets: list[list[Chosen]] = []
    for one in chosen:
        room = next((held for held in sets if fits(metrics_of([*held, one]))), None)
        if room is None:
            sets.append([one])
        else:
            room.append(one)
    return sets
