"""Training: its time adds up, its values are true, and what was interrupted goes on as if it had not been."""

import math
import os
import signal
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from support.sleeper import SLEEPS_S, Sleeper, SleepyData, slept
from support.small import TwoLayers, small_case
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset, Subset, TensorDataset

from charact import load_run
from charact.core.errors import UserError
from charact.core.observer import Observer
from charact.datasets._common.request import DataRequest
from charact.execution.interrupt import Interrupt
from charact.measure.training.checkpoint import Progress, read_checkpoint, write_checkpoint
from charact.measure.training.epoch_loop import Trainer
from charact.measure.training.plan import Target, Training
from charact.measure.training.train_case import train_cases
from charact.record import manifest_passes
from charact.record.in_progress import CHECKPOINTS
from charact.record.manifest import CaseEntry, typed_entry
from charact.record.reader import Run
from charact.record.writer import RunWriter
from charact.workload.base import Workload
from charact.workload.metrics import Accuracy, Metric

pytestmark = pytest.mark.clock


class Silent(Observer):
    """An observer that may send this process a signal in an iteration of a given epoch."""

    def __init__(self, signal_in: tuple[int, str, int] | None = None) -> None:
        self.epochs: list[dict[str, Any]] = []
        self._signal_in, self._epoch = signal_in, 0

    def epoch_started(self, epoch: int, num_epochs: int) -> None:
        self._epoch = epoch

    def stage_iteration(self, stage: str, number: int, total: int) -> None:
        if (self._epoch, stage, number) == self._signal_in:
            os.kill(os.getpid(), signal.SIGINT)

    def epoch_ended(self, epoch: int, num_epochs: int, training: Any, validation: Any, seconds: float) -> None:
        self.epochs.append({"training": training, "validation": validation, "seconds": seconds})


@dataclass(kw_only=True)
class Learner(TwoLayers):
    """A small network with dropout, momentum, a schedule and a metric, on classes that can be learnt."""

    name: str = "learner"
    default_batch_size: int = 50
    default_input_size: int = 8
    num_samples: int = 200

    def dataset(self, input_size: int, request: DataRequest) -> Dataset[Any]:
        generator = torch.Generator().manual_seed(["train", "valid", "test"].index(request.split))
        inputs = torch.randn(self.num_samples, input_size, generator=generator)
        return TensorDataset(inputs, (inputs[:, 0] > 0).long())

    def model(self, dataset: Any) -> nn.Module:
        return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 2))

    def optimizers(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        return [torch.optim.Adam(model.parameters(), lr=0.01)]

    def schedulers(self, optimizers: list[torch.optim.Optimizer], num_epochs: int) -> list[Any]:
        (optimizer,) = optimizers
        return [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, num_epochs),
                torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)]

    def metrics(self, dataset: Any) -> list[Metric]:
        return [Accuracy()]


@dataclass(kw_only=True)
class Diverging(Learner):
    """Its loss is no number in one iteration."""

    diverge_at: int = 3
    calls: list[int] = field(default_factory=list)

    def loss(self, outputs: Tensor, batch: Any) -> Tensor:
        self.calls.append(1)
        loss = super().loss(outputs, batch)
        return loss * math.nan if len(self.calls) == self.diverge_at else loss


@dataclass(kw_only=True)
class ShortSleeper(Sleeper):
    """Five samples to train on, three to validate on."""

    def dataset(self, input_size: int, request: DataRequest) -> Dataset[Any]:
        return Subset(SleepyData(), range(5 if request.split == "train" else 3))


def a_training(workload: Workload | None = None, num_epochs: int = 3, **options: Any) -> Training:
    workload = workload or Learner()
    names = ("batch_size", "num_workers", "channels_last")
    case_options = {"batch_size": workload.default_batch_size} | {
        name: options.pop(name) for name in names if name in options}
    return Training(small_case("train", workload=workload, **case_options), num_epochs,
                    **({"validation": "valid"} | options))


def train(writer: RunWriter, training: Training, observer: Silent | None = None) -> CaseEntry:
    """Train one case into the record; returns its entry."""
    with Interrupt() as interrupt:
        train_cases([training], writer, observer or Silent(), interrupt)
    entry = writer.entry(training.case.id)
    assert entry is not None
    return entry


def new_writer(out: Path) -> RunWriter:
    return RunWriter(out, "test", {"machine": {}, "software": {}, "options": {}})


