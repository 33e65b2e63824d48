"""Traces of several origins, and what a broken writer or a hostile person could make of them."""

import gzip
import json
import random
import zlib
from functools import cache
from pathlib import Path
from typing import Any

from support.fuzzing import damaged_bytes, damaged_json
from support.serving_traces import decoding
from support.traces import TraceMaker, training

RECORDED = Path(__file__).resolve().parents[3] / "shared" / "traces"
MOST_BYTES = 4 << 20
"""Limit under which hostile traces are read; bombs unpack to more."""
_MOST_EVENTS = 240

Document = dict[str, Any]
Events = list[dict[str, Any]]


@cache
def bases() -> dict[str, Document]:
    """Small traces by their origin; those that others recorded are absent where `RECORDED` is."""
    made = {
        "gpu": json.loads(training(2, distributedInfo={"rank": 0, "world_size": 2}, deviceProperties=[
            {"id": 0, "name": "H", "totalGlobalMem": 2**36, "numSms": 132}], cuda_runtime_version=12080).text()),
        "old": _old(), "gpu without steps": _without_steps(), "cpu": _profiled(marked=False),
        "cpu with charact’s marks": _profiled(marked=True),
        "server": json.loads(decoding(["step[DECODE bs=4]"] * 3 + ["step[EXTEND bs=1 toks=9]"]).text()),
        "server without marks": json.loads(decoding(["strange"] * 4).text()),
    }  # fmt: skip
    if RECORDED.is_dir():
        made |= {path.name: _cut(path) for path in sorted(RECORDED.glob("*.json.gz"))}
    return made


def _old() -> Document:
    """As older profilers, and those of other devices, wrote it."""
    made = TraceMaker()
    for number in range(4):
        at = 100.0 * number
        made.event("Operator", "aten::linear", at, 80, **{"external id": number, "Input dims": [[2, 2]]})
        made.event("Runtime", "cudaLaunchKernel", at + 10, 1, correlation=number)
        made.event("Kernel", "gemm", at + 20, 30, 7, **{"external id": number, "correlation": number, "device": 0})
        made.event("Memcpy", "Memcpy HtoD (Pageable -> Device)", at + 60, 10, 8, device=0, stream=8)
    return {"traceEvents": made.events}


