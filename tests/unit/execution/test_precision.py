"""Precisions: the types that each leaves behind, what it sets for the while, and where it is refused."""

import contextlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support.forked import Server
from support.notes import Notes
from support.small import TwoLayers, small_case

from charact import load_run
from charact.core.errors import UserError
from charact.datasets._common.request import DataRequest
from charact.execution.case import Case
from charact.execution.interrupt import Interrupt
from charact.execution.loop import Loop
from charact.execution.precision import PRECISIONS, float32_products, quantize_weights, unsupported_reason
from charact.measure.memory_estimate.estimator import Estimator
from charact.measure.memory_estimate.fake_program import CannotEstimate
from charact.measure.memory_estimate.target_devices import this_device
from charact.measure.passes.runner import run_cases
from charact.measure.passes.timing import StopRule
from charact.record.reader import Run
from charact.record.schema import PRECISIONS as NAMES
from charact.record.writer import RunWriter
from charact.workload.registry import find_workload

FP32, BF16 = torch.float32, torch.bfloat16
OF_HARDWARE = [name for name in NAMES if name != "int8-weights"]
"""Precisions that a device may lack; 8-bit weights need a library instead."""


class TestTypes:
    @pytest.mark.parametrize(("precision", "weights", "outputs", "loss"), [
        ("fp32", FP32, FP32, FP32),
        ("bf16", FP32, BF16, FP32),  # autocast computes cross-entropy in float32
        ("pure-bf16", BF16, BF16, BF16),
    ])
    def test_of_a_training_iteration(
            self, precision: str, weights: torch.dtype, outputs: torch.dtype, loss: torch.dtype) -> None:
        loop = Loop(small_case(precision=precision))
        gradients: set[torch.dtype] = set()

        @contextlib.contextmanager
        def mark(phase: str) -> Iterator[None]:
            yield
            if phase == "backward":
                gradients.update(parameter.grad.dtype for parameter in loop.model.parameters()
                                 if parameter.grad is not None)

        step = loop.iteration(mark)
        assert step.loss is not None
        assert {parameter.dtype for parameter in loop.model.parameters()} == {weights}
        assert (step.outputs.dtype, step.loss.dtype, gradients) == (outputs, loss, {weights})
        assert (step.batch[0].dtype, step.batch[1].dtype) == (weights, torch.int64)

    @pytest.mark.parametrize(("precision", "outputs"), [("fp32", FP32), ("bf16", BF16), ("pure-bf16", BF16)])
    def test_of_a_prediction(self, precision: str, outputs: torch.dtype) -> None:
        step = Loop(small_case("infer", precision=precision)).iteration(lambda phase: contextlib.nullcontext())
        assert (step.outputs.dtype, step.loss) == (outputs, None)

    def test_the_loss_is_scaled_in_fp16_alone(self) -> None:
        assert [name for name, precision in PRECISIONS.items() if precision.scaled] == ["fp16"]
        assert not Loop(small_case(precision="bf16")).scaler.is_enabled()


