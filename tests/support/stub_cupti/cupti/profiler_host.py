"""Metrics of the chip, and how many passes they take."""

import enum
import os
from collections.abc import Sequence
from typing import Any

from cupti.cupti import Result, cuptiError

COUNTERS = ["sm__cycles_active", "sm__warps_active", "smsp__inst_executed", "dram__bytes",
            "sm__pipe_tensor_cycles_active", "sm__inst_executed_realtime"]
RATIOS = ["sm__average_thread_inst_executed_pred_on_per_inst_executed_realtime",
          "smsp__thread_inst_executed_per_inst_executed", "smsp__thread_inst_executed_pred_on_per_inst_executed"]
THROUGHPUTS = ["dram__throughput"]


class ProfilerType(enum.IntEnum):
    RANGE_PROFILER = 0
    PM_SAMPLING = 1


class MetricType(enum.IntEnum):
    COUNTER = 0
    RATIO = 1
    THROUGHPUT = 2


def get_num_of_passes(config_image: Any) -> int:
    """As on real chips, some metrics take more than one by themselves."""
    capacity = int(os.environ.get("STUB_CUPTI_CAPACITY", "16"))
    return -(-len(set(config_image)) // capacity) + 2 * any(name.startswith("smsp__thread") for name in config_image)


class ProfilerHost:
    def __init__(self, chip_name: str, profiler_type: ProfilerType,
                 single_pass_metric_set_name: str | None = None) -> None:
        if chip_name != "ST100":
            raise ValueError(f"Invalid chip_name {chip_name!r}")
        self._metrics: list[str] | None = None

    def initialize(self) -> None:
        if os.environ.get("STUB_CUPTI") == "old CUPTI":
            raise cuptiError(Result.ERROR_INVALID_PARAMETER)
        self._metrics = []

    def deinitialize(self) -> None:
        self._metrics = None

    def create_config_image(self, metrics: Sequence[str]) -> list[str]:
        """As of the real one, a second call adds to the first."""
        if self._metrics is None:
            raise RuntimeError("Call initialize() before using this object.")
        if any(name.partition(".")[0] not in COUNTERS + RATIOS + THROUGHPUTS for name in metrics):
            raise ValueError(f"One or more metrics in {metrics!r} are invalid or not supported on ST100")
        self._metrics += metrics
        return list(self._metrics)

    def get_base_metrics(self, metric_type: MetricType) -> list[str]:
        if self._metrics is None:
            raise RuntimeError("Call initialize() before using this object.")
        blind = os.environ.get("STUB_CUPTI") == "blind"
        return {MetricType.COUNTER: COUNTERS[blind:], MetricType.RATIO: RATIOS,
                MetricType.THROUGHPUT: THROUGHPUTS}[metric_type]
