"""`charact run --passes`: each instrument has iterations of its own, and finds what it finds in `charact profile`."""

import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from support.forked import Server
from support.programs import num_iterations, only_record

from charact import Run

BATCH, FEATURES, WIDTH, CLASSES = 64, 512, 256, 10
WEIGHTS = 4 * (FEATURES * WIDTH + WIDTH * CLASSES)
INPUT = 4 * BATCH * FEATURES + 8 * BATCH
NUM_BATCHES = 20

START = f"""
import os, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
num_samples = {BATCH * NUM_BATCHES}
data = TensorDataset(torch.randn(num_samples, {FEATURES}), torch.randint(0, {CLASSES}, (num_samples,)))
loader = DataLoader(data, batch_size={BATCH}, num_workers=int(os.environ.get("WORKERS", 0)))
model = nn.Sequential(nn.Linear({FEATURES}, {WIDTH}, bias=False), nn.ReLU(), nn.Linear({WIDTH}, {CLASSES}, bias=False))
"""
TRAINING = START + """
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for epoch in range(int(sys.argv[1])):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        outputs = model(x)
        loss = -outputs.log_softmax(1).gather(1, y[:, None]).mean()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        right = sum((model(x).argmax(1) == y).sum().item() for x, y in loader)
    print(epoch, f"{loss.item():.6f}", right, flush=True)
"""
PREDICTION = START + """
with torch.inference_mode():
    print(sum(model(x).sum().item() for _ in range(3) for x, _ in loader))
"""
COMPILED = START + """
from torch._dynamo.testing import CompileCounter

counter = CompileCounter()
compiled = torch.compile(model, backend=counter)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(compiled(x), y).backward()
        optimizer.step()
print(counter.frame_count, torch._dynamo.utils.counters["stats"]["unique_graphs"])
"""
SEARCH = """
import torch
from torch import nn

class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.encoder = nn.Embedding(50, 8), nn.Linear(8, 16)
        self.decoder = nn.Linear(16, 16)

    def encode(self, ids):
        return self.encoder(self.embedding(ids)).mean(1)

    def forward(self, state):
        return self.decoder(state).tanh()

model = Translator().eval()
with torch.no_grad():
    for _ in range(60):
        state = model.encode(torch.randint(0, 50, (4, 10)))
        for _ in range(8):
            state = model(state)
"""
PAIR = """
import torch
from torch import nn

netG, netD = nn.Sequential(nn.Linear(8, 8)), nn.Sequential(nn.Linear(8, 1))
steps = [torch.optim.Adam(net.parameters()) for net in (netD, netG)]
for _ in range(30):
    fake = netG(torch.randn(4, 8))
    steps[0].zero_grad()
    (netD(torch.randn(4, 8)).mean() - netD(fake.detach()).mean()).backward()
    steps[0].step()
    steps[1].zero_grad()
    netD(fake).mean().backward()
    steps[1].step()
"""


def execute(*command: str, cwd: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command], cwd=cwd, capture_output=True, text=True, timeout=300, check=False,
                          env={**os.environ, **environment})


def charact_run(source: str, *options: str, cwd: Path, epochs: int = 3, bare: bool = False, **environment: str
                ) -> tuple[Run, str]:
    """Run a script watched, and bare to compare if asked for; returns the run, and what charact said."""
    (cwd / "script.py").write_text(source)
    script = ["script.py", str(epochs)]
    watched = execute("-m", "charact", "run", "--quiet", *options, *script, cwd=cwd, environment=environment)
    assert watched.returncode == 0, watched.stderr
    if bare:
        assert watched.stdout == execute(*script, cwd=cwd, environment=environment).stdout
    return only_record(cwd), watched.stderr


def statuses(run: Run, case: str) -> dict[str, str]:
    """Statuses of the passes, except `frames`, which depends on how long `data` and `other` took."""
    return {name: facts.status for name, facts in run.entry(case).passes.items() if name != "frames"}


def forked_run(server: Server, source: str, *options: str, cwd: Path, epochs: int = 3) -> tuple[Run, str]:
    """The same in forked children, which is quicker."""
    cwd.mkdir()
    (cwd / "script.py").write_text(source)
    watched = server.charact("run", "--quiet", *options, "script.py", epochs, cwd=cwd)
    assert watched.returncode == 0, watched.stderr
    return only_record(cwd), watched.stderr


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, server: Server) -> tuple[Run, str]:
    place = tmp_path_factory.mktemp("passes") / "place"
    return forked_run(server, TRAINING, "--passes", "counters,memory,operators", "--iterations", "14", cwd=place)


