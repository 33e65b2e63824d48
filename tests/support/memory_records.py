"""A made-up record of `charact memory` whose peaks grow in known lines, with predictions that are off by a known share.

A network of pictures (batch 8) and one of sequences (batch 20), each trained and used: twelve sizes predicted, four of
them measured. Of the pictures' trainings the largest ran out of memory, and the one before was predicted to.
"""

from pathlib import Path
from typing import Any

from charact.record.schema import MEMORY_CATEGORIES, Rows
from support.kept import written_once
from support.records import case_entry, manifest, publish

SIZES = {"image": tuple(range(32, 385, 32)), "sequence": tuple(range(10, 121, 10))}
MEASURED = {"image": (64, 128, 192, 256), "sequence": (10, 40, 80, 120)}
BATCH_SIZE = {"image": 8, "sequence": 20}
NAMES = {"image": "resnet18", "sequence": "rnn_lm"}
WEIGHTS = {"image": 4.4e7, "sequence": 5.6e7}
# Bytes that a pixel or token of one sample adds: activations, temporary, input.
SLOPES = {("image", "train"): (500.0, 100.0, 12.0), ("image", "infer"): (0.0, 150.0, 12.0),
          ("sequence", "train"): (100_000.0, 60_000.0, 16.0), ("sequence", "infer"): (0.0, 50_000.0, 16.0)}  # fmt: skip
FIXED_TEMPORARY = 1e6
WORKSPACE_FRAC = 0.5
"""Part of the temporary memory that operators take for themselves."""
WORKSPACE_ERROR_FRAC = 0.1
"""By how much of them a prediction is too low."""
LIMIT_BYTES = 6.8e8
PEAK_LAYERS = {"image": "layer1.0.conv1", "sequence": "decoder"}


def composition(kind: str, mode: str, size: int) -> dict[str, float]:
    """Bytes of each category at the peak, as they are."""
    num_positions = BATCH_SIZE[kind] * (size**2 if kind == "image" else size)
    activations, temporary, given = (slope * num_positions for slope in SLOPES[kind, mode])
    held = dict.fromkeys(MEMORY_CATEGORIES, 0.0)
    training = {"gradients": WEIGHTS[kind], "optimizer_state": WEIGHTS[kind]} if mode == "train" else {}
    return held | training | {
        "weights": WEIGHTS[kind], "activations": activations, "temporary": FIXED_TEMPORARY + temporary, "input": given,
    }  # fmt: skip


def predicted_parts(kind: str, mode: str, size: int) -> dict[str, float]:
    """Bytes of the predicted peak by origin."""
    held = composition(kind, mode, size)
    workspaces = WORKSPACE_FRAC * held["temporary"]
    return {"tensors": sum(held.values()) - workspaces, "workspaces": (1 - WORKSPACE_ERROR_FRAC) * workspaces}


def _measured(moment: dict[str, Any], held: dict[str, float]) -> Rows:
    return [{**moment, "method": "measured", "category": category, "bytes": num_bytes}
            for category, num_bytes in held.items()]


def _predicted(moment: dict[str, Any], held: dict[str, float]) -> Rows:
    """A row a category, and one more for the workspaces."""
    workspaces = WORKSPACE_FRAC * held["temporary"]
    tensors = held | {"temporary": held["temporary"] - workspaces}
    rows = [{**moment, "method": "predicted", "category": category, "origin": "tensors", "bytes": num_bytes}
            for category, num_bytes in tensors.items()]  # fmt: skip
    return [*rows, {**moment, "method": "predicted", "category": "temporary", "origin": "workspaces",
                    "bytes": (1 - WORKSPACE_ERROR_FRAC) * workspaces}]  # fmt: skip


def _moments(kind: str, mode: str, peak: dict[str, float]) -> list[tuple[dict[str, Any], dict[str, float]]]:
    """Ten moments of forward; of a training one of loss, ten of backward, the first being the peak, one of update."""
    layer, absent = PEAK_LAYERS[kind], {"layer": None, "operator": None}
    names = [{"phase": "data", **absent}]
    names += [{"phase": "forward", "layer": f"layer{number}", "operator": "aten::convolution"} for number in range(9)]
    names += [{"phase": "forward", "layer": layer, "operator": "aten::convolution"}]
    kept = {"gradients": 0.0, "temporary": 0.0, "activations": 0.0}
    helds = [{**peak, **kept, "activations": 0.1 * number * peak["activations"]} for number in range(11)]
    if mode == "infer":
        helds[-1] = peak
        return list(zip(names, helds, strict=True))
    names += [{"phase": "loss", **absent}]
    names += [{"phase": "backward", "layer": layer, "operator": "aten::convolution_backward"}]
    names += [{"phase": "backward", "layer": f"layer{number}", "operator": "aten::convolution_backward"}
              for number in reversed(range(9))]  # fmt: skip
    names += [{"phase": "update", "layer": None, "operator": "aten::_foreach_add_"}]
    helds += [{**peak, **kept}, peak]
    helds += [{**peak, "temporary": 0.5 * peak["temporary"], "activations": 0.1 * number * peak["activations"]}
              for number in reversed(range(9))]  # fmt: skip
    helds += [{**peak, **kept, "gradients": peak["weights"]}]
    return list(zip(names, helds, strict=True))


