"""Files of weights and checkpoints that are damaged or hostile: put into a small model, as infer and train do."""

import io
import itertools
import json
import pickletools
import random
import struct
import warnings
import zipfile
from collections.abc import Callable
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


def rezipped(rng: Rng, content: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """A zip archive whose pickle is changed, and whose members are compressed, repeated, renamed or missing."""
    buffer = io.BytesIO()
    hostile = rng.random() < 0.3
    with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(io.BytesIO(content)) as archive:
        method = rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]) if hostile else zipfile.ZIP_STORED
        with zipfile.ZipFile(buffer, "w", method) as file:
            for name in archive.namelist():
                member = archive.read(name)
                if name.endswith("/data.pkl"):
                    member = change(member)
                elif hostile and rng.random() < 0.2:
                    member = rng.choice([b"", member * 2, bytes(2**22), damaged_bytes(rng, member)])
                if hostile and rng.random() < 0.1:
                    name = rng.choice([name.upper(), "other/data.pkl", f"{name}/", "a" * 5000, f"x{name}"])
                for _ in range(2 if hostile and rng.random() < 0.1 else 1):
                    file.writestr(name, member)
            for number in range(rng.choice([0, 0, 2_000]) if hostile else 0):
                file.writestr(f"archive/data/more{number}", b"")
            if hostile and rng.random() < 0.1:
                file.comment = rng.randbytes(30)
    changed = bytearray(buffer.getvalue())
    if hostile and rng.random() < 0.4:
        at = rng.choice([changed.rindex(b"PK\x01\x02"), changed.index(b"PK\x01\x02"), changed.rindex(b"PK\x05\x06")])
        place = rng.randrange(4, 42)
        changed[at + place: at + place + 4] = rng.choice([b"\xff" * 4, bytes(4), rng.randbytes(4)])
    return bytes(changed)


def opcodes(pickled: bytes) -> list[bytes]:
    """The pickle's opcodes with their arguments."""
    places = [place or 0 for _, _, place in pickletools.genops(pickled)] + [len(pickled)]
    return [pickled[begin:end] for begin, end in itertools.pairwise(places)]


PIECES = [
    b"}", b"]", b"(", b")", b"N", b"\x88", b"\x89", b"K\x01", b"K\xff", b"J\xff\xff\xff\x7f", b"J\xff\xff\xff\xff",
    b"\x8a\x08" + b"\xff" * 7 + b"\x7f", b"\x8a\xff" + b"\x7f" * 255, b"G\x7f\xf8" + bytes(6), b"q\0", b"h\0", b"q\x05",
    b"h\x05", b"0", b"2", b"a", b"e", b"s", b"u", b"t", b"\x85", b"\x86", b"\x87", b"R", b"b", b"Q", b"\x81", b"\x8f",
    b"X\x07\0\0\0storage", b"X\x03\0\0\0cpu", b"X\x03\0\0\0xla", b"X\x04\0\0\0meta", b"X\x01\0\0\x000",
    b"X\x02\0\0\0a\n",
    b"U\x02\xff\xfe", b"ctorch\nFloatStorage\n", b"ctorch\nDoubleStorage\n", b"ctorch.storage\nUntypedStorage\n",
    b"ctorch\nfloat64\n", b"ctorch\nSize\n", b"ctorch\ndevice\n", b"ctorch._utils\n_rebuild_tensor_v2\n",
    b"ctorch._utils\n_rebuild_tensor_v3\n", b"ctorch._utils\n_rebuild_parameter\n", b"ctorch\nTensor\n",
    b"ctorch._utils\n_rebuild_sparse_tensor\n", b"ctorch._utils\n_rebuild_wrapper_subclass\n", b"cos\nsystem\n",
    b"ctorch._tensor\n_rebuild_from_type_v2\n", b"ccollections\nOrderedDict\n", b"ccollections\nCounter\n",
    b"cbuiltins\nset\n", b"c__builtin__\nset\n", b"cbuiltins\nbytearray\n", b"c__builtin__\neval\n",
    b"c_codecs\nencode\n", b"ctorch.serialization\n_get_layout\n", b"ctorch.nn.parameter\nParameter\n", b"c\n\n",
]  # fmt: skip


