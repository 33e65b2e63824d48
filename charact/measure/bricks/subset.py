"""Choice of the bricks to time if only a share is timed, and the rows of the others, without running them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from charact.bricks.brick import Brick
from charact.bricks.executable import runnable
from charact.bricks.suite.families import chosen_to_time, sizes_of
from charact.measure.bricks.crash_notes import TIMING, Crashes
from charact.measure.bricks.memory import as_stored, described
from charact.measure.passes.flops import work_of
from charact.record.schema import LEFT_OUT

_REASON = "not timed: its time is predicted from similar bricks"


def left_out(bricks: Sequence[Brick], share_frac: float, models: Iterable[Mapping[str, int]],
             crashes: Crashes | None = None) -> list[dict[str, Any]]:
    """Return rows of the table `bricks` for the bricks that `chosen_to_time` does not choose.

    FLOP and bytes are counted on fake tensors. A brick for which this fails is timed.

    Args:
        bricks: inference bricks.
        share_frac: share of the bricks to time.
        models: number of uses of each brick, for each known model.
        crashes: bricks that ended earlier processes of this run.
    """
    crashes = crashes or Crashes()
    rows: dict[str, dict[str, Any]] = {}
    for brick in bricks:
        if brick.id in crashes.endings(TIMING):
            continue
        with crashes.running(brick.id, TIMING):
            if (work := _work(brick)) is not None:
                rows[brick.id] = described(brick) | work
    chosen = chosen_to_time({brick: sizes_of(row) for brick, row in rows.items()}, models, share_frac)
    ending = {"status": LEFT_OUT, "reason": _REASON, "num_rounds": 0, "set_up_s": 0.0}
    return [as_stored(row) | ending for brick, row in rows.items() if brick not in chosen]


def _work(brick: Brick) -> dict[str, float | None] | None:
    """Return FLOP and bytes of one call, or None if an operator needs values."""
    try:
        with FakeTensorMode():
            inputs = [torch.empty_strided(each.type.shape, each.type.stride, dtype=getattr(torch, each.type.dtype))
                      for each in brick.inputs]
            call = runnable(brick, "cpu")
            flop, num_bytes, _ = work_of(lambda: call(inputs))
    except Exception:  # operators raise many types for fake tensors
        return None
    return {"flop": flop, "bytes": num_bytes}
