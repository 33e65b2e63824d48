"""The memory pass of programs: where its iteration begins, and tensors that no module or optimizer holds."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.data import DataLoader, TensorDataset

from charact.measure.passes.memory_pass import BlockOwners
from charact.measure.script.session import EnoughMeasured, Plan, Session
from charact.measure.script.spans.event_log_reader import EventLogReader

BATCH, FEATURES, WIDTH = 64, 128, 256
DATA = 4 * 20 * BATCH * FEATURES
INPUT = 4 * BATCH * FEATURES
WEIGHTS = 4 * FEATURES * WIDTH
ACTIVATIONS = 4 * BATCH * WIDTH


@pytest.fixture
def model() -> nn.Module:
    return nn.Linear(FEATURES, WIDTH, bias=False)


def memory_pass(directory: Path, step: Callable[[Any], Any]) -> dict[str, dict[str, float]]:
    """Bytes by phase and category at the peak of each phase of a program that steps over a loader's batches."""
    loader = DataLoader(TensorDataset(torch.zeros(20 * BATCH, FEATURES)), batch_size=BATCH)
    session = Session(directory, Plan(iterations=2, stop=True, passes=("memory",)))
    session.start()
    session._patches.context.events.any_optimizer = False  # other tests have made some

    def train() -> None:
        for (batch,) in loader:
            step(batch)

    with pytest.raises(EnoughMeasured):
        train()
    session.close("to its end")
    (found,) = [note for note in EventLogReader(directory).notes() if note["note"] == "pass"]
    assert found["status"] == "ok", found["reason"]
    peaks: dict[str, dict[str, float]] = defaultdict(dict)
    for row in found["tables"]["memory"]:
        if row["kind"] == "phase_peak":
            peaks[row["phase"]][row["category"]] = row["bytes"]
    return peaks


def test_an_iteration_without_an_optimizer_begins_at_its_fetch(tmp_path: Path, model: nn.Module) -> None:
    (weight,) = model.parameters()

    def step(batch: torch.Tensor) -> None:
        model(batch).square().sum().backward()
        with torch.no_grad():
            weight.sub_(0.1 * weight.grad)
        weight.grad = None

    others = held(model, others=True)["unknown"]  # of other tests in this process
    peaks = memory_pass(tmp_path, step)
    assert peaks["forward"] == {"weights": WEIGHTS, "gradients": 0, "optimizer_state": 0, "activations": ACTIVATIONS,
                                "temporary": 0, "input": INPUT, "workspaces": 0, "unknown": others + DATA}
    # Kept for the backward, and with the loss; the iteration began before the forward.
    assert peaks["backward"]["activations"] == ACTIVATIONS + 4


def test_an_inference_begins_at_its_fetch(tmp_path: Path, model: nn.Module) -> None:
    with torch.inference_mode():
        peaks = memory_pass(tmp_path, model)
    assert peaks["forward"]["input"] == INPUT
    assert peaks["forward"]["activations"] == ACTIVATIONS


def test_tensors_that_nobody_owns_are_unknown(tmp_path: Path, model: nn.Module) -> None:
    others = held(model, others=True)["unknown"]
    copies = [one.detach().clone() for one in (*model.parameters(), *model.parameters())]  # an average, and a momentum
    with torch.no_grad():
        peaks = memory_pass(tmp_path, model)
    assert peaks["forward"]["weights"] == WEIGHTS
    assert peaks["forward"]["unknown"] == others + DATA + len(copies) * WEIGHTS


def held(*models: nn.Module, others: bool = False) -> dict[str, int]:
    owners = BlockOwners(torch.device("cpu"), models, [], others=others)
    owners.begin()
    owners.end()
    bytes_by_category: Counter[str] = Counter()
    for block in owners.before:
        bytes_by_category[block.category] += block.num_bytes
    return bytes_by_category


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_tensors_inside_wrappers_and_sparse_tensors_are_found() -> None:
    holder = nn.Module()
    holder.weight = nn.Parameter(TwoTensor(torch.ones(10), torch.ones(10)))
    holder.register_buffer("compressed", torch.eye(5).to_sparse_csr())
    compressed = holder.compressed
    parts = compressed.crow_indices(), compressed.col_indices(), compressed.values()
    assert held(holder)["weights"] == 2 * 40 + sum(part.untyped_storage().nbytes() for part in parts)


def test_a_wrapped_weight_does_not_fail_the_pass(tmp_path: Path) -> None:
    weight = nn.Parameter(TwoTensor(torch.ones(FEATURES, 8), torch.ones(FEATURES, 8)))

    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = weight

        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            return batch @ self.weight.a

    with torch.no_grad():
        assert memory_pass(tmp_path, Wrapped())["forward"]["weights"] == 2 * 4 * FEATURES * 8


@pytest.fixture
def one_process() -> Iterator[None]:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("one_process")
def test_a_distributed_tensor_is_found() -> None:
    holder = nn.Module()
    mesh = init_device_mesh("cpu", (1,))
    holder.weight = nn.Parameter(distribute_tensor(torch.ones(10), mesh, [Shard(0)]))
    assert held(holder)["weights"] == 40


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize(("as_view", "num_bytes"), [(False, WEIGHTS), (True, 0)])
def test_buckets_of_data_parallel_training_are_buffers(model: nn.Module, as_view: bool, num_bytes: int) -> None:
    parallel = DistributedDataParallel(model, gradient_as_bucket_view=as_view)
    unknown_bytes = held(model, others=True)["unknown"]
    found = held(parallel, others=True)
    assert (found.get("communication_buffers", 0), found["unknown"]) == (num_bytes, unknown_bytes)
