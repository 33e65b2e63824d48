"""Functions of cupti-python that charact uses: its errors, a chip's metrics, and a collector's settings.

Source: cupti-python 13.4, modules `cupti.pm_sampling` and `cupti.profiler_host`.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from charact.measure.counters._support.protocol import ADMIN_ONLY, BUSY, UNSUPPORTED, Unavailable, UnavailableError

VERSIONS = ("pip install 'charact[cupti]', or where PyTorch pins an older CUPTI: pip install --no-deps "
            "'cupti-python>=13.3' 'nvidia-cuda-cupti>=13.3' cuda-bindings cuda-pathfinder pyelftools")
_BY_STATUS = {
    "ERROR_INSUFFICIENT_PRIVILEGES": ADMIN_ONLY, "ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES": ADMIN_ONLY,
    "ERROR_HARDWARE_BUSY": BUSY, "ERROR_NOT_SUPPORTED": UNSUPPORTED, "ERROR_INVALID_CHIP_NAME": UNSUPPORTED,
    "ERROR_INVALID_DEVICE": UNSUPPORTED,
    "ERROR_INVALID_PARAMETER": Unavailable("the loaded CUPTI is not the one that cupti-python needs", VERSIONS),
}  # fmt: skip


@contextlib.contextmanager
def cupti_errors() -> Iterator[None]:
    """Raise cupti-python's errors as `UnavailableError`."""
    try:
        yield
    except PermissionError:
        raise UnavailableError(ADMIN_ONLY) from None
    except (RuntimeError, ImportError) as error:
        is_busy = "already enabled" in str(error)
        raise UnavailableError(BUSY if is_busy else Unavailable(_message(error), VERSIONS)) from error
    except (ValueError, MemoryError) as error:
        raise UnavailableError(Unavailable(_message(error))) from error
    except Exception as error:
        if type(error).__name__ != "cuptiError":
            raise
        from cupti.cupti import Result

        name = Result(error.status).name  # type: ignore[attr-defined]
        raise UnavailableError(_BY_STATUS.get(name) or Unavailable(f"CUPTI: {name}", VERSIONS)) from error


def _message(error: Exception) -> str:
    return f"CUPTI: {' '.join(str(error).split()).partition('. ')[0]}"


def chip_name(device_index: int) -> str:
    """Return the name of a device's chip, e.g. GH100."""
    from cupti import cupti

    parameters = cupti.DeviceGetChipNameParams()
    parameters.struct_size = cupti.DEVICE_GET_CHIP_NAME_PARAMS_STRUCT_SIZE
    parameters.device_index = device_index
    cupti.device_get_chip_name(parameters.ptr)
    return str(parameters.p_chip_name)


def offered_metrics(chip: str) -> set[str]:
    """Return the metrics that can be sampled on a chip, without suffixes; names differ between generations."""
    from cupti.profiler_host import MetricType

    with _host(chip) as host:
        return {name for kind in (MetricType.COUNTER, MetricType.RATIO, MetricType.THROUGHPUT)
                for name in host.get_base_metrics(kind)}


def num_passes(chip: str, metrics: Sequence[str]) -> int:
    """Return the number of passes needed to count all of the metrics; sampling allows one."""
    from cupti.profiler_host import get_num_of_passes

    with _host(chip) as host:
        return int(get_num_of_passes(host.create_config_image(list(metrics))))


@contextlib.contextmanager
def _host(chip: str) -> Iterator[Any]:
    """Yield a new host object: a reused one would add metrics to those of earlier queries."""
    from cupti.profiler_host import ProfilerHost, ProfilerType

    host = ProfilerHost(chip, ProfilerType.PM_SAMPLING)
    host.initialize()
    try:
        yield host
    finally:
        host.deinitialize()


def configure(collector: Any, metrics: Sequence[str], interval_ns: int) -> None:
    """Set metrics and sampling interval; without a timer (Turing, GA100) the unit is clock cycles of about 1 ns.

    Raises:
        ValueError: the metrics cannot be sampled.
    """
    from cupti.pm_sampling import TriggerMode

    try:
        collector.configure(metrics=list(metrics), sampling_interval=interval_ns,
                            trigger_mode=TriggerMode.GPU_TIME_INTERVAL)
    except ValueError:
        collector.configure(metrics=list(metrics), sampling_interval=interval_ns,
                            trigger_mode=TriggerMode.GPU_SYSCLK_INTERVAL)