def test_by_default_passes_interrupt_the_timing_and_answer_all_questions(tmp_path: Path, server: Server) -> None:
    run, _ = forked_run(server, TRAINING, cwd=tmp_path / "place", epochs=5)
    assert set(run.cases["case"]) == {"script-train", "script-infer"}
    assert statuses(run, "script-train") == {
        "timing": "ok", "operators": "ok", "flop": "ok", "memory": "ok", "inspection": "ok", "kernels": "skipped"}
    passes = run.entry("script-train").passes
    used = [*passes.operators.iterations, *passes.memory.iterations, *passes.inspection.iterations]
    assert set(run.operators["dtype"].dropna()) == {"float32"}
    assert 8 <= min(used) < max(used) < 80
    # Two passes warm up for an iteration, one gives up one for a validation, and shares one with the timing.
    num_left_out = 5 * NUM_BATCHES - passes.timing.num_iterations - passes.timing.num_warmup_iterations
    assert len(used) + 2 <= num_left_out <= len(used) + 7
    assert num_iterations(run, "infer") > NUM_BATCHES
    assert run.flop["flop"].sum() > 0
    assert passes.flop.product_precision == "fp32"


class TestATraining:
    def test_nothing_is_said_but_where_the_run_is(self, trained: tuple[Run, str]) -> None:
        run, said = trained
        assert said == f"Wrote {run.path}\n"

    def test_each_pass_has_iterations_of_its_own_after_those_that_were_timed(self, trained: tuple[Run, str]) -> None:
        run, _ = trained
        assert statuses(run, "script-train") == {
            "timing": "ok", "operators": "ok", "flop": "ok", "memory": "ok", "counters": "ok", "kernels": "skipped"}
        passes = run.entry("script-train").passes
        assert passes.timing.num_warmup_iterations + passes.timing.num_iterations == 3 + 14
        # The timing ends with the 18th step; most passes then have one to get going. A validation comes after
        # the 20th, so that the iteration that contains it is given up.
        assert passes.operators.iterations == [19, 21, 22]
        assert passes.memory.iterations == [23]
        assert passes.counters.iterations == list(range(25, 35))
        ratio = passes.operators.iteration_s / passes.timing.median_s
        assert passes.operators.overhead_ratio == pytest.approx(ratio)
        train = run.iterations.query("case == 'script-train'")
        assert train["iteration"].nunique() == 14
        # Of the validations only those before the passes are timed, of which there are none.
        assert list(run.cases["case"]) == ["script-train"]

    def test_matrix_products_are_in_their_phase_and_layer(self, trained: tuple[Run, str]) -> None:
        calls: dict[tuple[str, str | None], float] = defaultdict(float)
        for row in trained[0].operators.itertuples():
            if row.operator == "aten::mm":
                calls[str(row.phase), str(row.layer)] += float(row.num_calls)  # type: ignore[arg-type]
        assert calls == {("forward", "0"): 1, ("forward", "2"): 1, ("backward", "0"): 1, ("backward", "2"): 2}

    def test_flop_are_those_of_the_products(self, trained: tuple[Run, str]) -> None:
        first, second = 2 * BATCH * FEATURES * WIDTH, 2 * BATCH * WIDTH * CLASSES
        flop = trained[0].flop.groupby("phase")["flop"].sum()
        assert flop["forward"] == first + second
        assert flop["backward"] == first + 2 * second  # the first layer needs no gradient of its inputs

    def test_a_loss_by_hand_is_found_in_the_gap(self, trained: tuple[Run, str]) -> None:
        phases = trained[0].operators.set_index("operator")["phase"]
        assert phases["aten::_log_softmax"] == "loss"
        assert phases["aten::_log_softmax_backward_data"] == "backward"
        assert set(trained[0].operators["phase"]) == {"data", "forward", "loss", "backward", "update"}

    def test_memory_is_what_is_worked_out_by_hand(self, trained: tuple[Run, str]) -> None:
        rows = trained[0].memory.query("kind == 'phase_peak'")
        held = {(row.phase, row.category): row.bytes for row in rows.itertuples()}
        for phase in ("data", "forward", "loss", "backward", "update"):
            assert held[phase, "weights"] == held[phase, "optimizer_state"] == WEIGHTS
        assert held["forward", "activations"] == 4 * BATCH * 2 * WIDTH
        assert held["forward", "input"] == INPUT
        # Those of the iteration before are there until `zero_grad`, which this program calls first of all.
        assert held["data", "gradients"] == WEIGHTS
        assert held["forward", "gradients"] == held["loss", "gradients"] == 0
        assert held["backward", "gradients"] == WEIGHTS
        peak = trained[0].memory.query("kind == 'peak'")["bytes"].sum()
        assert peak == trained[0].entry("script-train").passes.memory.peak_bytes

    def test_counters_layers_and_trace_are_there(self, trained: tuple[Run, str]) -> None:
        run, _ = trained
        whole = run.counters[run.counters["time_s"].isna()].set_index("counter")["value"]
        assert whole["rss_bytes"] > 1e7
        assert run.manifest["counters"]["host"]["rss_bytes"]["scope"] == "process"
        counted = run.entry("script-train").passes.counters
        assert counted.sources["host"].status == "ok"
        assert counted.sources["kineto"].reason == "kernels run on GPUs only"
        assert {"data", "forward", "backward", "update"} <= {phase for _, _, phase in counted.spans}
        assert list(run.layers["layer"]) == ["0", "1", "2"]
        (trace,) = (run.path / "trace").iterdir()
        assert trace.name == "script-train.pt.trace.json.gz"


