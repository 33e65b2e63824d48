"""Writers of a run of every kind."""

from collections.abc import Callable
from pathlib import Path

from support import (
    brick_records,
    counter_records,
    memory_records,
    operation_records,
    rank_records,
    records,
    serving_records,
    snapshots,
)
from support.watched_programs import watched_program

RUNS: dict[str, Callable[[Path], Path]] = {
    "profile": records.write_record,
    "training": records.write_training,
    "inference": records.write_inference,
    "watched": records.write_watched,
    "slow program": lambda out: watched_program(out, {"data": 0.03, "forward": 0.02}, settings={
        "threads": {"intra_op": 16, "num_usable_cores": 2}}).path,
    "memory": memory_records.write_memory,
    "gpu counters": counter_records.write_gpu,
    "cpu counters": counter_records.write_cpu,
    "operations": lambda out: operation_records.suite(out, 8).path,
    "sparse": lambda out: operation_records.sparse(out, {0.1: 1.0, 0.01: 0.5}).path,
    "bricks": lambda out: brick_records.suite_run(out).path,
    "ranks": rank_records.write_ranks,
    "server": serving_records.write_server,
    "memory snapshot": snapshots.write_run,
    "constructed models": lambda out: brick_records.three_models(out).path,
}
"""Writers of a run of each kind, of which together every analysis finds what it needs."""
