"""Tokens that the models of a watched program read in its iterations. No torch in here."""

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from charact.core.timeline import Iteration, Mode
from charact.measure.script.program.events import MAX_EVENTS
from charact.measure.script.spans.event_log_reader import EventLog


def token_counts(log: EventLog, iterations: Sequence[Iteration], *, is_inspected: bool) -> dict[str, int]:
    """Return the facts `num_tokens` and `num_padding` of the timing pass; none if no model reads text.

    The inspection pass has determined which inputs are tokens. Their shapes are known for every call, so that all calls
    of an iteration count, such as those whose gradients are accumulated.

    *Error*: the share of padding is that of the inspected iteration, if this case has it (`is_inspected`). Methods of a
    model other than `forward` do not count.
    """
    inspection = log.pass_notes("train").get("inspection", {})
    inputs: list[Any] = inspection.get("facts", {}).get("token_inputs", [])
    places: dict[int, list[int]] = defaultdict(list)
    for owner, place, *_ in inputs:
        places[owner].append(place)
    changes: dict[int, list[tuple[int, Any]]] = defaultdict(list)
    shapes = log.rows("input shapes")
    for time_ns, owner, lengths in shapes:
        changes[owner].append((time_ns, lengths))
    is_full = len(shapes) >= MAX_EVENTS and iterations[-1].start_ns > shapes[-1][0]
    if not inputs or is_full:
        return {}
    num_positions = 0
    for call in (each for iteration in iterations for each in iteration.intervals
                 if each.phase == "forward" and each.begins and each.mode is not Mode.METHOD and each.owner in places):
        index = bisect_right(changes[call.owner], call.start_ns, key=lambda change: change[0]) - 1
        lengths = changes[call.owner][index][1] if index >= 0 else []
        num_positions += sum(math.prod(lengths[place]) for place in places[call.owner] if place < len(lengths))
    if not num_positions:
        return {}
    paddings = [num_padding for *_, num_padding in inputs if num_padding is not None]
    if not paddings or not is_inspected:
        return {"num_tokens": num_positions}
    num_padding = round(num_positions * sum(paddings) / sum(number for _, _, number, _ in inputs))
    return {"num_tokens": num_positions - num_padding, "num_padding": num_padding}