def _without_steps() -> Document:
    made = training(2)
    events = [event for event in made.events if not event["name"].startswith("ProfilerStep")]
    for at in range(100, 1900, 300):
        events.append({"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 100, "ts": at,
                       "args": {"Total Allocated": at * 1000, "Device Type": 1, "Device Id": 0}})
        events.append({"ph": "s", "id": at, "pid": 1, "tid": 100, "ts": at, "cat": "ac2g", "name": "ac2g"})
    events.append({"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "python"}})
    return {"schemaVersion": 1, "traceEvents": events}


def _profiled(*, marked: bool) -> Document:
    """What torch.profiler writes of a small training on this machine."""
    import tempfile

    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    from charact.core.trace_marks import LAYER_PREFIX, PHASE_PREFIX

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    phase = PHASE_PREFIX if marked else "part "
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=not marked) as profiler:
        for number in range(2):
            with record_function(f"ProfilerStep#{number}"):
                with record_function(f"{phase}forward"), record_function(f"{LAYER_PREFIX if marked else ''}net"):
                    loss = model(torch.ones(2, 4)).sum()
                with record_function(f"{phase}backward"):
                    loss.backward()
                with record_function(f"{phase}update"):
                    optimizer.step()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profiler.export_chrome_trace(file.name)
        document: Document = json.loads(Path(file.name).read_text(encoding="utf-8"))
    document["traceEvents"] = document["traceEvents"][:_MOST_EVENTS]
    return document


def _cut(path: Path) -> Document:
    """The first kernels of a recorded trace, with what launched them and some of the events of each other kind."""
    document: Document = json.loads(gzip.decompress(path.read_bytes()))
    kernels = [event for event in document["traceEvents"] if event.get("cat") == "kernel"][:30]
    last = max(event["ts"] + event["dur"] for event in kernels)
    by_kind: dict[str, int] = {}
    kept: Events = list(kernels)
    for event in document["traceEvents"]:
        kind = event.get("cat", "")
        if kind != "kernel" and by_kind.get(kind, 0) < _MOST_EVENTS // 8 and event.get("ts", 0) <= last:
            by_kind[kind] = by_kind.get(kind, 0) + 1
            kept.append(event)
    launched = {event["args"].get("correlation") for event in kernels}
    kept += [event for event in document["traceEvents"] if event.get("cat") in ("cuda_runtime", "hip_runtime")
             and event.get("args", {}).get("correlation") in launched]
    return {**document, "traceEvents": kept}


NAMES = [
    "", "\ud800", "x\udfffy", "\x00", "\x1b[31mred\x1b[0m", "a\nb\r", "$x_{", "$$", "\\", "</script><img src=x>",
    "=1+1", "ProfilerStep#", "ProfilerStep#9", "Optimizer.step#", "Optimizer.zero_grad#A", "enumerate(DataLoader)#x",
    "nn.Module: ", "nn.Module: _0", "nn.Module: \ud83d", "charact.phase:forward", "charact.phase:strange",
    "charact.phase:", "charact.layer:", "autograd::engine::evaluate_function: x", "AddmmBackward0", "aten::mse_loss",
    "aten::convolution", "aten::addmm", "nccl:all_reduce", "ncclDevKernel", "Memcpy HtoD (a -> b)", "[memory]",
    "torch/_tensor.py(5): backward", "DistributedDataParallel.forward", "[/red]", "[bold", "\u202eevil", "𝕏" * 300,
    "x" * 20_000, "n/a", "nan", "None", "other", "outside operators", "\ufeff", "ß",
    "kernels without an operator", "step[DECODE bs=4]", f"step[EXTEND bs={10**12 - 1} toks=99]",
    f"step[DECODE bs={10**40}]", "execute_context_1(5)_generation_2(2)", "gpu_model_runner: preprocess",
    "a/sglang/srt/managers/scheduler.py(1): run_batch", "transformers/generation/utils.py(1): generate",
    "aten::embedding", "hipGraphLaunch", "reshape_and_cache_kernel",
    "## forward ##", "loss", "backward_pass", "optimizer", "cudaGraphLaunch",
]  # fmt: skip
_CATEGORIES = ["cpu_op", "user_annotation", "python_function", "cuda_runtime", "cuda_driver", "kernel", "gpu_memcpy",
               "gpu_memset", "cpu_instant_event", "Operator", "Kernel", "Memcpy", "hip_runtime", "ac2g", "", "strange",
               "mtia_ccp_events"]
_ODD: list[Any] = [
    0, -1, 1, 7, 2**31, 2**53, 2**63 - 1, 2**63, -(2**63) - 1, 10**30, 10**400, 0.0, -0.0, 0.5, 1e-320, 1e3, 1.7e15,
    1e16, -1e16, 3.2e13, 1e300, -1e300, 21_474_836, float("inf"), float("-inf"), float("nan"), None, True, "1", "", [],
    {}, [[]], [[[[2]]]], "x", [5], [[None]], [["x"]], [[1.5]], [[-1]], [[2**63]], [[1e300, 2]], [[[1], [2]], [3]], [{}],
    {"a": 1}, [[1]] * 500, [[10**400]], ["\ud800"], [[8, 4], [4], [], [[2, 2], [3]]], [[[float("nan")]]], [1, 1, 1],
    [0, 0, 0], [2**31 - 1, 65535, 65535], [1025, 1, 1], [1.5, 1, 1], [float("inf")] * 3, "4x1x1", [1] * 1000, 100.0001,
    ["float", 5, "double"], ["c10::Half"],
]
"""Values of arguments and times, of any type: of numbers, shapes, grids and names of types."""
_FIELDS: dict[str, list[Any]] = {
    "ts": _ODD, "dur": _ODD, "pid": [*_ODD, *NAMES], "tid": [*_ODD, *NAMES], "cat": [*_CATEGORIES, None, 5],
    "name": [*NAMES, None, 5], "ph": ["X", "B", "i", "", None, 5], "args": [None, {}, [], "x", 5], "id": _ODD,
}


def hostile_trace(rng: random.Random, directory: Path, name: str) -> Path:
    """Write a trace that is valid, odd, hostile or damaged; returns the file."""
    kind = rng.choice(["valid", *["events"] * 12, "bytes", "bytes", "beside", "layout", "packed"])
    document = bases()[rng.choice(list(bases()))]
    document = {**document, "traceEvents": [{**event, "args": dict(event.get("args") or {})}
                                            for event in document["traceEvents"]]}
    if kind == "events":
        for _ in range(rng.choice([1, 1, 2, 3, 8])):
            _change(rng, document["traceEvents"])
    elif kind == "beside":
        events = document.pop("traceEvents")
        document = {"distributedInfo": {"rank": 1, "world_size": 2}, "deviceProperties": [{"id": 0, "name": "H"}],
                    "cuda_runtime_version": 1, **document}
        changed = damaged_json(rng, document)
        document = {**(changed if isinstance(changed, dict) else {"odd": changed}), "traceEvents": events}
    text = _laid_out(rng, document) if kind == "layout" else _encoded(rng, document)
    if kind == "bytes":
        text = damaged_bytes(rng, text)
    packed = kind == "packed" or rng.random() < 0.1
    path = directory / f"{name}.json{'.gz' if packed else ''}"
    path.write_bytes(_packed(rng, text) if packed else text)
    return path


def _encoded(rng: random.Random, document: Any, **layout: Any) -> bytes:
    """JSON with surrogates as escapes, and infinite numbers as Python writes them or as numbers beyond all floats."""
    text = json.dumps(document, **layout)
    infinite = rng.choice(["Infinity", "inf", "1e999", "1E+0400"])
    return text.replace("Infinity", infinite).replace("NaN", rng.choice(["NaN", "nan"])).encode()


def _laid_out(rng: random.Random, document: Document) -> bytes:
    """The same values in another layout, some with what does not belong into a trace."""
    items = list(document.items())
    rng.shuffle(items)
    text = _encoded(rng, dict(items), indent=rng.choice([None, None, 1, 8]))
    return rng.choice([
        lambda: text, lambda: b"\xef\xbb\xbf" + text, lambda: text + b"\n" * 5000,
        lambda: text + rng.choice([text, b"}"]),
        lambda: json.dumps(document["traceEvents"], ensure_ascii=False).encode("utf-8", "surrogatepass"),
        lambda: text.decode().encode("utf-16"), lambda: text.replace(b'"cat"', b'"cat": "kernel", "cat"', 7),
        lambda: b'{"traceEvents": [' + b"{}," * 5000 + text[text.index(b"["):][1:],
        lambda: b'{"a": [' + b"[" * 3000 + b"]" * 3000 + b"]," + text[1:],
        lambda: text[:-1] + b', "traceEvents": []}',
        lambda: text.replace(b'"args": {', b'"args": {"x": "' + b"y" * 99_999 + b'", ', 3),
    ])()  # fmt: skip


def _packed(rng: random.Random, text: bytes) -> bytes:
    packed = gzip.compress(text, 1)
    return rng.choice([
        lambda: packed, lambda: packed, lambda: damaged_bytes(rng, packed), lambda: damaged_bytes(rng, packed),
        lambda: gzip.compress(text[:100]) + gzip.compress(text[100:]), lambda: packed + b"\0" * 700,
        lambda: gzip.compress(packed), lambda: packed[:-4] + rng.randbytes(4), lambda: zlib.compress(text),
        lambda: _bomb(rng.choice(_FILLINGS)),
    ])()  # fmt: skip


_FILLINGS = (b"{},", b" ", b'{"cat": "cpu_op", "name": "a", "ts": 1, "dur": 2}, ', b"[", b'"a": 1, ')


@cache
def _bomb(filling: bytes) -> bytes:
    """Two kilobytes or so that unpack to more than `MOST_BYTES`, and say that they do not."""
    start = b'{"traceEvents": [' if filling not in (b"[", b'"a": 1, ') else b'{"a": ' if filling == b"[" else b"{"
    packed = gzip.compress(start + filling * (2 * MOST_BYTES // len(filling)))
    return packed[:-4] + b"\0\0\0\0"


def _change(rng: random.Random, events: Events) -> None:
    """Change one thing about some events or about all of a kind."""
    if not events:
        return
    first = rng.choice(events)
    chosen = rng.choice([
        [first], rng.sample(events, min(len(events), 9)), events,
        [event for event in events if event.get("cat") == first.get("cat")]])
    kind = rng.choice([*["value", "argument"] * 3, "move", "drop", "repeat", "ids", "nest", "kinds", "empty"])
    if kind == "value":
        field = rng.choice(list(_FIELDS))
        _set(rng, [(event, field) for event in chosen], _FIELDS[field])
    elif kind in ("argument", "ids"):
        arguments = [event["args"] for event in chosen if isinstance(event.get("args"), dict)]
        names = [name for each in arguments for name in each] or ["External id"]
        for name in ["External id", "correlation", "Sequence number"] if kind == "ids" else [rng.choice(names)]:
            _set(rng, [(each, name) for each in arguments], [*_ODD, *NAMES] if kind == "argument" else [1])
    elif kind == "move":
        field, by = rng.choice(["dur", "ts", "ts"]), rng.choice([-1e9, -500, -3, 3, 500, 1e9, 1e15])
        for event in chosen:
            if type(event.get(field)) in (int, float) and abs(event[field]) < 1e300:
                event[field] += by * rng.choice([rng.random(), 1])
    elif kind == "drop":
        gone = {id(event) for event in chosen}
        events[:] = rng.sample(kept := [event for event in events if id(event) not in gone], len(kept))
    elif kind == "repeat":
        events += [{**event} for event in chosen[:200]]
    elif kind == "nest":
        inner = {**first, "cat": rng.choice(_CATEGORIES), "ts": 100, "dur": 5000}
        events += [{**inner, "dur": 5000 - number} for number in range(300)]
    elif kind == "kinds":
        for event in chosen:
            event["cat"], event["name"] = rng.choice(_CATEGORIES), rng.choice([*NAMES, event.get("name")])
    else:
        events[rng.randrange(len(events)):0] = [{}] * 2000


def _set(rng: random.Random, places: list[tuple[dict[str, Any], str]], values: list[Any]) -> None:
    """Set or remove a field: to one value everywhere, or to any in each place."""
    same, kind = rng.choice(values), rng.choice(["same", "same", "any", "remove"])
    for event, field in places:
        if kind == "remove":
            event.pop(field, None)
        else:
            event[field] = same if kind == "same" else rng.choice(values)
