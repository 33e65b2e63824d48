"""Programs that are watched in the process of the test."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from msgspec import to_builtins

from charact.measure.script.session import Plan, Session
from charact.measure.script.spans.event_log_reader import EventLog, read_event_log
from charact.measure.script.spans.event_log_to_record import script_cases
from charact.record.manifest import CaseEntry
from charact.record.schema import Rows


def watched(directory: Path, program: Callable[[], Any], *passes: str) -> EventLog:
    """Event log of a program; what the program returns lives until its end."""
    directory.mkdir(exist_ok=True)
    session = Session(directory, Plan(passes=passes))
    session.start()
    alive = program()
    session.close("to its end")
    assert session.problem is None
    del alive
    return read_event_log(directory)


def cases(log: EventLog, *passes: str, skip: int | None = 0, limit: int | None = None
          ) -> list[tuple[CaseEntry, dict[str, Rows]]]:
    return script_cases(log, "mine", "mine.py", skip, limit, passes)


def program_facts(directory: Path, program: Callable[[], Any]) -> dict[str, Any]:
    """Facts of a whole program."""
    (entry, _), *_ = cases(watched(directory, program))
    facts: dict[str, Any] = to_builtins(entry.passes.timing.program)
    return facts


def training(num_steps: int, each_step: Callable[[int], Any] = lambda _: None) -> Callable[[], Any]:
    """Program that trains, and calls a function with the number of each step at its start."""
    def program() -> Any:
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters())
        results = []
        for number in range(num_steps):
            results.append(each_step(number))
            model(torch.ones(1, 4)).sum().backward()
            optimizer.step()
        return model, optimizer, results

    return program
