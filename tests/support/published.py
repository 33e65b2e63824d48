"""Workloads brought to where their published counts can be checked: built, and as cases with a batch."""

import contextlib
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate

from charact.datasets._common.request import DataRequest
from charact.execution.case import Case
from charact.workload.registry import find_workload


def build(name: str, variant: str | None = None) -> tuple[Any, Any]:
    """A workload and its model at its default size, without memory."""
    workload = find_workload(name).prepare(variant)
    with torch.device("meta"):
        return workload, workload.model(workload.dataset(workload.default_input_size, DataRequest()))


def make_case(name: str, variant: str | None, mode: str, batch_size: int, input_size: int | None = None) -> Case:
    workload = find_workload(name).prepare(variant)
    return Case(workload, input_size or workload.default_input_size, batch_size, mode, "fp32", torch.device("cpu"),
                DataRequest())


def first_batch(case: Case) -> list[Tensor]:
    dataset = case.dataset()
    return default_collate([dataset[index] for index in range(case.batch_size)])


def unmarked(phase: str) -> AbstractContextManager[None]:
    return contextlib.nullcontext()
