"""Feed damaged and hostile inputs to a reader, in child processes, within limits of processor time and memory."""

import hashlib
import json
import os
import random
import resource
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from charact.core.errors import UserError

MOST_CPU_S = 30
MOST_WALL_S = 300
"""After that an input is taken to hang: other programs can make one take ten times its processor time."""
MOST_BYTES = 2 * 2**30
"""Memory that one input may take, above what the process held before it."""
_DATA_LIMIT_BYTES = 8 * 2**30
_BATCH = 200

Make = Callable[[random.Random, Path], Path]
"""Write one input below an empty directory; returns the path that the reader is given."""
Read = Callable[[Path], object]


class Finding(NamedTuple):
    """An input that broke a promise; `make(random.Random(seed), ...)` makes it again."""

    seed: str
    what: str


def fuzz(kind: str, make: Make, read: Read, count: int, *, processes: int = 1) -> list[Finding]:
    """Read `count` inputs; returns those that broke a promise.

    The promises: no exception but a UserError of one line, no more than 30 s of processor time and 2 GiB of memory, no
    death of the process, no hang, and no file of the input added, changed or removed.

    Args:
        kind: first part of each input's seed, which is `kind-number`.
        make: writes an input.
        read: reads it.
        count: number of inputs.
        processes: number of child processes at a time.
    """
    with tempfile.TemporaryDirectory(prefix="charact-fuzz-") as place:
        waiting = [(start, min(start + _BATCH, count)) for start in range(0, count, _BATCH)]
        running: dict[int, tuple[int, int, Path]] = {}
        findings: list[Finding] = []
        while waiting or running:
            while waiting and len(running) < processes:
                first, end = waiting.pop()
                log = Path(place) / f"{first}.jsonl"
                running[_start(kind, make, read, range(first, end), log)] = (first, end, log)
            pid, status = os.wait()
            if pid not in running:
                continue
            first, end, log = running.pop(pid)
            lines = [json.loads(line) for line in log.read_text().splitlines()]
            findings += [Finding(*line["finding"]) for line in lines if "finding" in line]
            if status != 0:
                broken = max((line["begun"] for line in lines if "begun" in line), default=first)
                findings.append(Finding(f"{kind}-{broken}", f"the process ended with status {status}"))
                if broken + 1 < end:
                    waiting.append((broken + 1, end))
        return findings


def _start(kind: str, make: Make, read: Read, numbers: range, log: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        resource.setrlimit(resource.RLIMIT_DATA, (_DATA_LIMIT_BYTES, resource.RLIM_INFINITY))
        with log.open("w", buffering=1) as file:
            for number in numbers:
                file.write(json.dumps({"begun": number}) + "\n")
                for what in _broken_promises(f"{kind}-{number}", make, read):
                    file.write(json.dumps({"finding": [f"{kind}-{number}", what]}) + "\n")
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _broken_promises(seed: str, make: Make, read: Read) -> list[str]:
    directory = Path(tempfile.mkdtemp(prefix="charact-fuzz-input-"))
    found = []
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends this process, also where it waits in a system call
    signal.alarm(MOST_WALL_S)
    try:
        path = make(random.Random(seed), directory)
        before, memory_before = _contents(directory), _memory("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak, VmHWM
        began = time.process_time()
        # The default action of SIGXCPU ends this process, also inside of a call that never returns to Python.
        resource.setrlimit(resource.RLIMIT_CPU, (int(began) + MOST_CPU_S + 1, resource.RLIM_INFINITY))
        try:
            read(path)
        except UserError as error:
            if len(str(error).splitlines()) != 1:
                found.append(f"an error of several lines: {error}")
        except Exception:
            found.append(traceback.format_exc())
        took = time.process_time() - began
        if took > MOST_CPU_S:
            found.append(f"{took:.1f} s of processor time")
        if (grew := _memory("VmHWM") - memory_before) > MOST_BYTES:
            found.append(f"{grew / 2**30:.1f} GiB of memory")
        if _contents(directory) != before:
            found.append("reading changed a file")
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return found


def _contents(directory: Path) -> dict[str, str]:
    return {str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
            for path in sorted(directory.rglob("*"))}


def _memory(name: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


def damaged_bytes(rng: random.Random, content: bytes) -> bytes:
    """Content with one kind of damage: flipped bits, a lost end, zeros, a repeated or removed part, foreign bytes."""
    if not content:
        return rng.randbytes(rng.randrange(64))
    changed = bytearray(content)
    at = rng.randrange(len(changed))
    length = min(len(changed) - at, rng.choice([1, 2, 8, 64, 512, 4096]))
    kind = rng.choice(["flip", "flip", "cut", "zero tail", "zeros", "remove", "repeat", "noise", "swap"])
    if kind == "flip":
        for _ in range(rng.choice([1, 1, 1, 4, 32])):
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    elif kind == "cut":
        del changed[at:]
    elif kind == "zero tail":
        changed[at:] = bytes(len(changed) - at)
    elif kind == "zeros":
        changed[at:at + length] = bytes(length)
    elif kind == "remove":
        del changed[at:at + length]
    elif kind == "repeat":
        changed[at:at] = changed[at:at + length] * rng.choice([1, 2, 50])
    elif kind == "noise":
        changed[at:at + length] = rng.randbytes(length)
    else:
        other = rng.randrange(len(changed))
        changed[at], changed[other] = changed[other], changed[at]
    return bytes(changed)


_ODD_VALUES: list[object] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, 10**40, -(10**40), 0.0, -0.0, 1e308, -1e308, 1e-320, "", " ", "0",
    "nan", "\x00", "\x1b[31m", "\ud800", "<script>alert(1)</script>", "=1+1", "../../etc/passwd", "a" * 5000, "ß", [],
    {}, [[]], [None], {"": None}, [[[[[[]]]]]], {"status": "ok"},
]  # fmt: skip


def damaged_json(rng: random.Random, value: object, *, non_finite: bool = True) -> object:
    """The value with up to five places, at any depth, replaced by odd values, removed, repeated or swapped."""
    value = json.loads(json.dumps(value))
    places: list[tuple[dict[str, object] | list[object], object]] = []

    def walk(node: object) -> None:
        items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        for key, child in items:
            places.append((node, key))  # type: ignore[arg-type]
            walk(child)

    walk(value)
    if not places:
        return rng.choice(_ODD_VALUES)
    odd = [*_ODD_VALUES, float("inf"), float("nan")] if non_finite else _ODD_VALUES
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        parent, key = rng.choice(places)
        try:
            kind = rng.choice(["odd", "odd", "odd", "remove", "swap", "scale", "repeat"])
            if kind == "odd":
                parent[key] = rng.choice(odd)  # type: ignore[index,call-overload]
            elif kind == "remove":
                del parent[key]  # type: ignore[arg-type]
            elif kind == "swap":
                other, other_key = rng.choice(places)
                parent[key] = json.loads(json.dumps(other[other_key]))  # type: ignore[index,call-overload]
            elif kind == "scale" and isinstance(parent[key], int | float):  # type: ignore[index,call-overload]
                parent[key] *= rng.choice([-1, 0, 1e30, 1e-30, 10**9])  # type: ignore[index,call-overload]
            elif kind == "repeat" and isinstance(parent, list):
                parent.append(parent[key])  # type: ignore[call-overload]
        except (KeyError, IndexError, ValueError, RecursionError):
            continue  # an earlier change removed the place, or put a value into itself
    return value
