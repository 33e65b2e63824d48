"""What is used of cupti-python: its errors as reasons, a chip's metrics, and the settings of a collector.

Source: cupti-python 13.4, modules `cupti.pm_sampling` and `cupti.profiler_host`.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from charact.measure.counters._support.permissions import ADMIN_ONLY, BUSY, UNSUPPORTED
from charact.measure.counters._support.protocol import Refusal, Refused

VERSIONS = ("pip install 'charact[cupti]', or where PyTorch pins an older CUPTI: pip install --no-deps "
            "'cupti-python>=13.3' 'nvidia-cuda-cupti>=13.3' cuda-bindings cuda-pathfinder pyelftools")
_BY_STATUS = {
    "ERROR_INSUFFICIENT_PRIVILEGES": ADMIN_ONLY, "ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES": ADMIN_ONLY,
    "ERROR_HARDWARE_BUSY": BUSY, "ERROR_NOT_SUPPORTED": UNSUPPORTED, "ERROR_INVALID_CHIP_NAME": UNSUPPORTED,
    "ERROR_INVALID_DEVICE": UNSUPPORTED,
    "ERROR_INVALID_PARAMETER": Refusal("the CUPTI that was loaded is not the one that cupti-python is for", VERSIONS),
}  # fmt: skip


def load_library() -> None:
    """Load CUPTI, the one that cupti-python finds: its first function does, whatever it is.

    Raises:
        Refused: it does not start.
    """
    with refusals():
        from cupti import cupti

        cupti.get_last_error()


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """Turn what cupti-python raises inside into `Refused`."""
    try:
        yield
    except PermissionError:
        raise _refused(ADMIN_ONLY) from None
    except (RuntimeError, ImportError) as error:
        raise _refused(BUSY if "already enabled" in str(error) else Refusal(_told(error), VERSIONS)) from error
    except (ValueError, MemoryError) as error:
        raise _refused(Refusal(_told(error))) from error
    except Exception as error:
        if type(error).__name__ != "cuptiError":
            raise
        from cupti.cupti import Result

        name = Result(error.status).name  # type: ignore[attr-defined]
        raise _refused(_BY_STATUS.get(name) or Refusal(f"CUPTI says {name}", VERSIONS)) from error


def _refused(refusal: Refusal) -> Refused:
    return Refused(refusal.reason, refusal.remedy)


def _told(error: Exception) -> str:
    """What an error says, up to its first full stop."""
    return f"CUPTI: {' '.join(str(error).split()).partition('. ')[0]}"


def chip_name(device_index: int) -> str:
    """Name of a device's chip, e.g. GH100."""
    from cupti import cupti

    parameters = cupti.DeviceGetChipNameParams()
    parameters.struct_size = cupti.DEVICE_GET_CHIP_NAME_PARAMS_STRUCT_SIZE
    parameters.device_index = device_index
    cupti.device_get_chip_name(parameters.ptr)
    return str(parameters.p_chip_name)


def offered_metrics(chip: str) -> set[str]:
    """Metrics that can be sampled on a chip, without their suffixes: names differ between generations."""
    from cupti.profiler_host import MetricType

    with _host(chip) as host:
        return {name for kind in (MetricType.COUNTER, MetricType.RATIO, MetricType.THROUGHPUT)
                for name in host.get_base_metrics(kind)}


def num_passes(chip: str, metrics: Sequence[str]) -> int:
    """Times that work would have to be repeated to count all of the metrics: sampling has one."""
    from cupti.profiler_host import get_num_of_passes

    with _host(chip) as host:
        return int(get_num_of_passes(host.create_config_image(list(metrics))))


@contextlib.contextmanager
def _host(chip: str) -> Iterator[Any]:
    """A host object, new for each question: one that is asked again adds to what it was asked before."""
    from cupti.profiler_host import ProfilerHost, ProfilerType

    host = ProfilerHost(chip, ProfilerType.PM_SAMPLING)
    host.initialize()
    try:
        yield host
    finally:
        host.deinitialize()


def configure(collector: Any, metrics: Sequence[str], interval_ns: int) -> None:
    """Set what is sampled, how often; where no timer begins samples (Turing, GA100), cycles of about 1 ns do.

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
