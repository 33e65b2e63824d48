"""Published numbers of the studies, and the trainings that are compared with them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import pandas as pd

from charact.analysis.training.stages import rate_intervals, training_summary
from charact.record.published import published_table, reference_names
from charact.record.reader import Run
from charact.studies.claims import Claim, Value
from charact.views.tables import format as fmt

_COLUMNS = ["workload", "data", "mode", "num_epochs", "total_s", "accuracy", "set"]

NUM_SAMPLES = {"cifar10": 50_000, "mnist": 60_000, "kmnist": 60_000, "fashion_mnist": 60_000}
"""Number of training samples of each data set of a published training."""
INTERVAL_MEANING = "of the time here: from the scatter of the batches that were run"

_DEEP500, _AALTO, _NORTHEASTERN = "charact study deep500", "charact study aalto", "charact study northeastern"
_DLBRICKS = "charact study dlbricks"

CLAIMS: dict[str, tuple[Claim, ...]] = {
    "deep500": (
        Claim("area", "Memory grows linearly with the image area.", "above", "R² of a line, smallest of the workloads",
              "figure of memory against the picture area", _DEEP500, bound=0.99),
        Claim("length", "Memory grows linearly with the sequence length.", "above",
              "R² of a line, smallest of the workloads", "figure of memory against the sequence length", _DEEP500,
              bound=0.99),
        Claim("training", "Training needs more memory than inference.", "above",
              "peak of training / peak of inference, smallest of all sizes", "figures of the ratio", _DEEP500)),
    "aalto": (
        Claim("training", "Model B takes longer to train than Model A.", "above",
              "total execution time of B / A, MNIST", "total execution times", _AALTO),
        Claim("data", "MNIST and Fashion-MNIST take the same time.", "published",
              "total execution time of Fashion-MNIST / MNIST, Model A", "total execution times", _AALTO),
        Claim("inference", "Model B takes longer to infer than Model A.", "above", "total inference time of B / A",
              "total inference times", _AALTO),
        Claim("flop", "Model B needs more FLOP than Model A.", "above", "counted FLOP of a training iteration, B / A",
              "FLOPS of the models", _AALTO),
        Claim("batch", "Both models train with 64 a batch on 6 GiB.", "above",
              "largest batch that fits, estimated / 64, smaller of both", "total execution times, setup 1", _AALTO),
        Claim("sparse", "Sparse products (SMM) take longer than dense ones (DMM).", "above", "time of SMM / DMM",
              "times of basic operations", _AALTO),
        Claim("convolution", "Convolve2D takes longer than sparse products.", "above",
              "training time of Convolve2D / time of SMM", "times of basic operations", _AALTO),
        Claim("rates", "A setup with a faster GPU has more FLOPS.", "published", "FLOPS of setup 2 / that of setup 1",
              "FLOPS of the setups, without a unit", _AALTO, 79.35 / 36),
        Claim("bottleneck", "The bottleneck of CPU and GPU differs by setup.", "published",
              "bottleneck share of setup 1 / that of setup 2", "bottleneck shares", _AALTO, 22.6 / 6.4)),
    "northeastern": (
        Claim("networks", "GoogLeNet takes longer to train than ResNet-18.", "above",
              "training time of GoogLeNet / ResNet-18, MNIST", "training times, P100", _NORTHEASTERN),
        *(Claim(f"gain_{data}", f"On {name}, the smaller task gains less.", "below",
                "speedup of ResNet-18 / that of GoogLeNet", "training times, K80 and P100", _NORTHEASTERN)
          for data, name in (("cifar10", "CIFAR-10"), ("mnist", "MNIST"), ("kmnist", "KMNIST")))),
    "dlbricks": (
        Claim("unique", "Few of a model's layers are unique.", "published", "unique / all bricks, G = 1",
              "ICPE 2020: 1,529 of 10,815 layers", _DLBRICKS, 1529 / 10815),
        Claim("accuracy", "Bricks predict the latency of models.", "published",
              "constructed / measured latency, geometric mean, G = 1", "ICPE 2020: c5.2xlarge", _DLBRICKS, 0.918),
        Claim("speedup", "Bricks take less time than models.", "published", "each model / each brick once, G = 1",
              "ICPE 2020: the largest of four machines", _DLBRICKS, 4.4),
        Claim("falling", "The speedup falls as G grows.", "below", "slope of the speedup per layer of G",
              "ICPE 2020: figure of the speedup", _DLBRICKS, bound=0.0))}
"""Claims by study, in the order of the publication. Published ratios of times come from the tables of times."""


def claims_of(study: str, published: Mapping[str, float] | None = None) -> list[Claim]:
    """Return the claims of a study, with published values that are computed from its tables."""
    values = published or {}
    return [replace(claim, published=values.get(claim.name, claim.published)) for claim in CLAIMS[study]]


def ratio_of_trainings(rows: pd.DataFrame, over: tuple[str, str], under: tuple[str, str],
                       column: str = "modelled_s") -> Value:
    """Return the ratio of two times in rows of `trainings`; over and under are pairs of workload and data.

    Half of its 95 % interval, as a share, is the root of the sum of the squares of both times' halves. There is no
    ratio if one run stands for both times.
    """
    times = rows.set_index(["workload", "data"])
    first, second = (cast("pd.Series[Any]", times.loc[key]) for key in (over, under))
    if pd.isna(first[column]) or pd.isna(second[column]):
        return Value()
    if over[0] == under[0] and "one run for" in str(first["source"]):
        return Value(reason="one training on synthetic data stands for both: add --data-dir")
    ratio = float(first[column] / second[column])
    half_frac = float((first["interval_frac"] ** 2 + second["interval_frac"] ** 2) ** 0.5)
    return Value(ratio) if pd.isna(half_frac) else Value(ratio, ratio * (1 - half_frac), ratio * (1 + half_frac))


def published_cases(names: Sequence[str]) -> pd.DataFrame:
    """Return the published numbers of machines.

    Columns: machine, the name of its GPU; workload, data, mode, num_epochs, total_s and accuracy; set, of basic
    operations, which have no workload. Null if not published.
    """
    frames = []
    for name in names:
        published = published_table(name)
        rows = pd.DataFrame(published["cases"]).reindex(columns=_COLUMNS)
        frames.append(rows.assign(machine=published["gpu"].removeprefix("NVIDIA "), reference=name))
    return pd.concat(frames, ignore_index=True)


def trainings(runs: Sequence[Run], wanted: pd.DataFrame) -> pd.DataFrame:
    """Add the trainings in runs to rows of workloads and data sets.

    A training on synthetic data stands for each data set without a training of its own: its time depends on shapes.

    Args:
        runs: runs, of which those that train count.
        wanted: rows with workload, data, num_epochs and num_samples, the number of training samples.

    Returns:
        the rows with: source, the data that were read, and the other data for which the same training stands, or `not
        run`; measured_s, the total execution time; samples_per_s of training; modelled_s = num_epochs × num_samples /
        samples_per_s, with interval_frac, half of its 95 % interval as a share of it, and modelled_interval, that
        interval as text; accuracy, the best one on real data.
    """
    known = {(row["workload"], row["data"]): row for run in runs for row in _rows(run)}
    found = [known.get((row.workload, row.data)) or known.get((row.workload, "synthetic")) or {}
             for row in wanted.itertuples()]
    modelled_for: dict[int, list[str]] = {}
    for row, asked in zip(found, wanted.itertuples(), strict=True):
        modelled_for.setdefault(id(row), []).append(str(asked.data))
    rate = pd.Series([row.get("samples_per_s") for row in found], wanted.index, dtype="float64")
    modelled_s = wanted["num_epochs"] * wanted["num_samples"] / rate
    return wanted.assign(
        source=[_shared(row, modelled_for[id(row)]) for row in found], samples_per_s=rate,
        measured_s=pd.Series([row.get("total_s") for row in found], wanted.index, dtype="float64"),
        accuracy=pd.Series([row.get("accuracy") for row in found], wanted.index, dtype="float64"),
        modelled_s=modelled_s,
        interval_frac=pd.Series([row.get("interval_frac") for row in found], wanted.index, dtype="float64"),
        modelled_interval=pd.Series([interval_text(seconds, row.get("interval_frac")) for seconds, row in
                                     zip(modelled_s, found, strict=True)], wanted.index, dtype="object"))


def training_times(runs: Sequence[Run]) -> pd.DataFrame:
    """Return the total times of the trainings in runs, next to the published ones of the same trainings.

    Columns: workload; data; num_epochs; machine, the name of a GPU, null for this machine; total_s, published, or
    modelled as by `trainings`; low_s and high_s, its 95 % interval (null if published, or without an interval).
    """
    published = pd.concat([published_cases([name]) for name in reference_names()], ignore_index=True)
    published = published[published["data"].isin(list(NUM_SAMPLES)) & (published["mode"] == "train")]
    keys = ["workload", "data", "num_epochs"]
    wanted = published[keys].drop_duplicates(ignore_index=True)
    here = trainings(runs, wanted.assign(num_samples=wanted["data"].map(NUM_SAMPLES))).dropna(subset=["modelled_s"])
    half_s = here["modelled_s"] * here["interval_frac"]
    here = here.assign(total_s=here["modelled_s"], low_s=here["modelled_s"] - half_s, machine=None,
                       high_s=here["modelled_s"] + half_s)
    columns = [*keys, "machine", "total_s", "low_s", "high_s"]
    known = published.merge(here[keys], on=keys).dropna(subset=["total_s"]).assign(low_s=None, high_s=None)
    rows = [*here[columns].to_dict("records"), *known[columns].to_dict("records")]
    frame = pd.DataFrame(rows, columns=columns)
    return frame.astype(dict.fromkeys(["total_s", "low_s", "high_s"], "float64"))


def _shared(row: dict[Any, Any], data: list[str]) -> str:
    """Return the data that a training read, and the data sets that it stands for if there are several."""
    source = str(row.get("source", "not run"))
    return f"{source}: one run for {' and '.join(data)}" if row and len(data) > 1 else source


def interval_text(seconds: float, interval_frac: float | None, fixed_s: float = 0.0) -> str | None:
    """Return the 95 % interval of an extrapolated time: 25 h 3 min – 33 h 17 min; None if there is no time.

    Args:
        seconds: the extrapolated time.
        interval_frac: half of the interval, as a share of the extrapolated part.
        fixed_s: the part that is not extrapolated.
    """
    if fmt.absent(seconds):
        return None
    if fmt.absent(interval_frac):
        return fmt.missing("fewer than 3 batches, or an older record")
    assert interval_frac is not None
    half_s = (seconds - fixed_s) * interval_frac
    return f"{fmt.duration(max(0.0, seconds - half_s))} – {fmt.duration(seconds + half_s)}"


def _rows(run: Run) -> list[dict[Any, Any]]:
    summary = training_summary(run)
    if summary.empty:
        return []
    rows = summary.merge(run.cases[["case", "workload"]], on="case").to_dict("records")
    intervals = rate_intervals(run, "training")
    return [{"workload": row["workload"], "data": row["data"], "samples_per_s": row["samples_per_s"],
             "interval_frac": intervals.get(row["case"]), "total_s": row["total_s"], "source": _source(row),
             "accuracy": row["best_value"] if row["best_metric"] == "accuracy" and row["data"] != "synthetic" else None}
            for row in rows]


def _source(row: dict[Any, Any]) -> str:
    epochs = "1 epoch" if row["num_epochs"] == 1 else f"{row['num_epochs']:.0f} epochs"
    return f"{row['data']}, {epochs}" if row["status"] == "ok" else f"{row['data']}: {row['status']}"
