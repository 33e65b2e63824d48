"""A constructed model as a case of a record: its manifest entry and the rows of its tables."""

from typing import Any

from charact.analysis.bricks.construction import Construction
from charact.analysis.bricks.correction_cache import Correction
from charact.record.reader import Rows

_FROM_RUN = ("suite_digest", "num_rounds", "timed_s", "set_up_s")


def constructed_case(construction: Construction,
                     correction: Correction | str) -> tuple[dict[str, Any], dict[str, Rows]]:
    """Return the arguments of `RunWriter.add_case` for a constructed model: its entry, and rows by table.

    Facts of the pass `construct`: run and case that timed the bricks, and the timing method; g and cut_method; clock;
    num_pieces, num_bricks (distinct), num_layers, num_module_calls; captured_by; suite_digest, num_rounds, timed_s and
    set_up_s of the run; num_repeats, timed calls of each brick; backward_start_s by that clock; the correction, or why
    there is none.

    Args:
        construction: the model's.
        correction: the applied correction, or the reason why there is none.
    """
    composition, times = construction.composition, construction.times
    timed = next(entry for entry in times.run.manifest["cases"] if entry["case"] == times.case)
    ok = construction.reason is None
    facts = {
        "status": "ok" if ok else "failed", "reason": construction.reason, "brick_run": times.run.run_id,
        "brick_case": times.case, "timing_method": times.facts["method"], "g": composition.g,
        "cut_method": composition.method,
        "clock": construction.clock, "num_pieces": len(composition.pieces),
        "num_bricks": len({piece.brick for piece in composition.pieces}), "num_layers": composition.num_layers,
        "num_module_calls": composition.num_module_calls, "captured_by": composition.captured_by,
        **{name: times.facts.get(name) for name in _FROM_RUN}, "num_repeats": times.num_repeats,
        "backward_start_s": _backward_start_s(construction),
        "correction": None if isinstance(correction, str) else _as_json(correction),
        "correction_reason": correction if isinstance(correction, str) else None,
    }  # fmt: skip
    entry = {
        "case": f"{composition.case}-{timed['device'].replace(':', '')}", "workload": composition.model,
        "variant": composition.variant or "", "input_kind": composition.facts.get("input_kind"),
        "input_size": composition.input_size, "batch_size": composition.batch_size, "mode": composition.mode,
        "precision": composition.precision, "device": timed["device"], "device_name": timed.get("device_name"),
        "data": "synthetic", "num_parameters": composition.num_parameters, "source": composition.facts.get("source"),
        "status": "ok" if ok else "error", "reason": construction.reason, "requested_bytes": None,
        "passes": {"construct": facts},
    }  # fmt: skip
    tables = {"pieces": construction.pieces, "constructions": construction.latencies}
    return entry, tables


def _backward_start_s(construction: Construction) -> float | None:
    if construction.clock is None or not construction.num_backward_starts:
        return None
    return construction.times.start_s("backward_start_s", construction.clock)


def _as_json(correction: Correction) -> dict[str, Any]:
    return {name: getattr(correction, name) for name in correction.__struct_fields__}
