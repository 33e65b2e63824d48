"""Errors, and the name of the chip."""

import enum
import os
from typing import Any

DEVICE_GET_CHIP_NAME_PARAMS_STRUCT_SIZE = 40


class Result(enum.IntEnum):
    SUCCESS = 0
    ERROR_INVALID_PARAMETER = 1
    ERROR_INVALID_DEVICE = 2
    ERROR_HARDWARE_BUSY = 26
    ERROR_NOT_INITIALIZED = 15
    ERROR_NOT_SUPPORTED = 27
    ERROR_INSUFFICIENT_PRIVILEGES = 35


class cuptiError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(f"{Result(status).name} ({status})")
        self.status = status


class DeviceGetChipNameParams:
    struct_size = 0
    device_index = 0
    p_chip_name = ""

    @property
    def ptr(self) -> Any:
        return self


is_initialized = False


def device_get_chip_name(p_params: Any) -> None:
    if not is_initialized:
        raise cuptiError(Result.ERROR_NOT_INITIALIZED)
    if p_params.struct_size != DEVICE_GET_CHIP_NAME_PARAMS_STRUCT_SIZE:
        raise cuptiError(Result.ERROR_INVALID_PARAMETER)
    if p_params.device_index:
        raise cuptiError(Result.ERROR_INVALID_DEVICE)
    p_params.p_chip_name = "ST100"


def get_last_error() -> int:
    if os.environ.get("STUB_CUPTI") == "no driver":
        raise RuntimeError("CUDA driver is not found (libcuda.so.1: cannot open shared object file)")
    return Result.SUCCESS
