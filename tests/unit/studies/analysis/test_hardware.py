"""Values of Aalto's claims: ratios of models, batches and sets of operations, or why there is none."""

from pathlib import Path

import pandas as pd
import pytest
from support.memory_records import fit_row, memory_entry, memory_rows
from support.operation_records import Operations
from support.records import manifest, publish, write_record

from charact.record.reader import Run, load_run
from charact.studies.analysis.hardware import (
    convolution_over_sparse,
    flop_of_models,
    largest_batch,
    operation_sums,
    sparse_over_dense,
)

GIB = 2**30


def profiled(out: Path, workload: str, factor: float) -> Run:
    """A run of `charact profile` whose FLOP are larger by a factor."""
    run = load_run(write_record(out, name=workload, sizes=(32,), modes=("train",)))
    run._tables["flop"] = run.flop.assign(flop=run.flop["flop"] * factor)
    return run


def searched(out: Path, workload: str, num_bytes: float, batch_size: int | None) -> Run:
    """A run of `charact memory` that searched for the largest batch of a workload."""
    entry = memory_entry("image", "train", 32, measured=False) | {"workload": workload, "case": workload}
    rows = memory_rows("image", "train", 32, measured=False)
    fits = [fit_row(value=batch_size, limit_bytes=num_bytes)]
    return load_run(publish(out, workload, manifest("memory", workload), (entry, {"memory": rows, "fits": fits})))


def test_the_models_are_compared_by_counted_flop(tmp_path: Path) -> None:
    runs = [profiled(tmp_path / "a", "model_a", 2.0), profiled(tmp_path / "b", "model_b", 5.0)]
    assert flop_of_models(runs).value == pytest.approx(2.5)
    assert flop_of_models(runs[:1]).value is None


@pytest.mark.parametrize(("batches", "expected"), [((640, 128), 2.0), ((640, 32), 0.5), ((640, None), 0.0)])
def test_the_smaller_of_the_largest_batches_counts(tmp_path: Path, batches: tuple[int, int | None],
                                                   expected: float) -> None:
    runs = [searched(tmp_path, "model_a", 6 * GIB, batches[0]), searched(tmp_path, "model_b", 6 * GIB, batches[1]),
            searched(tmp_path, "model_a", 8 * GIB, 1)]
    assert largest_batch(runs).value == expected
    assert largest_batch([runs[0], runs[2]]).value is None


def products(out: Path, name: str, seconds: list[float]) -> Run:
    """A run of products of one set, which take these times forward and ten times as long backward."""
    operations = Operations(out)
    for number, time_s in enumerate(seconds, 1):
        operations.add(f"gemm:{64 * number}x64x64", {"forward": time_s, "backward_input": 10 * time_s}, suite="vo",
                       set=name)
    return operations.run()


def test_sparse_and_dense_products_are_compared_if_all_were_run(tmp_path: Path) -> None:
    dense = products(tmp_path / "d", "dmm", [0.1, 0.2, 0.3, 0.2, 0.2])
    sparse = products(tmp_path / "s", "smm", [0.5, 0.5, 0.5, 1.5])
    partial = products(tmp_path / "p", "smm", [0.5, 1.5])
    sums = operation_sums([dense, sparse])
    assert sums.set_index("set")["here_s"].to_dict() == pytest.approx({"dmm": 1.0, "smm": 3.0})
    assert sparse_over_dense(sums).value == pytest.approx(3.0)
    assert sparse_over_dense(operation_sums([dense, partial])).reason == "2 of 4 products of SMM were run"
    assert sparse_over_dense(operation_sums([dense])) == sparse_over_dense(operation_sums([])) == (None, None, None, "")
    trained = pd.DataFrame({"workload": ["model_a", "convolve2d"], "modelled_s": [1.0, 60.0]})
    assert convolution_over_sparse(sums, trained).value == pytest.approx(20.0)
    assert convolution_over_sparse(sums, trained[:1]).value is None
    assert convolution_over_sparse(operation_sums([partial]), trained).reason == "2 of 4 products of SMM were run"