def trained(out: Path, training: Training, observer: Silent | None = None) -> tuple[dict[str, Any], Run]:
    writer = new_writer(out)
    entry = train(writer, training, observer)
    writer.close("complete")
    return entry, load_run(writer.publish())


def weights_of(run: Run) -> dict[str, Tensor]:
    (entry,) = run.entries
    content: dict[str, Tensor] = torch.load(run.path / entry.passes.training.weights, weights_only=True)
    return content


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def values(run: Run, stage: str, metric: str) -> list[float]:
    rows = run.metrics
    return list(rows[(rows["stage"] == stage) & (rows["metric"] == metric)].sort_values("number")["value"])


class TestTime:
    def test_phases_are_those_of_known_sleeps_and_sum_to_the_wall(self, tmp_path: Path) -> None:
        training = a_training(ShortSleeper(), num_epochs=1)
        observer = Silent()
        begun = time.perf_counter()
        with slept() as sleeps:
            entry, run = trained(tmp_path, training, observer)
        spent_s = time.perf_counter() - begun
        awake_s = spent_s - sum(map(sum, sleeps.values()))
        rows = run.stages
        for stage, calls, phases in (("training", slice(0, 5), tuple(SLEEPS_S)),
                                     ("validation", slice(5, 8), ("data", "forward", "loss"))):
            of_stage = rows[rows["stage"] == stage].set_index("phase")["host_s"]
            assert set(of_stage.index) == {*phases, "other"}
            for phase in phases:
                assert len(sleeps[phase]) == (8 if phase in ("data", "forward", "loss") else 5)
                slept_s = sum(sleeps[phase][calls])
                assert slept_s <= of_stage[phase] <= slept_s + awake_s
            assert 0 <= of_stage["other"] <= awake_s
        assert rows["host_s"].sum() == pytest.approx(observer.epochs[0]["seconds"])
        assert entry.passes.training.setup_s + rows["host_s"].sum() < spent_s

    def test_an_epochs_samples_are_counted_where_its_time_is(self, tmp_path: Path) -> None:
        with slept() as sleeps:
            _, run = trained(tmp_path, a_training(ShortSleeper(), num_epochs=2))
        rows = run.stages[run.stages["stage"] != "checkpointing"]
        of_training = rows["stage"] == "training"
        for stage, count in ((rows[of_training], 5), (rows[~of_training], 3)):
            assert set(stage["num_samples"]) == set(stage["num_iterations"]) == {count}
            assert stage.groupby("number")["interval_frac"].nunique().tolist() == [1, 1]
            assert (stage["interval_frac"] > 0).all()
        assert sum(map(sum, sleeps.values())) < rows["host_s"].sum()

    def test_every_epoch_has_its_stages_and_checkpointing_takes_time(self, tmp_path: Path) -> None:
        _, run = trained(tmp_path, a_training(num_epochs=2))
        stages = run.stages.groupby(["stage", "number"])["host_s"].sum()
        assert set(stages.index) == {(stage, epoch) for stage in ("training", "validation", "checkpointing")
                                     for epoch in (1, 2)}
        assert (stages > 0).all()
        assert run.stages["device_s"].isna().all()


