"""Rows of the table `bricks`: what is known of a brick without timing it, and the choice of the bricks to time."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from charact.bricks.brick import Brick
from charact.bricks.executable import BrickFunction, runnable
from charact.bricks.suite.families import chosen_to_time, literals, sizes_of
from charact.measure.bricks.crash_notes import TIMING, Crashes
from charact.measure.bricks.inputs import Arguments, InputPool
from charact.measure.passes.flops import work_of
from charact.record.schema import LEFT_OUT


def described(brick: Brick) -> dict[str, Any]:
    """Return the columns of the table `bricks` that are known before the brick runs."""
    return {
        "brick": brick.id, "kind": brick.kind, "num_layers": brick.num_layers, "layer_types": brick.layer_types,
        "input_shapes": [list(each.type.shape) for each in brick.inputs], "literals": literals(brick),
        "weights_bytes": float(brick.weights_bytes),
    }


def as_stored(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of `described` with its lists as JSON, as the table stores them."""
    return row | {name: json.dumps(row[name]) for name in ("layer_types", "input_shapes", "literals")}


def counted_work(brick: Brick, call: BrickFunction, pool: InputPool, *, training: bool
                 ) -> tuple[dict[str, float | None], set[str]]:
    """Return FLOP and bytes of one call, in training with its backward pass, and operators without a FLOP formula.

    They are counted on real tensors, which also works for operators that depend on values.
    """
    training = training and brick.kind == "sequence"
    arguments = Arguments(brick, pool, training=training)
    inputs = arguments.call_with(arguments.weights() | arguments.others())
    outputs: list[torch.Tensor] = []
    flop, num_bytes, uncounted = work_of(lambda: outputs.extend(call(inputs)))
    carriers = [output for output in outputs if training and output.requires_grad]
    if not carriers:
        return {"flop": flop, "bytes": num_bytes}, set(uncounted)
    gradients = [torch.ones_like(output) for output in carriers]
    backward, backward_bytes, more = work_of(lambda: torch.autograd.backward(carriers, gradients))
    counted = [each for each in (flop, backward) if each is not None]
    return {"flop": sum(counted) if counted else None, "bytes": num_bytes + backward_bytes}, {*uncounted, *more}


def left_out(bricks: Sequence[Brick], share_frac: float, models: Iterable[Mapping[str, int]],
             crashes: Crashes | None = None) -> list[dict[str, Any]]:
    """Return rows of the bricks that `chosen_to_time` does not choose.

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
            if (work := _fake_work(brick)) is not None:
                rows[brick.id] = described(brick) | work
    chosen = chosen_to_time({brick: sizes_of(row) for brick, row in rows.items()}, models, share_frac)
    ending = {"status": LEFT_OUT, "reason": "not timed: its time is predicted from similar bricks", "num_rounds": 0,
              "set_up_s": 0.0}
    return [as_stored(row) | ending for brick, row in rows.items() if brick not in chosen]


def _fake_work(brick: Brick) -> dict[str, float | None] | None:
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
