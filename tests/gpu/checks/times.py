"""Times that charact reports, against whole blocks, events, a trace and a script's own clock."""

import json
import re
import time
from statistics import median

import torch
from gpu.checks.session import SCRIPTS, Session, last_words, on_cuda
from support.device_clocks import block_s, events_s, heat, kernel_s, marked_block_s, running
from support.programs import Ended

import charact
from charact import Run
from charact.measure.passes.phase_timer import phases_for

PHASE_LIMITS = (("forward", 0.03), ("backward", 0.03), ("update", 0.15))
"""Updates are many short kernels, with gaps between them."""


@on_cuda
def check_cold(session: Session) -> None:
    """A short case right after the start, when clocks are low, against the same case hot.

    A device at its power limit is a little faster before it is hot.
    """
    session.big()  # ceilings are in the cache now, so that nothing heats the device
    time.sleep(3)
    run = session.profiled("cold", "resnet50", "--input-sizes", "224", "--batch-sizes", "64", "--mode", "infer",
                           "--precision", "bf16", "--max-seconds", "3", "--counters", "none")
    facts = run.manifest["cases"][0]["passes"]["timing"]
    with running(session.case("resnet50", 224, 64, "infer", "bf16")) as loop:
        heat(loop, 1.5)
        hot_s = median(block_s(loop, 50) for _ in range(5))
    session.info("cold: iterations of warm-up and timing", (facts["num_warmup_iterations"], facts["num_iterations"]))
    session.times_within("cold: first short case / hot", facts["median_s"] / hot_s, 0.94, 1.05)


def check_iteration(session: Session) -> None:
    """The median iteration against whole blocks between two waits, hot."""
    run = session.big()
    for entry in run.manifest["cases"]:
        precision = entry["precision"]
        case = session.case(entry["workload"], entry["input_size"], entry["batch_size"], "train", precision)
        with running(case) as loop:
            heat(loop, 1.5 if session.on_cuda else 0.2)
            ours_s = median(block_s(loop, 20 if session.on_cuda else 3) for _ in range(5))
        rows = run.iterations[run.iterations["case"] == entry["case"]]
        walls = rows.groupby("iteration")[["host_s", "device_s"]].sum(min_count=1)
        reported_s = walls["device_s"].fillna(walls["host_s"]).median()
        session.times_within(f"iteration charact/blocks, {precision}", reported_s / ours_s, 0.97, 1.03)


@on_cuda
def check_phases(session: Session) -> None:
    """Events at phases against kernels' time by other marks: equal where the device always has work."""
    run = session.big()
    case = next(entry["case"] for entry in run.manifest["cases"] if entry["precision"] == "fp32")
    reported = run.iterations[run.iterations["case"] == case].groupby("phase")["device_s"].median()
    with running(session.case("resnet50", 224, 64, "train", "fp32")) as loop:
        heat(loop, 1.0)
        ours = kernel_s(loop, session.out / "phases.json", 4)
    for phase, limit in PHASE_LIMITS:
        session.within(f"phase events/kernels, {phase}", reported[phase] / ours[phase], 0.97, 1 + limit)
    total_s = sum(ours.values())
    session.within("iteration events/kernels", reported.sum() / total_s, 0.97, 1.05)
    kernels = run.kernels[run.kernels["case"] == case]
    session.within("charact's kernels / ours", kernels["device_s"].sum() / total_s, 0.97, 1.03)
    by_phase = kernels.groupby("phase")["device_s"].sum()
    for phase, _ in PHASE_LIMITS:
        session.within(f"charact's kernels / ours, {phase}", by_phase[phase] / ours[phase], 0.95, 1.05)


def check_overhead(session: Session) -> None:
    """The cost of phase marks: blocks with and without, in turns."""
    cases = [("resnet50", 224, 64, 15, 1.005), ("resnet18", 32, 16, 60, 1.02)]
    for name, size, batch_size, num_iterations, limit in cases if session.on_cuda else [("resnet18", 32, 4, 3, 1.2)]:
        with running(session.case(name, size, batch_size, "train", "fp32")) as loop:
            heat(loop, 1.0 if session.on_cuda else 0.1)
            phases = phases_for(session.device)
            ratios = [marked_block_s(loop, num_iterations, phases) / block_s(loop, num_iterations)
                      for _ in range(9 if session.on_cuda else 3)]
        session.times_within(f"overhead of phase marks, {name} {size} px", median(ratios), 0.9, limit)


@on_cuda
def check_own_function(session: Session) -> None:
    """`charact.profile` of a function that launches work and returns at once, against events around it."""
    left, right = (torch.randn(8192, 8192, device=session.device, dtype=torch.bfloat16) for _ in range(2))
    run = charact.profile(lambda: torch.mm(left, right), out=session.out / "functions", name="mm")
    facts = run.manifest["cases"][0]["passes"]["timing"]
    ours_s = median(events_s(lambda: torch.mm(left, right)) for _ in range(20))
    reported_s = run.iterations.groupby("iteration")["device_s"].sum(min_count=1).median()
    session.within("charact.profile, device time of a call / own", reported_s / ours_s, 0.95, 1.10)
    session.within("charact.profile, the median that it states / device's", facts["median_s"] / ours_s, 0.9, 1.2)


def check_watched(session: Session) -> None:
    """`charact run` of an unchanged script: its phases against the script's own events, and the cost of watching."""
    sizes = {"big": ("128", "64", "90", "128"), "small": ("16", "8", "600", "16")} if session.on_cuda else {
        "tiny": ("16", "4", "30", "8")}
    limits = {"big": 1.005, "small": 1.03, "tiny": 2}
    for label, numbers in sizes.items():
        arguments = [str(SCRIPTS / "timed_by_itself.py"), session.device.type, *numbers]
        ratios = []
        for attempt in range(2 if session.on_cuda else 1):
            alone = own_times(session.run(*arguments, timeout=120))
            ended, run = session.recorded(f"watched-{label}-{attempt}", "run", *arguments)
            inside = own_times(ended)
            ratios.append(inside["total_s"] / alone["total_s"])
        session.times_within(f"charact run, watched/alone, {label}", median(ratios), 0.97, limits[label])
        _hold_phases(session, run, inside, label)


def own_times(ended: Ended) -> dict[str, float]:
    """Return the times that `timed_by_itself.py` printed (s)."""
    found = re.search(r"TIMES (\{.*\})", ended.output)
    if found is None:
        raise RuntimeError(f"the script printed no times: {last_words(ended)}")
    times: dict[str, float] = json.loads(found[1])
    return times


def _hold_phases(session: Session, run: Run, inside: dict[str, float], label: str) -> None:
    """Hold the phases of a watched script to those by its own clock; of short iterations only that they have times."""
    rows = run.iterations[run.iterations["iteration"] >= run.iterations["iteration"].max() // 3]
    if session.on_cuda:
        session.within(f"charact run, iterations with device times, {label}", rows["device_s"].notna().mean(), 0.99, 1)
    if label == "small":
        return
    for phase, limit in (("forward", 0.05), ("backward", 0.05), ("update", 0.10)):
        walls = rows[rows["phase"] == phase].groupby("iteration")[["host_s", "device_s"]].sum(min_count=1)
        reported_s = walls["device_s"].fillna(walls["host_s"]).median()
        session.times_within(f"charact run, {phase} / the script's own, {label}", reported_s / inside[phase],
                             1 - limit, 1 + limit)
