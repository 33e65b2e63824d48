"""The loop over the cases of a command, and the end of a case by an error or a signal."""

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

import torch

from charact.core.observer import Observer
from charact.execution.case_outcome import failure
from charact.execution.interrupt import Interrupt
from charact.execution.memory_limit import release_memory
from charact.execution.out_of_memory import host_memory_guard
from charact.execution.precision import float32_products
from charact.record.manifest import CaseEntry
from charact.record.schema import Rows
from charact.record.writer import RunWriter


class _Identified(Protocol):
    @property
    def id(self) -> str: ...


AnyCase = TypeVar("AnyCase", bound=_Identified)


def run_each(cases: Sequence[AnyCase], run: Callable[[AnyCase], Iterable[tuple[CaseEntry, dict[str, Rows]]]],
             writer: RunWriter, observer: Observer, interrupt: Interrupt) -> None:
    """Run each case and write its entries and rows to the record; continue after a case that fails.

    A signal ends the run and keeps the finished cases; `interrupt.signal` is its number.
    """
    for number, case in enumerate(cases, start=1):
        observer.case_started(case.id, number, len(cases))
        for entry, tables in run(case):
            writer.add_case(entry, tables)
            observer.case_ended(entry.status, entry.reason)
        if interrupt.signal is not None:
            return


def ending_of(measure: Callable[[], object], device: torch.device, precision: str, interrupt: Interrupt, *,
              guarded: bool = True) -> dict[str, Any] | None:
    """Measure a case; return the changes in its entry if an error or a signal ends it, None if it succeeds.

    Signals interrupt the measurement. `guarded`: whether this process is kept from allocating more than is free.
    """
    products = "tf32" if precision == "tf32" else "fp32"
    guard = host_memory_guard(device) if guarded else contextlib.nullcontext()
    try:
        with guard, interrupt.allowed(), float32_products(products):
            measure()
    except KeyboardInterrupt:
        return interrupt.ending()
    except Exception as error:
        return failure(error, precision)
    finally:
        release_memory(device)
    return None
