"""Records of several ranks with known times: work in each phase, and a wait for the last rank in one all-reduce."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from charact.record.schema import Rows
from support.records import manifest, publish, watched_entry

WORK_S = {"data": 0.002, "forward": 0.010, "loss": 0.001, "backward": 0.020, "update": 0.003}
TRANSFER_S = 0.002
NUM_BYTES = 4_000_000

Work = Callable[[int, int], dict[str, float]]
"""Time of each phase (s), in addition to `WORK_S`, by rank and iteration."""


def slow(rank: int, phase: str, extra_s: float) -> Work:
    return lambda one, iteration: {phase: extra_s} if one == rank else {}


def tables(works_s: Sequence[dict[str, float]], rank: int, iteration: int, *, sequence: int) -> tuple[Rows, Rows]:
    """Rows of the iterations and collectives of one rank; all leave the all-reduce of the backward together."""
    arrivals_s = [sum(work.get(phase, 0.0) + WORK_S[phase] for phase in ("data", "forward", "loss", "backward"))
                  for work in works_s]
    wait_s = max(arrivals_s) - arrivals_s[rank] + TRANSFER_S
    # Time that is added after the all-reduce delays the next iteration's; here nobody waits for it.
    phases = [{"iteration": iteration, "phase": phase, "part": None, "host_s": WORK_S[phase] +
               works_s[rank].get(phase, 0.0), "device_s": None} for phase in WORK_S]
    waiting = {"iteration": iteration, "phase": "communication", "part": None, "host_s": wait_s, "device_s": None}
    collective = {
        "iteration": iteration, "phase": "backward", "group": "default", "group_size": len(works_s),
        "sequence": sequence, "operation": "all_reduce", "bytes": float(NUM_BYTES), "start_s": arrivals_s[rank],
        "wait_s": wait_s, "exposed_s": wait_s, "device_s": None,
    }  # fmt: skip
    return [*phases, waiting], [collective]


def write_ranks(out: Path, work: Work = slow(1, "backward", 0.06), *, world_size: int = 2,  # noqa: B008
                num_iterations: int = 10, late: dict[int, int] | None = None, with_collectives: bool = True,
                sizes: dict[int, int] | None = None, name: str = "train",
                collective_ceilings: dict[str, Any] | None = None) -> Path:
    """Write the merged record of a program on several ranks.

    By rank, `late` has the number by which sequence numbers differ, and `sizes` the world size that is reported.
    """
    ranks = [{"rank": rank, "local_rank": rank, "world_size": world_size, "hostname": "node0",
              "num_iterations": num_iterations, "ending": "to its end", "traceback": None, "ended_s": 1.0,
              "reason": None} for rank in range(world_size)]
    facts = manifest("run", f"{name}.py") | {
        "options": {"script": f"{name}.py", "arguments": [], "skip": None, "iterations": None, "passes": []},
        "ending": "to its end", "ranks": ranks, "world_size": world_size,
        **(collective_ceilings or {}),
    }  # fmt: skip
    cases = []
    for rank in range(world_size):
        iterations: Rows = []
        collectives: Rows = []
        for number in range(num_iterations):
            works_s = [work(one, number) for one in range(world_size)]
            some, called = tables(works_s, rank, number, sequence=10 + number + (late or {}).get(rank, 0))
            iterations += some
            collectives += called
        cases.append((_entry(name, rank, world_size=(sizes or {}).get(rank, world_size), num=num_iterations,
                             with_collectives=with_collectives),
                      {"iterations": iterations, "collectives": collectives if with_collectives else []}))
    return publish(out, name, facts, *cases)


def _entry(name: str, rank: int, *, world_size: int, num: int, with_collectives: bool) -> dict[str, Any]:
    entry = watched_entry(name)
    timing = entry["passes"]["timing"] | {"num_iterations": num, "num_warmup_iterations": 2, "median_s": 0.1}
    passes: dict[str, Any] = {"timing": timing}
    if with_collectives:
        passes["collectives"] = {"status": "ok", "reason": None, "num_lost": 0, "backend": "gloo"}
    return entry | {"case": f"{name}-train-rank{rank}", "rank": rank, "local_rank": rank, "world_size": world_size,
                    "hostname": "node0", "passes": passes}
