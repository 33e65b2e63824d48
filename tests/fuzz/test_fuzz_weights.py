"""Files of weights and checkpoints that are damaged or hostile: put into a small model, as infer and train do."""

import io
import json
import random
import struct
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from support.fuzzing import damaged_bytes, damaged_json, fuzz
from support.small import TwoLayers, small_case
from torch import nn

from charact.execution.loop import Loop
from charact.measure.training.checkpoint import Progress, read_checkpoint, write_checkpoint
from charact.measure.training.weight_files import load_weights

safetensors = pytest.importorskip("safetensors.torch")
Rng = random.Random


@dataclass(kw_only=True)
class Tiny(TwoLayers):
    """A linear layer with batch normalization, two kinds of optimizer and of scheduler."""

    def model(self, dataset: Any) -> nn.Module:
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))

    def optimizers(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        first, second = list(model[0].parameters()), list(model[2].parameters())  # type: ignore[index]
        return [torch.optim.Adam(first, lr=0.1), torch.optim.SGD(second, lr=0.1, momentum=0.9)]

    def schedulers(self, optimizers: list[torch.optim.Optimizer], num_epochs: int) -> list[Any]:
        return [torch.optim.lr_scheduler.MultiStepLR(optimizers[0], [3]),
                torch.optim.lr_scheduler.ReduceLROnPlateau(optimizers[1])]


def training() -> tuple[Loop, list[Any]]:
    """A training that has made an iteration."""
    torch.manual_seed(0)
    workload = Tiny(default_input_size=3)
    loop = Loop(small_case(workload=workload), iter(()))
    schedulers = workload.schedulers(loop.optimizers, 3)
    for parameter in loop.model.parameters():  # not by a backward pass, whose threads a fork would not have
        parameter.grad = torch.ones_like(parameter)
    for optimizer in loop.optimizers:
        optimizer.step()
    for scheduler in schedulers:
        scheduler.step(1.0) if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau) else scheduler.step()
    return loop, schedulers


def progress() -> Progress:
    stage = {"stage": "training", "number": 1, "phase": "forward", "host_s": 0.5, "device_s": None, "num_iterations": 2,
             "num_samples": 8}
    metric = {"stage": "training", "number": 1, "metric": "loss", "value": 0.5, "reason": None}
    return Progress(1, [stage], [metric], {"metric": "loss", "value": 0.5, "epoch": 1})


@cache
def whole(kind: str) -> bytes:
    """A file as it is written."""
    loop, schedulers = training()
    buffer = io.BytesIO()
    state = loop.model.state_dict()
    if kind == "safetensors":
        return bytes(safetensors.save(dict(state)))
    if kind == "checkpoint":
        path = Path("/dev/shm") / "charact-fuzz-checkpoint.pt"
        write_checkpoint(path, loop, schedulers, progress())
        try:
            return path.read_bytes()
        finally:
            path.unlink()
    content = {"model": state, "epoch": 3} if kind == "nested" else state
    torch.save(content, buffer, _use_new_zipfile_serialization=kind != "legacy")
    return buffer.getvalue()


def read(path: Path) -> None:
    """Read a file as `charact infer --weights` or `charact train --resume` does."""
    loop, schedulers = training()
    if path.stem == "checkpoint":
        read_checkpoint(path, loop, schedulers)
        for optimizer in loop.optimizers:
            assert optimizer.state_dict()
    else:
        load_weights(loop.model, path)
        loop.model(torch.zeros(4, 3))