def test_an_iteration_is_one_search_though_its_encoder_was_not_known_as_a_method_at_first(
        tmp_path: Path, server: Server) -> None:
    run, _ = forked_run(server, SEARCH, "--passes", "operators,memory", "--iterations", "30", cwd=tmp_path / "place")
    passes = run.entry("script-infer").passes
    assert (passes.operators.status, passes.memory.status, passes.timing.num_iterations) == ("ok", "ok", 30)
    products = run.operators.query("operator in ('aten::addmm', 'aten::mm')")
    assert products["num_calls"].sum() == pytest.approx(1 + 8)  # of each iteration: encoder and decoder


@pytest.mark.slow
def test_a_program_that_only_predicts_has_them_too(tmp_path: Path) -> None:
    run, _ = charact_run(PREDICTION, "--passes", "operators,memory", "--iterations", "10", cwd=tmp_path)
    assert statuses(run, "script-infer") == {"timing": "ok", "operators": "ok", "flop": "ok", "memory": "ok",
                                          "kernels": "skipped"}
    products = run.operators.query("operator == 'aten::mm'")
    assert set(zip(products["phase"], products["layer"], products["num_calls"], strict=True)) == {
        ("forward", "0", 1.0), ("forward", "2", 1.0)}
    peak = run.memory.query("kind == 'peak'").set_index("category")["bytes"]
    assert peak["weights"] == WEIGHTS
    assert peak["input"] == INPUT


@pytest.mark.slow
def test_layers_of_several_models_bear_their_names(tmp_path: Path) -> None:
    run, _ = charact_run(PAIR, "--passes", "operators", "--iterations", "10", cwd=tmp_path)
    forward = run.operators.query("phase == 'forward' and operator == 'aten::addmm'")
    assert dict(zip(forward["layer"], forward["num_calls"], strict=True)) == {"netG.0": 1.0, "netD.0": 3.0}
    assert set(run.layers["layer"]) == {"netG.0", "netD.0"}


@pytest.mark.slow
def test_a_compiled_model_is_compiled_no_oftener_and_has_no_layers(tmp_path: Path) -> None:
    run, _ = charact_run(COMPILED, "--passes", "operators,memory", "--iterations", "10", cwd=tmp_path, bare=True)
    assert statuses(run, "script-train") == {"timing": "ok", "operators": "ok", "flop": "skipped", "memory": "ok",
                                          "kernels": "skipped"}
    assert run.operators["layer"].isna().all()
    assert run.operators.query("operator == 'aten::mm'")["num_calls"].sum() == 5


@pytest.mark.slow
def test_workers_that_are_forked_during_a_pass_are_left_alone(tmp_path: Path) -> None:
    run, said = charact_run(TRAINING, "--passes", "operators,memory", "--iterations", "14", cwd=tmp_path, bare=True,
                            WORKERS="1")
    assert set(statuses(run, "script-train").values()) == {"ok", "skipped"}
    assert said == f"Wrote {run.path}\n"


@pytest.mark.slow
def test_a_program_that_ends_too_early_tells_so(tmp_path: Path) -> None:
    run, _ = charact_run(TRAINING, "--passes", "operators,memory", "--iterations", "16", cwd=tmp_path, epochs=1)
    passes = run.entry("script-train").passes
    assert passes.timing.num_iterations == 16
    assert [passes.operators.status, passes.memory.status, passes.kernels.status] == ["failed", "skipped", "skipped"]
    assert passes.operators.reason.startswith("the program ended before it had run enough iterations")
    assert run.operators.empty
    assert not list(run.path.glob("trace/*"))


@pytest.mark.slow
def test_fifty_iterations_are_timed_before_other_passes(tmp_path: Path) -> None:
    run, _ = charact_run(TRAINING, "--passes", "timing,counters", "--stop", cwd=tmp_path, epochs=4)
    assert num_iterations(run) == 50
    assert statuses(run, "script-train")["counters"] == "ok"
    assert run.manifest["ending"] == "measured the requested number of iterations"