class TestWhatIsLearnt:
    def test_losses_are_means_over_samples_whatever_the_batches(self, tmp_path: Path) -> None:
        # 200 = 3 × 60 + 20; weights that are not trained make every stage's loss that of the initial model.
        training = a_training(batch_size=60, learning_rate=0.0, num_epochs=1)
        entry, run = trained(tmp_path, training)
        torch.manual_seed(0)
        model = Learner().model(None).eval()
        inputs, labels = training.parts(training.case.dataset())[1].tensors  # type: ignore[attr-defined]
        with torch.no_grad():
            outputs = model(inputs)
        assert values(run, "validation", "loss") == pytest.approx([functional.cross_entropy(outputs, labels).item()])
        assert values(run, "validation", "accuracy") == [(outputs.argmax(1) == labels).double().mean().item()]
        assert entry.passes.training.num_train_samples == 200
        assert entry.passes.training.num_valid_samples == 200

    def test_a_last_batch_of_one_sample_is_left_out_of_training_only(self, tmp_path: Path) -> None:
        entry, _ = trained(tmp_path, a_training(Learner(num_samples=101), num_epochs=1))
        facts = entry.passes.training
        assert (facts.num_train_samples, facts.num_valid_samples) == (100, 101)

    def test_it_learns_and_the_best_weights_are_those_of_the_best_epoch(self, tmp_path: Path) -> None:
        entry, run = trained(tmp_path, a_training(num_epochs=12))
        accuracies = values(run, "validation", "accuracy")
        assert accuracies[-1] > 0.8 > accuracies[0]
        best = entry.passes.training.best
        assert best == manifest_passes.Target("accuracy", max(accuracies), accuracies.index(max(accuracies)) + 1)
        model = Learner().model(None)
        model.load_state_dict(weights_of(run))
        inputs, labels = Learner().dataset(8, DataRequest(split="valid")).tensors  # type: ignore[attr-defined]
        assert (model.eval()(inputs).argmax(1) == labels).double().mean().item() == best.value

    def test_a_held_out_share_validates(self, tmp_path: Path) -> None:
        entry, _ = trained(tmp_path, a_training(validation=None, holdout_frac=0.25, num_epochs=1))
        facts = entry.passes.training
        assert (facts.num_train_samples, facts.num_valid_samples) == (150, 50)

    def test_it_starts_from_weights_of_a_file(self, tmp_path: Path) -> None:
        _, first = trained(tmp_path, a_training(num_epochs=12))
        path = first.path / first.manifest["cases"][0]["passes"]["training"]["weights"]
        _, second = trained(tmp_path, a_training(num_epochs=1, weights=path, learning_rate=0.0))
        assert values(second, "validation", "accuracy") == [max(values(first, "validation", "accuracy"))]

    def test_schedulers_step_once_an_epoch_and_the_rate_asked_for_is_where_they_start(self) -> None:
        trainer = Trainer(a_training(num_epochs=4, learning_rate=0.5), lambda *_: None)
        rates = []
        for epoch in (1, 2):
            rates.append(trainer.loop.optimizers[0].param_groups[0]["lr"])
            trainer.epoch(epoch)
        cosine = 0.5 * (1 + math.cos(math.pi / 4)) / 2
        assert rates[0] == 0.5
        assert rates[1] == pytest.approx(cosine)  # the first validation is the best so far


class TestTheEnd:
    @pytest.mark.parametrize("target", [Target("accuracy", 0.9), Target("loss", 0.4)])
    def test_it_stops_at_the_first_epoch_that_reaches_the_target(self, tmp_path: Path, target: Target) -> None:
        entry, run = trained(tmp_path, a_training(num_epochs=50, until=target))
        reached = values(run, "validation", target.metric)
        is_reached = [value >= 0.9 if target.metric == "accuracy" else value <= 0.4 for value in reached]
        assert is_reached == [False] * (len(reached) - 1) + [True]
        facts = entry.passes.training
        assert facts.until == manifest_passes.Target(target.metric, target.value, len(reached))
        assert (facts.num_epochs, facts.num_epochs_asked, entry.status) == (len(reached), 50, "ok")

    def test_a_target_that_is_not_reached(self, tmp_path: Path) -> None:
        entry, _ = trained(tmp_path, a_training(num_epochs=2, until=Target("accuracy", 1.1)))
        assert entry.passes.training.until == manifest_passes.Target("accuracy", 1.1, None)
        assert entry.passes.training.num_epochs == 2

    @pytest.mark.parametrize(("iteration", "where", "num_epochs"), [
        (3, "in iteration 3 of the training of epoch 1", 0),
        (8, "in iteration 4 of the validation of epoch 1", 0),
        (10, "in iteration 2 of the training of epoch 2", 1),
    ])
    def test_a_loss_that_is_no_number_ends_the_case_at_once(
        self, tmp_path: Path, iteration: int, where: str, num_epochs: int,
    ) -> None:
        entry, run = trained(tmp_path, a_training(Diverging(diverge_at=iteration)))
        assert (entry.status, entry.reason) == ("diverged", f"the loss is nan {where}")
        assert entry.passes.training.num_epochs == num_epochs
        assert set(run.stages["number"]) == set(range(1, num_epochs + 1))
        assert set(run.metrics["number"]) == set(range(1, num_epochs + 1))

    @pytest.mark.parametrize(("fail_in", "status"), [("memory", "oom"), ("forward", "error")])
    def test_a_case_that_fails_is_recorded_and_the_next_one_runs(
        self, tmp_path: Path, fail_in: str, status: str,
    ) -> None:
        writer = new_writer(tmp_path)
        failing = a_training(TwoLayers(fail_in=fail_in), num_epochs=1)
        with Interrupt() as interrupt:
            train_cases([failing, a_training(num_epochs=1)], writer, Silent(), interrupt)
        failed, ok = map(typed_entry, writer.manifest["cases"])
        assert (failed.status, ok.status) == (status, "ok")
        assert failed.requested_bytes == (2**57 if status == "oom" else None)
        assert failed.passes.training.status == "failed"
        assert failed.reason is not None
        assert "\n" not in failed.reason