def other_state(rng: Rng) -> Any:
    """A state dict of another model, of other types or layouts, or no state dict at all."""
    own = torch.load(io.BytesIO(whole("zip")), weights_only=True)
    name = rng.choice(list(own))
    tensor = own[name]
    own[name] = rng.choice([
        tensor.to(torch.complex64), tensor.bool(), tensor.double(), tensor.to(torch.float8_e4m3fn), tensor.half(),
        tensor[None], tensor.reshape(-1), torch.zeros(0), torch.zeros(2, 0, 3), tensor.to("meta"),
        tensor.reshape(-1)[:1].expand(tensor.numel()).reshape(tensor.shape), tensor * float("nan"),
        nn.Parameter(tensor.float()), tensor.float().reshape(-1).to_sparse(), None, 5, "text", [tensor], {"a": tensor},
        torch.Size([1]), torch.float32,
        torch.zeros(1).expand(2**40), torch.device("cpu"), {1, 2}, b"bytes", 1j,
    ])
    return rng.choice([own, own, own, {"state_dict": own}, {"weights": own, "model": 3}, [own],
                       own | {"more\nand": tensor}, {"model": own, "optimizer": {0: {"a": tensor}}}, {1: tensor}, {}])


def changed_safetensors(rng: Rng, content: bytes) -> bytes:
    """A file in safetensors' format with another header: other values, deep, long, of other lengths."""
    (length,) = struct.unpack("<Q", content[:8])
    header, values = json.loads(content[8: 8 + length]), content[8 + length:]
    text = json.dumps(damaged_json(rng, header)).encode(errors="replace")
    if rng.random() < 0.2:
        text = rng.choice([b"[" * 100_000, b'{"a":' * 100_000, b"{}" + b" " * 1_000_000, b"\xff" * 20, b"",
                           b'{"a":1,"a":1}', b'{"__metadata__":{"a":"\\ud800"}}', b"9" * 5_000])
    length = len(text) if rng.random() < 0.9 else rng.choice([0, 2**63, 2**64 - 1, len(text) - 1, len(text) + 1, 10**8])
    return struct.pack("<Q", length) + text + (values if rng.random() < 0.9 else damaged_bytes(rng, values))


def changed_checkpoint(rng: Rng) -> Any:
    """A checkpoint whose decoded values are changed."""
    state = torch.load(io.BytesIO(whole("checkpoint")), weights_only=True)
    part = rng.choice(["progress", "progress", "optimizers", "schedulers", "scaler", "model", "none"])
    if part == "progress":
        state["progress"] = damaged_json(rng, state["progress"])
    elif part == "none":
        del state[rng.choice(list(state))]
    elif part == "model":
        state["model"] = other_state(rng)
    elif part == "scaler":
        state["scaler"] = rng.choice([None, {"scale": "x"}, [], {"scale": 1.0, "growth_factor": None}])
    else:
        target = rng.choice(state[part])
        if part == "optimizers":
            target = rng.choice([target, target["param_groups"][0], target["state"], *target["state"].values()])
        odd = [None, -1, 2**70, float("nan"), "text", [], {}, (), torch.zeros(3), torch.zeros(0), [[1]], True, 1j, {1}]
        key = rng.choice([*target, "step", "optimizer", "__class__", "load_state_dict", 5, "is_better"])
        if rng.random() < 0.8:
            target[key] = rng.choice(odd)
        else:
            target.pop(key, None)
    return state


def saved(content: Any, *, legacy: bool = False) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer, _use_new_zipfile_serialization=not legacy)
    return buffer.getvalue()


def make(rng: Rng, directory: Path) -> Path:
    kind = rng.choice(["zip", "zip", "nested", "legacy", "safetensors", "checkpoint", "checkpoint"])
    content = whole(kind)
    if (how := rng.random()) > 0.05:
        if how < 0.5:
            content = damaged_bytes(rng, content)
        elif kind == "safetensors":
            content = changed_safetensors(rng, content)
        else:
            changed = changed_checkpoint(rng) if kind == "checkpoint" else other_state(rng)
            content = saved(changed, legacy=kind == "legacy")
    path = directory / {"safetensors": "w.safetensors", "checkpoint": "checkpoint.pt"}.get(kind, "w.pt")
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("count", [10, pytest.param(5_000, marks=pytest.mark.slow)])
def test_weights_and_checkpoints(count: int, one_thread: None) -> None:
    for kind in ("zip", "nested", "legacy", "safetensors", "checkpoint"):
        whole(kind)  # made before the processes are forked
    assert fuzz("weights", make, read, count) == []
