"""Records of watched programs with known causes of lost time."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from charact import load_run
from charact.record.reader import Run
from support.records import manifest, publish, watched_entry

Row = dict[str, Any]


def watched_program(out: Path, phases: Mapping[str, float | Sequence[float]], *, num: int = 100,
                    settings: Row | None = None, passes: Row | None = None, columns: Mapping[str, Any] | None = None,
                    operators: Sequence[Row] = (), num_warmup: int = 3, mode: str = "train",
                    parts: Mapping[str, str] | None = None, windows: Sequence[Row] = ()) -> Run:
    """Write and read the record of a program with one case, and 1 s before and after its iterations.

    `phases` has the time (s) of each phase, the same in all iterations with noise of 1 %, or one for each. In the same
    way, `columns` adds to `program_iterations`. `parts` has the model or optimizer that a phase belongs to.
    `windows` are of iterations after these.
    """
    noise = np.random.default_rng(0).uniform(0.99, 1.01, num)
    times = {phase: np.broadcast_to(np.asarray(value, dtype=float), num) * noise for phase, value in phases.items()}
    walls = sum(times.values())
    more = {name: np.broadcast_to(np.asarray(value, dtype=object), num) for name, value in (columns or {}).items()}
    program, iterations, start_s = [], [], 1.0
    for index in range(num):
        timed = index - num_warmup if index >= num_warmup else None
        program.append({
            "index": index, "kind": "warm-up" if timed is None else "timed", "iteration": timed, "start_s": start_s,
            "wall_s": float(walls[index]), "other_s": 0.0, "first_of_epoch": 0,
            **{f"{phase}_s": float(values[index]) for phase, values in times.items()},
            **{name: values[index] for name, values in more.items()}})
        start_s += float(walls[index])
        if timed is not None:
            iterations += [{"iteration": timed, "phase": phase, "part": (parts or {}).get(phase),
                            "host_s": float(values[index]), "device_s": None} for phase, values in times.items()]
    entry = watched_entry("train.py", mode=mode)
    start_s = windows[-1]["end_s"] if windows else start_s
    timing = entry["passes"]["timing"] | _in_windows(windows) | {"num_iterations": num - num_warmup, "program": {
        "duration_s": start_s + 1.0, "before_s": 1.0, "between_s": 0.0, "after_s": 1.0,
        "own_s": {"start": 0.1, "passes": 0.4}, "settings": settings}}
    profiled = {"operators": {"status": "ok", "reason": None, "phase_s": {
        phase: float(np.median(values)) for phase, values in times.items()}}}
    entry["passes"] = {"timing": timing, **profiled, **(passes or {})}
    facts = manifest("run", "train.py") | {
        "options": {"script": "train.py", "arguments": [], "skip": None, "iterations": None, "passes": []}}
    tables = {"program_iterations": program, "iterations": iterations, "operators": list(operators),
              "windows": list(windows)}
    return load_run(publish(out, "train", facts, (entry, tables)))


def _in_windows(windows: Sequence[Row]) -> Row:
    wholes = [row for row in windows if row["phase"] is None]
    return {"num_window_iterations": sum(row["num_iterations"] for row in wholes) or None,
            "window_s": sum(row["sum_s"] for row in wholes) or None}


def sampled(phase: str, place: str, function: str, num_samples: int, *, of: int = 100, waiting_frac: float = 0.0,
            text: str | None = None, library: str | None = None, in_loop: bool | None = None) -> Row:
    """The pass `frames` with one line of a phase."""
    count = {"other": "num_samples"}.get(phase, f"num_{phase}_samples")
    frames = {"other": "frames"}.get(phase, f"{phase}_frames")
    frame = {"place": place, "function": function, "library": library, "num_samples": num_samples,
             "waiting_frac": waiting_frac, "text": text, "in_loop": in_loop}
    return {"frames": {"status": "ok", "reason": None, "interval_s": 0.1, count: of, frames: [frame]}}


def operator(phase: str, name: str, time_s: float, **changes: Any) -> Row:
    return {"phase": phase, "operator": name, "operator_type": "other", "layer": None, "input_shapes": None,
            "num_calls": 1.0, "self_host_s": time_s, "device_s": None, "flop": None, "bytes": None} | changes