class TestRefused:
    @pytest.mark.parametrize(("precision", "remedy"), [
        ("fp16", "use --precision bf16 or a CUDA device"), ("tf32", "use --precision fp32 or a CUDA device")])
    def test_on_a_cpu(self, precision: str, remedy: str) -> None:
        with pytest.raises(UserError, match=rf"^{precision} is .*{remedy}$"):
            small_case(precision=precision).check()

    @pytest.mark.parametrize("precision", ["fp32", "bf16", "pure-bf16"])
    def test_the_others_run_on_a_cpu(self, precision: str) -> None:
        small_case(precision=precision).check()

    @pytest.mark.parametrize(("capability", "refused"), [
        ((7, 5), {"tf32", "bf16", "pure-bf16"}), ((8, 0), set()), ((9, 0), set())])
    def test_on_gpus_before_ampere(
            self, monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], refused: set[str]) -> None:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        reasons = {name: unsupported_reason(name, torch.device("cuda")) for name in OF_HARDWARE}
        assert {name for name, reason in reasons.items() if reason} == refused
        assert all("this one has 7.5: use --precision fp32 or fp16" in (reasons[name] or "") for name in refused)

    @pytest.mark.parametrize("number", [(9, 0), (7, 0)])  # gfx90a, gfx700
    def test_on_rocm(self, monkeypatch: pytest.MonkeyPatch, number: tuple[int, int]) -> None:
        """Numbers of AMD's architectures are not compute capabilities."""
        monkeypatch.setattr(torch.version, "hip", "6.2")
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: number)
        refused = [name for name in OF_HARDWARE if unsupported_reason(name, torch.device("cuda"))]
        assert refused == ["tf32"]

    def test_channels_last_for_text(self) -> None:
        workload = find_workload("rnn_lm").prepare()
        case = Case(workload, 4, 2, "infer", "fp32", torch.device("cpu"), DataRequest(), channels_last=True)
        with pytest.raises(UserError, match=r"^--channels-last orders the axes of images, but rnn_lm reads none"):
            case.check()

    def test_compilation_without_a_compiler(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CXX", "no-such-compiler")
        small_case().check()
        with pytest.raises(UserError, match=r"needs a C\+\+ compiler, but there is no no-such-compiler: install one"):
            small_case(compiled=True).check()


def flags() -> tuple[str, bool]:
    return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32


@pytest.mark.parametrize(("name", "inside"), [
    ("fp32", ("highest", False)), ("tf32", ("high", True)), ("fp16", ("highest", False))])
@pytest.mark.parametrize("before", [("highest", True), ("high", False), ("medium", True)])
def test_products_are_set_for_the_while(
        name: str, inside: tuple[str, bool], before: tuple[str, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    found = flags()
    try:
        torch.set_float32_matmul_precision(before[0])
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", before[1])
        with float32_products(name):
            assert flags() == inside
        assert flags() == before
        with pytest.raises(ZeroDivisionError), float32_products(name):
            raise ZeroDivisionError
        assert flags() == before
    finally:
        torch.set_float32_matmul_precision(found[0])


_OF_PROGRAMS = """
import os
import torch
from charact.execution.precision import float32_products, float32_settings

def state():
    backends = torch.backends
    return [each.fp32_precision for each in (backends, backends.cuda.matmul, backends.cudnn, backends.cudnn.conv,
                                             backends.cudnn.rnn, backends.mkldnn, backends.mkldnn.matmul)]

def check(program):
    exec(program)
    before = state(), float32_settings()
    for name, wanted in (("fp32", ("ieee", "none")), ("tf32", ("tf32",))):
        with float32_products(name):
            assert torch.backends.cuda.matmul.fp32_precision in wanted, state()
            assert torch.backends.cudnn.conv.fp32_precision in wanted, state()
            assert torch.backends.cudnn.rnn.fp32_precision in wanted, state()
            assert float32_settings()["cudnn_allow_tf32"] == (name == "tf32")
        assert (state(), float32_settings()) == before, state()
    if not program:
        assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == ("highest", True)

# After the second program PyTorch's older functions raise.
for program in ("", "torch.backends.cuda.matmul.fp32_precision = 'tf32'",
                "torch.backends.cudnn.conv.fp32_precision = 'ieee'", "torch.backends.fp32_precision = 'tf32'",
                "torch.backends.fp32_precision = 'ieee'"):
    if not (child := os.fork()):  # each program finds the settings as they were
        check(program)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, program
"""


@pytest.mark.skipif(not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="torch is older than 2.9")
def test_a_program_may_have_set_the_precision_of_products(tmp_path: Path, server: Server) -> None:
    place = tmp_path / "place"
    place.mkdir()
    (place / "programs.py").write_text(_OF_PROGRAMS)
    done = server.charact("programs.py", cwd=place)
    assert done.returncode == 0, done.stderr


def test_a_case_that_fails_leaves_the_flags_as_they_were(tmp_path: Path) -> None:
    before = flags()
    record = run(tmp_path, [small_case(workload=TwoLayers(fail_in="forward"))])
    assert record.cases["status"][0] == "error"
    assert flags() == before


def run(tmp_path: Path, cases: list[Case]) -> Run:
    writer = RunWriter(tmp_path, "precision", {"machine": {}, "software": {}, "options": {}})
    with Interrupt() as interrupt:
        run_cases(cases, StopRule(max_iterations=6, max_seconds=1.0), writer, Notes(), interrupt)
    writer.close("complete")
    return load_run(writer.publish())


@pytest.mark.slow_variants
@pytest.mark.parametrize("mode", ["train", "infer"])
def test_pure_bf16_goes_through_every_pass(tmp_path: Path, mode: str) -> None:
    record = run(tmp_path, [small_case(mode, precision=precision) for precision in ("fp32", "pure-bf16")])
    case = SimpleNamespace(**dict(zip(("fp32", "bf16"), record.cases["case"], strict=True)))
    for passes in map(record.passes, record.cases["case"]):
        assert {name: facts["status"] for name, facts in passes.items()} == {
            "timing": "ok", "operators": "ok", "kernels": "skipped", "memory": "ok", "flop": "ok",
            "counters": "skipped"}
    flop = record.flop.groupby("case")["flop"].sum()
    forward = 2 * 64 * (512 * 256 + 256 * 10)
    # Backward: the weights' gradients of both layers, the activations' of the second only.
    assert flop[case.fp32] == flop[case.bf16] == forward * (1 if mode == "infer" else 2) + (
        0 if mode == "infer" else 2 * 64 * 256 * 10)
    held = record.memory.query("kind == 'peak'").set_index(["case", "category"])["bytes"]
    assert held[case.fp32, "weights"] == 4 * (512 * 256 + 256 * 10)
    assert held[case.bf16, "weights"] == held[case.fp32, "weights"] / 2
    if mode == "train":
        assert held[case.bf16, "optimizer_state"] == held[case.fp32, "optimizer_state"] / 2


class TestInt8Weights:
    NUM_WEIGHTS, NUM_ROWS = 512 * 256 + 256 * 10, 256 + 10

    def test_needs_torchao(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        with pytest.raises(UserError, match=r"^int8-weights needs torchao, .* not installed: pip install torchao$"):
            small_case("infer", precision="int8-weights").check()

    def test_training_is_refused(self) -> None:
        with pytest.raises(UserError, match=r"^int8-weights is for inference, .*: leave train out of --mode"):
            Loop(small_case(precision="int8-weights"))

    def test_training_is_refused_before_torchao_is_asked_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        with pytest.raises(UserError, match=r"^int8-weights is for inference, "):
            small_case(precision="int8-weights").check()

    def test_memory_is_not_estimated(self) -> None:
        with pytest.raises(CannotEstimate, match=r"in int8-weights cannot be estimated: run it with --measure$"):
            Estimator(this_device(torch.device("cpu"))).estimate(small_case("infer", precision="int8-weights"))

    def test_weights_are_integers_and_scales_and_flop_those_of_the_model(self, tmp_path: Path) -> None:
        pytest.importorskip("torchao")
        record = run(tmp_path, [small_case("infer", precision=name) for name in ("fp32", "int8-weights")])
        assert record.cases["status"].tolist() == ["ok", "ok"]
        assert record.cases["num_parameters"].tolist() == [self.NUM_WEIGHTS] * 2
        peaks = record.memory[record.memory["kind"] == "peak"].query("category == 'weights'")
        exact, rounded = peaks["bytes"]
        assert exact == 4 * self.NUM_WEIGHTS
        # torchao 0.18 also keeps a zero point of one byte for each row, although it is always 0.
        assert rounded in [self.NUM_WEIGHTS + num_bytes * self.NUM_ROWS for num_bytes in (4, 5)]
        assert record.flop.groupby("case")["flop"].sum().nunique() == 1

    def test_predictions_are_near_those_of_fp32(self) -> None:
        pytest.importorskip("torchao")
        exact, rounded = (Loop(small_case("infer", precision=name)).iteration(lambda phase: contextlib.nullcontext())
                          for name in ("fp32", "int8-weights"))
        error = (rounded.outputs - exact.outputs).norm() / exact.outputs.norm()
        assert 0 < error < 0.02

    def test_models_without_linear_layers(self) -> None:
        pytest.importorskip("torchao")
        with pytest.raises(UserError, match=r"quantizes linear layers, but the model has none"):
            quantize_weights(torch.nn.Conv2d(1, 1, 1))