def memory_rows(kind: str, mode: str, size: int, *, measured: bool) -> Rows:
    """Rows of the table `memory` of one case: its prediction, and its measurement where there is one."""
    moments = _moments(kind, mode, composition(kind, mode, size))
    at_peak = max(moments, key=lambda moment: sum(moment[1].values()))
    rows: Rows = []
    for fill in (_measured, _predicted) if measured else (_predicted,):
        rows += fill({"kind": "peak", **at_peak[0]}, at_peak[1])
        for phase in dict.fromkeys(name["phase"] for name, _ in moments):
            of_phase = [moment for moment in moments if moment[0]["phase"] == phase]
            name, held = max(of_phase, key=lambda moment: sum(moment[1].values()))
            rows += fill({"kind": "phase_peak", **name}, held)
        for number, (name, held) in enumerate(moments):
            time_s = 0.005 * number if fill is _measured else None
            rows += fill({"kind": "timeline", **name, "moment": number, "time_s": time_s}, held)
    return rows


def memory_entry(kind: str, mode: str, size: int, *, measured: bool) -> dict[str, Any]:
    """An entry of the manifest as `charact memory` writes it on a CPU with a device's memory given."""
    parts = predicted_parts(kind, mode, size)
    peak_bytes = sum(parts.values())
    low_bytes, high_bytes = 0.98 * peak_bytes, 1.02 * peak_bytes
    fits = high_bytes <= LIMIT_BYTES
    reason = None if fits else f"predicted to need {high_bytes / 1e6:.0f} MB of the {LIMIT_BYTES / 1e6:.0f} MB of tiny"
    true_bytes = sum(composition(kind, mode, size).values())
    memory = {
        "status": "ok", "reason": None, "peak_bytes": true_bytes, "allocator_peak_bytes": None,
        "reserved_peak_bytes": None, "process_before_bytes": 4e8, "process_peak_bytes": 4e8 + 1.25 * true_bytes,
    } if measured else {"status": "skipped", "reason": reason or "predicted only"}  # fmt: skip
    prediction = {
        "status": "ok", "reason": None, "peak_bytes": peak_bytes, "low_bytes": low_bytes, "high_bytes": high_bytes,
        "tensors_bytes": parts["tensors"], "workspaces_bytes": parts["workspaces"], "rounding_bytes": 0.0,
        "reserved_peak_bytes": None, "context_bytes": None, "needed_bytes": high_bytes, "device": "tiny",
        "device_memory_bytes": LIMIT_BYTES, "fits": fits, "uncertain": [], "duration_s": 0.2,
        "workspaces": {"method": "measured", "num_measured": 24, "num_modelled": 0, "reason": None},
    }  # fmt: skip
    return case_entry(NAMES[kind], size, mode, batch_size=BATCH_SIZE[kind]) | {
        "input_kind": kind, "status": "ok" if fits else "oom", "reason": reason, "requested_bytes": None,
        "passes": {"memory": memory, "prediction": prediction},
    }  # fmt: skip


def ran_out(entry: dict[str, Any]) -> dict[str, Any]:
    """The entry of a case that ran out of memory where it was measured."""
    reason = "out of memory: asked for 120 MB"
    passes = entry["passes"] | {"memory": {"status": "failed", "reason": reason}}
    held = dict.fromkeys(MEMORY_CATEGORIES, 0.0) | {"weights": 4.4e7, "optimizer_state": 4.4e7, "activations": 4.9e8}
    return entry | {"status": "oom", "reason": reason, "requested_bytes": 1.2e8, "passes": passes, "out_of_memory": {
        "requested_bytes": 1.2e8, "free_bytes": 1.02e8, "limit_bytes": LIMIT_BYTES, "phase": "forward",
        "composition": held, "composition_source": "measured", "fits": {"batch_size": 6, "input_size": 320},
        "fits_reason": None,
    }}  # fmt: skip


def fit_row(**changes: Any) -> dict[str, Any]:
    """A row of the table `fits`: a batch of 9 fits, 10 do not."""
    return {"searched": "batch_size", "device": "tiny", "limit_bytes": LIMIT_BYTES, "value": 9, "needed_bytes": 6.4e8,
            "margin_bytes": 4e7, "next_value": 10, "next_needed_bytes": 7e8, "verified": "ok",
            "next_verified": "oom"} | changes  # fmt: skip


@written_once
def write_memory(out: Path, *, kinds: tuple[str, ...] = ("image", "sequence"), name: str = "memory") -> Path:
    """A run of `charact memory` below `out`, published; see the module."""
    cases = []
    for kind in kinds:
        for mode in ("train", "infer"):
            for size in SIZES[kind]:
                measured = size in MEASURED[kind]
                entry = memory_entry(kind, mode, size, measured=measured)
                tables = {"memory": memory_rows(kind, mode, size, measured=measured)}
                if kind == "image" and mode == "train" and size == SIZES[kind][-1]:
                    entry = ran_out(entry)
                if size == SIZES[kind][0]:
                    tables["fits"] = [fit_row()] if mode == "train" else [
                        fit_row(searched="input_size", value=700, next_value=None, next_needed_bytes=None,
                                verified=None, next_verified=None)]  # fmt: skip
                    ended_by = "memory" if mode == "train" else "its 256 samples"
                    entry["passes"]["fit"] = {"status": "ok", "reason": None, "ended_by": ended_by}
                cases.append((entry, tables))
    return publish(out, name, manifest("memory", *(NAMES[kind] for kind in kinds)) | {
        "options": {"command": "memory", "predict": True, "measure": True, "fit": ["680MB"], "seed": 0}}, *cases)
