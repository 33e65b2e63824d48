"""Constructed latencies of models on several machines."""

from collections.abc import Callable, Sequence

import pandas as pd

from charact.analysis.common.machine_names import machine_name
from charact.bricks.analysis.tables import model_summary, normalized_latency
from charact.record.reader import Run

_CONFIGURATION = ["workload", "variant", "input_size", "batch_size", "mode", "precision"]
_LATENCY = ["g", "strategy", "latency_s", "low_s", "high_s", "measured_s", "reason"]


def latency_by_machine(runs: Sequence[Run], names: Sequence[str] | None = None) -> pd.DataFrame:
    """Return the latency of each model on each machine, one row for each pair, in the order of the records.

    Columns: workload, variant, input_size, batch_size, mode and precision; machine, with its threads or the suite's
    run if several records are of one machine; g, maximum number of layers of a segment; strategy, the best of the
    model (see `model_summary`), or the plain sum if not all machines have a corrected one; latency_s with its 95 %
    interval low_s to high_s; measured_s, null if not measured there; reason, why there is no latency.

    Args:
        runs: records of constructed models.
        names: names of their machines; None gives each record a name of its own where possible.
    """
    def of_each(table: Callable[[Run], pd.DataFrame]) -> pd.DataFrame:
        """Return a table of latencies of all records, with configuration, machine and index of the record."""
        frames = []
        for number, (run, name) in enumerate(zip(runs, names or _names(runs), strict=True)):
            configurations = run.cases.reindex(columns=["case", *_CONFIGURATION]).astype({"case": "str"})
            latencies = configurations.merge(table(run)[["case", *_LATENCY]], on="case")
            frames.append(latencies.assign(machine=name, run=number))
        return pd.concat(frames, ignore_index=True)

    best = of_each(model_summary)
    plain = of_each(lambda run: normalized_latency(run).query("phase == 'all' and strategy == 'sequential'"))
    plain = plain.set_index(["run", "case"])
    corrected = best["strategy"].eq("corrected")
    known = best["latency_s"].notna()
    everywhere = (corrected | ~known).groupby([best[name] for name in _CONFIGURATION], dropna=False).transform("all")
    rows = best.set_index(["run", "case"])
    places = rows.index[(corrected & ~everywhere).to_numpy()]
    rows.loc[places, _LATENCY] = plain.loc[places, _LATENCY]
    rows = rows.reset_index()
    order = rows.groupby(_CONFIGURATION, sort=False, dropna=False).ngroup()
    rows = rows.loc[order.sort_values(kind="stable").index].reset_index(drop=True)
    return rows[[*_CONFIGURATION, "machine", *_LATENCY]]


def machine_names(runs: Sequence[Run]) -> list[str]:
    """Return the names of the machines; a machine with several numbers of threads gets that number appended."""
    names = [machine_name(run) or run.run_id for run in runs]
    return _distinct(names, [f"threads {run.manifest['options'].get('threads')}" for run in runs])


def _names(runs: Sequence[Run]) -> list[str]:
    """Return the names of the machines; equal names also get the suite's run appended."""
    return _distinct(machine_names(runs), [str(run.manifest["options"].get("brick_run")) for run in runs])


def _distinct(names: list[str], ends: list[str]) -> list[str]:
    """Append ends to names that occur several times, if that makes more names distinct."""
    labels = [f"{name}, {end}" if names.count(name) > 1 else name for name, end in zip(names, ends, strict=True)]
    return labels if len(set(labels)) > len(set(names)) else names
