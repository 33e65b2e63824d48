"""An independent reader of a server's trace: every microsecond is looked at on its own.

All times of the trace have to be whole microseconds.
"""

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

CAUSES = ("launch", "queue", "copy", "host", "kernel")


class ServedTrace:
    """The steps of a trace, by annotations with some prefix, or by replays without one."""

    def __init__(self, path: Path, prefix: str | None) -> None:
        self.events = [event for event in json.loads(path.read_text())["traceEvents"] if "dur" in event]
        self.calls = {event["args"]["correlation"]: event for event in self.events if event["cat"] == "cuda_runtime"}
        self.device = [event for event in self.events if event["cat"] in ("kernel", "gpu_memcpy", "gpu_memset")]
        if prefix is None:
            self.marks = []
            launches = [event for event in self.calls.values() if "GraphLaunch" in event["name"]]
            self.work = [[event for event in self.device if self.calls[event["args"]["correlation"]] is launch]
                         for launch in sorted(launches, key=lambda launch: launch["ts"])]
        else:
            self.marks = sorted((event for event in self.events if event["name"].startswith(prefix)),
                                key=lambda event: event["ts"])
            self.work = [[event for event in self.device if self._is_launched_in(event, mark)] for mark in self.marks]

    def _is_launched_in(self, event: dict[str, Any], mark: dict[str, Any]) -> bool:
        call = self.calls[event["args"]["correlation"]]
        return call["tid"] == mark["tid"] and mark["ts"] <= call["ts"] < mark["ts"] + mark["dur"]

    def kernel_us(self) -> list[float]:
        """Return the sum of the work's times of each step."""
        return [sum(event["dur"] for event in work) for work in self.work]

    def cycles(self) -> list[dict[str, int] | None]:
        """Return, for each step with work, microseconds that are busy, idle, or of a cause before its first work."""
        order = sorted((number for number, work in enumerate(self.work) if work),
                       key=lambda number: min(event["ts"] for event in self.work[number]))
        cycles: list[dict[str, int] | None] = [None] * len(self.work)
        reached = min(self.marks[order[0]]["ts"], *(event["ts"] for event in self.work[order[0]])) if (
            order and self.marks) else None
        for number in order:
            work = self.work[number]
            first = min(work, key=lambda event: event["ts"])
            end = max(event["ts"] + event["dur"] for event in work)
            found: Counter[str] = Counter()
            for moment in range(int(first["ts"] if reached is None else reached), int(end)):
                running = [event for event in self.device if event["ts"] <= moment < event["ts"] + event["dur"]]
                found["busy"] += bool(running)
                if moment >= first["ts"]:
                    found["idle"] += not running
                    found["idle copy"] += not running and self._waits_for_a_copy(moment, first)
                else:
                    found[self._cause(moment, running, first)] += 1
            cycles[number] = dict(found) | {"total": end - (first["ts"] if reached is None else reached)}
            reached = end if reached is None else max(reached, end)
        return cycles

    def _cause(self, moment: int, running: list[dict[str, Any]], first: dict[str, Any]) -> str:
        call = self.calls[first["args"]["correlation"]]
        if any(event["cat"] == "gpu_memcpy" for event in running):
            return "copy"
        if running:
            return "kernel"
        if self._waits_for_a_copy(moment, first):
            return "copy"
        if moment >= call["ts"]:
            return "queue"
        in_step = any(mark["ts"] <= moment < mark["ts"] + mark["dur"] for mark in self.marks)
        return "launch" if in_step or not self.marks else "host"

    def _waits_for_a_copy(self, moment: int, first: dict[str, Any]) -> bool:
        thread = self.calls[first["args"]["correlation"]]["tid"]
        calls = [(self.calls[event["args"]["correlation"]], event) for event in self.device
                 if event["cat"] == "gpu_memcpy"]
        return any(call["tid"] == thread and call["ts"] <= moment < call["ts"] + call["dur"]
                   and call["ts"] + call["dur"] >= event["ts"] + event["dur"] for call, event in calls)

    def us_by(self, kinds: dict[str, str]) -> dict[tuple[bool, bool, str], float]:
        """Return the work's time by whether it is in a step and in a replay, and by kind, given for each kernel."""
        in_steps = [event for work in self.work for event in work]
        times: defaultdict[tuple[bool, bool, str], float] = defaultdict(float)
        for event in self.device:
            replayed = "GraphLaunch" in self.calls[event["args"]["correlation"]]["name"]
            times[any(event is other for other in in_steps), replayed, kinds[event["name"]]] += event["dur"]
        return dict(times)