RESUMED = [
    pytest.param({}, (2, "training", 2), id="in training"),
    pytest.param({}, (3, "validation", 1), id="in validation"),
    pytest.param({}, (1, "training", 1), id="before an epoch was whole"),
    pytest.param({"num_workers": 1}, (2, "training", 2), id="with a worker"),
    pytest.param({"until": Target("accuracy", 0.75)}, (2, "training", 1), id="with a target"),
]


class TestGoingOn:
    @pytest.mark.slow_variants
    @pytest.mark.parametrize(("options", "moment"), RESUMED)
    def test_what_was_interrupted_ends_as_if_it_had_not_been(
        self, tmp_path: Path, options: dict[str, Any], moment: tuple[int, str, int],
    ) -> None:
        training = a_training(num_epochs=5, **options)
        whole_entry, whole = trained(tmp_path, training)

        writer = new_writer(tmp_path)
        entry = train(writer, training, Silent(moment))
        assert (entry.status, entry.reason) == ("interrupted", "by SIGINT")
        assert entry.passes.training.num_epochs == moment[0] - 1
        partial = load_run(writer.directory, partial=True)
        assert set(partial.stages["number"]) == set(range(1, moment[0]))

        os.close(writer._lock)  # as the end of its process does
        again = RunWriter.reopen(writer.directory)
        entry = train(again, training)
        assert not list((again.directory / CHECKPOINTS).iterdir())
        again.close("complete")
        resumed = load_run(again.publish())
        assert same(weights_of(resumed), weights_of(whole))
        assert resumed.metrics.drop(columns="case").equals(whole.metrics.drop(columns="case"))
        facts = entry.passes.training
        assert facts.num_resumed == 1
        for fact in ("num_epochs", "best", "until", "weights"):
            assert getattr(facts, fact) == getattr(whole_entry.passes.training, fact)
        keys = ["stage", "number", "phase", "num_iterations", "num_samples"]
        assert resumed.stages[keys].equals(whole.stages[keys])

    def test_a_signal_while_it_is_taken_up_again_loses_nothing(self, tmp_path: Path) -> None:
        training = a_training(num_epochs=4)
        _, whole = trained(tmp_path, training)
        writer = new_writer(tmp_path)
        before = train(writer, training, Silent((3, "training", 1)))
        with Interrupt() as interrupt:
            os.kill(os.getpid(), signal.SIGINT)
            train_cases([training], writer, Silent(), interrupt)
        after = writer.entry(training.case.id)
        assert after is not None
        assert after.status == "interrupted"
        assert after.passes.training == msgspec.structs.replace(before.passes.training, num_resumed=1)
        assert set(load_run(writer.directory, partial=True).stages["number"]) == {1, 2}
        train(writer, training)
        writer.close("complete")
        assert same(weights_of(load_run(writer.publish())), weights_of(whole))

    def test_several_cases_go_on_where_they_were(self, tmp_path: Path) -> None:
        trainings = [a_training(batch_size=size, num_epochs=2) for size in (50, 100)]
        writer = new_writer(tmp_path)
        train(writer, trainings[0])
        train(writer, trainings[1], Silent((2, "training", 1)))
        assert list(writer.manifest["cases"][number]["status"] for number in (0, 1)) == ["ok", "interrupted"]

        os.close(writer._lock)  # as the end of its process does
        again, observer = RunWriter.reopen(writer.directory), Silent()
        with Interrupt() as interrupt:
            train_cases(trainings, again, observer, interrupt)
        assert len(observer.epochs) == 1
        again.close("complete")
        run = load_run(again.publish())
        assert list(run.cases["status"]) == ["ok", "ok"]
        assert list(run.stages.groupby("case")["number"].nunique()) == [2, 2]

    def test_finished_cases_are_not_run_again(self, tmp_path: Path) -> None:
        writer = new_writer(tmp_path)
        training = a_training(num_epochs=1)
        train(writer, training)
        observer = Silent()
        train(writer, training, observer)
        assert observer.epochs == []

    def test_best_weights_that_were_not_written_any_more_come_from_the_checkpoint(self, tmp_path: Path) -> None:
        """Killed between a checkpoint and the weights of the same epoch."""
        training = a_training(num_epochs=2)
        writer = new_writer(tmp_path)
        train(writer, training, Silent((2, "training", 1)))
        (path,) = (writer.directory / "weights").iterdir()
        before = torch.load(path, weights_only=True)
        path.unlink()
        train(writer, training, Silent((2, "training", 1)))
        assert same(torch.load(path, weights_only=True), before)

    def test_a_damaged_checkpoint_is_one_line(self, tmp_path: Path) -> None:
        writer = new_writer(tmp_path)
        train(writer, a_training(), Silent((2, "training", 1)))
        (checkpoint,) = (writer.directory / CHECKPOINTS).iterdir()
        content = checkpoint.read_bytes()
        for damaged in (b"", content[: len(content) // 2], b"x" * len(content)):
            checkpoint.write_bytes(damaged)
            with pytest.raises(UserError, match=r"is damaged \(\w+\): remove it to restart the training of its case"):
                train(writer, a_training())
        checkpoint.unlink()
        assert train(writer, a_training()).status == "ok"

    @pytest.mark.parametrize(("place", "value"), [
        (("progress", "epoch"), "two"), (("progress", "epoch"), -1), (("progress", "stages"), [{"stage": 3}]),
        (("progress", "metrics"), None), (("progress", "best"), {"metric": "loss"}), (("progress", "more"), 1),
        (("schedulers", 0, "step"), 3), (("schedulers", 0, "optimizer"), None), (("schedulers",), []),
        (("optimizers", 0, "param_groups", 0, "lr"), "much"), (("optimizers", 0, "param_groups"), []),
        (("optimizers", 0), 3), (("model",), {}), ((), [1]),
    ])
    def test_a_checkpoint_of_other_values_is_one_line(self, tmp_path: Path, place: tuple[Any, ...], value: Any) -> None:
        trainer = Trainer(a_training(), lambda *_: None)
        path = tmp_path / "checkpoint.pt"
        stage = {"stage": "training", "number": 1, "phase": "other", "host_s": 1.0, "device_s": None,
                 "num_iterations": 1, "num_samples": 1}
        write_checkpoint(path, trainer.loop, trainer.schedulers, Progress(1, [stage], [], None))
        assert read_checkpoint(path, trainer.loop, trainer.schedulers).stages == [stage]
        state = torch.load(path, weights_only=True)
        if place:
            part = state
            for key in place[:-1]:
                part = part[key]
            part[place[-1]] = value
        torch.save(state if place else value, path)
        with pytest.raises(UserError, match=r"is (damaged \(\w+\)|of another model): remove it to restart "):
            read_checkpoint(path, trainer.loop, trainer.schedulers)

    def test_a_checkpoint_of_another_model_is_one_line(self, tmp_path: Path) -> None:
        writer = new_writer(tmp_path)
        train(writer, a_training(), Silent((2, "training", 1)))
        with pytest.raises(UserError, match=r"is of another model: remove it to restart the training of its case"):
            train(writer, a_training(TwoLayers(name="learner", default_input_size=8, default_batch_size=50)))


@dataclass(kw_only=True)
class OwnWords(Learner):
    """Each split has a vocabulary of its own."""

    def dataset(self, input_size: int, request: DataRequest) -> Dataset[Any]:
        dataset = super().dataset(input_size, request)
        dataset.num_words = {"train": 12_345, "valid": 678}[request.split]  # type: ignore[attr-defined]
        return dataset


class TestChecks:
    def test_a_validation_of_other_words(self) -> None:
        message = (r"^synthetic \(valid\) has 678 words, the model is made for the 12,345 of train: validate on a "
                   r"share of that with --holdout 0\.1$")
        with pytest.raises(UserError, match=message):
            a_training(OwnWords()).check()
        replace(a_training(OwnWords()), validation=None, holdout_frac=0.3).check()

    def test_a_metric_that_nobody_knows(self) -> None:
        with pytest.raises(UserError, match=r"^--until: learner has no metric 'bleu': choose from loss, accuracy$"):
            a_training(until=Target("bleu", 30.0)).check()
        a_training(until=Target("accuracy", 0.5)).check()


def test_a_limit_of_batches_holds_in_training_and_validation(tmp_path: Path) -> None:
    entry = train(writer := new_writer(tmp_path), a_training(num_epochs=2, max_batches=1, batch_size=2))
    assert entry.status == "ok"
    assert entry.passes.training.num_train_samples == 2
    stages = load_run(writer.close("complete")).table("stages").query("stage in ('training', 'validation')")
    assert set(stages["num_iterations"]) == {1}
    assert set(stages["num_samples"]) == {2}