def changed_pickle(rng: Rng, pickled: bytes) -> bytes:
    """The pickle with opcodes replaced, added, removed or moved; other numbers; or one that would do harm."""
    kind = rng.random()
    if kind < 0.1:
        return pickled
    if kind < 0.2:
        return damaged_bytes(rng, pickled)
    if kind < 0.3:
        count = rng.choice([1_000, 200_000])
        return rng.choice([
            b"\x80\x02})" + b"\x85" * count + b"K\x01s.", b"\x80\x02" + b"]" * count + b".",
            b"\x80\x02" + b"(" * count + b".", b"\x80\x02}" + b"]a" * count + b".",
            b"\x80\x02cbuiltins\nbytearray\n\x8a\x06\0\0\0\0\0\x01\x85R.",
            b"\x80\x02ccollections\nOrderedDict\n)R}X\x05\0\0\0itemsK\x01sb.",
            b"\x80\x02cbuiltins\nset\n](" + b")" + b"\x85" * count + b"e\x85R.",
            b"\x80\x02c_codecs\nencode\nq\0X" + struct.pack("<I", 2**20) + b"a" * 2**20 + b"q\x01("
            + b"h\0h\x01X\x06\0\0\0latin1\x86R" * (count // 100) + b"t.",
        ])
    pieces = opcodes(pickled)
    for _ in range(rng.choice([1, 1, 2, 5, 20])):
        at = rng.randrange(len(pieces))
        how = rng.choice(["replace", "number", "number", "insert", "remove", "swap", "copy"])
        if how == "number":
            numbers = [place for place, piece in enumerate(pieces) if piece[:1] in b"KMJ"]
            if numbers:
                pieces[rng.choice(numbers)] = rng.choice(PIECES[7:13])
        elif how == "replace":
            pieces[at] = rng.choice(PIECES)
        elif how == "insert":
            pieces.insert(at, rng.choice(PIECES))
        elif how == "remove":
            del pieces[at]
        elif how == "swap":
            other = rng.randrange(len(pieces))
            pieces[at], pieces[other] = pieces[other], pieces[at]
        else:
            pieces[at:at] = pieces[rng.randrange(len(pieces)):][: rng.choice([1, 10])]
        if not pieces:
            break
    return b"".join(pieces)


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
    kind = rng.random()
    text = json.dumps(damaged_json(rng, header)).encode(errors="replace")
    if kind < 0.2:
        return damaged_bytes(rng, content)
    if kind < 0.4:
        name = rng.choice(list(header))
        numbers = [-1, 0, 1, 2**31, 2**32, 2**62, 2**63, 2**64, 2**100, 1.0, None, "1", True]
        if name != "__metadata__":
            header[name][rng.choice(["shape", "data_offsets"])] = [rng.choice(numbers) for _ in range(rng.randrange(4))]
        text = json.dumps(header).encode()
    elif kind < 0.5:
        text = rng.choice([b"[" * 100_000, b'{"a":' * 100_000, b"{}" + b" " * 1_000_000, b"\xff" * 20, b"",
                           b"{" + b",".join(b'"%d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}' % number
                                            for number in range(20_000)) + b"}",
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
    how = rng.random()
    if kind == "safetensors":
        content = changed_safetensors(rng, content) if how > 0.05 else content
    elif how < 0.05:
        pass
    elif how < 0.2:
        content = damaged_bytes(rng, content)
    elif how < 0.4:
        content = saved(changed_checkpoint(rng) if kind == "checkpoint" else other_state(rng), legacy=kind == "legacy")
    elif kind == "legacy":
        # The state's pickle is the fourth: what follows keeps its length or not.
        begin = content.index(b"\x80\x02ccollections")
        end = content.index(b".\x80\x02]", begin) + 1
        content = content[:begin] + changed_pickle(rng, content[begin:end]) + content[end:]
    else:
        content = rezipped(rng, content, lambda pickled: changed_pickle(rng, pickled))
    name = {"safetensors": "w.safetensors", "checkpoint": "checkpoint.pt"}.get(kind, "w.pt")
    path = directory / name
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("count", [10, pytest.param(5_000, marks=pytest.mark.slow)])
def test_weights_and_checkpoints(count: int, one_thread: None) -> None:
    for kind in ("zip", "nested", "legacy", "safetensors", "checkpoint"):
        whole(kind)  # made before the processes are forked
    assert fuzz("weights", make, read, count) == []
