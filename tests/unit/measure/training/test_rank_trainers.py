"""Data-parallel training on two ranks."""

from pathlib import Path

import pytest
import torch
from support.records import manifest
from support.small import small_case

from charact.core.errors import UserError
from charact.core.observer import Observer
from charact.execution.interrupt import Interrupt
from charact.measure.training.plan import Training
from charact.measure.training.train_case import train_cases
from charact.record.reader import Run, load_run
from charact.record.writer import RunWriter

NUM_SAMPLES, EPOCHS = 256, 3


def trained(out: Path, training: Training) -> Run:
    writer = RunWriter(out, "train", manifest())
    train_cases([training], writer, Observer(), Interrupt())
    writer.close("complete")
    return load_run(writer.publish())


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_two_ranks_learn_what_one_process_learns_from_batches_of_both(tmp_path: Path) -> None:
    """With all samples in one batch, their order does not matter: the mean of the gradients is that of one process."""
    alone = trained(tmp_path / "alone", Training(small_case(batch_size=NUM_SAMPLES), EPOCHS, "valid"))
    case = small_case(batch_size=NUM_SAMPLES // 2, parallel="ddp", num_ranks=2)
    run = trained(tmp_path / "ranks", Training(case, EPOCHS, "valid"))
    names = [f"{case.id}-rank0", f"{case.id}-rank1"]
    assert [(entry["case"], entry["rank"], entry["world_size"], entry["batch_size"], entry["global_batch_size"],
             entry["status"]) for entry in run.manifest["cases"]] == [
        (name, rank, 2, 128, 256, "ok") for rank, name in enumerate(names)]
    metrics, stages = run.table("metrics"), run.table("stages")
    losses = metrics[metrics["metric"] == "loss"].pivot_table(index=["stage", "number"], columns="case", values="value")
    wanted = alone.table("metrics").query("metric == 'loss'").set_index(["stage", "number"])["value"]
    for name in names:  # rank 0 validates, for all
        assert list(losses.loc["validation", name]) == pytest.approx(list(wanted["validation"]), rel=1e-5)
    # Each rank's training loss is that of its half.
    assert list(losses.loc["training"].mean(axis="columns")) == pytest.approx(list(wanted["training"]), rel=1e-5)
    assert losses.loc[("training", 1), names[0]] != losses.loc[("training", 1), names[1]]
    counts = stages.groupby(["case", "stage", "number"])["num_samples"].max().unstack("stage")
    assert (counts["training"] == 128).all()
    assert list(counts["validation"].groupby("case").max()) == [256, 0]
    waited = stages[(stages["case"] == names[1]) & (stages["phase"] == "communication")]
    assert sorted(waited["stage"]) == ["checkpointing"] * EPOCHS + ["validation"] * EPOCHS
    of_ranks, of_one = (torch.load(one.path / one.manifest["cases"][0]["passes"]["training"]["weights"])
                        for one in (run, alone))
    for name, weight in of_one.items():
        torch.testing.assert_close(of_ranks[name], weight, rtol=1e-4, atol=1e-6)


def test_a_batch_for_each_rank_must_be_there() -> None:
    with pytest.raises(UserError, match="a batch of 200 for each of 2 ranks is more than the 256 samples of synthetic"):
        Training(small_case(batch_size=200, parallel="ddp", num_ranks=2), 1, "valid").check()
