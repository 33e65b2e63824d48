"""An allocation trace on fake CPU tensors as on CUDA: which operators are called, and which bytes they hold."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.torch_version import TorchVersion

from charact.datasets._common.request import DataRequest
from charact.execution.case import Case
from charact.execution.running_layer import RunningLayer
from charact.measure.memory_estimate.allocation_trace import AllocationTrace, Recorder
from charact.measure.memory_estimate.cuda_kernels import _inference_caches_weights, cuda_kernels, kernels_for
from charact.measure.memory_estimate.fake_program import FakeProgram
from charact.workload.registry import find_workload

AMPERE, HOPPER, VOLTA = (8, 0), (9, 0), (7, 0)
HALF = torch.bfloat16


def recorded(call: Callable[[], Any], capability: tuple[int, int] = AMPERE) -> tuple[AllocationTrace, Any]:
    """AllocationTrace of a call among fake tensors, and what it returned, which is alive."""
    recorder = Recorder(RunningLayer(nn.Module()))
    recorder.begin()
    with cuda_kernels(capability), recorder:
        outputs = call()
    return recorder.trace, outputs


def kept_bytes(trace: AllocationTrace) -> int:
    """What was made and not given back."""
    return sum(block.num_bytes for block in trace.blocks if block.birth is not None and block.death is None)


def called(trace: AllocationTrace) -> Counter[str]:
    return Counter(op.name.removeprefix("aten::") for op in trace.ops)


def test_dropout_keeps_a_mask_of_a_byte_a_number() -> None:
    with FakeTensorMode():
        x = torch.empty(1000, requires_grad=True)
        trace, _outputs = recorded(lambda: functional.dropout(x, 0.3))
    assert called(trace) == {"native_dropout": 1}
    assert kept_bytes(trace) == 4000 + 1000


@pytest.mark.parametrize(("p", "training"), [(0.3, False), (0.0, True)])
def test_dropout_that_drops_nothing_makes_nothing(p: float, training: bool) -> None:
    with FakeTensorMode():
        x = torch.empty(1000, requires_grad=True)
        trace, _outputs = recorded(lambda: functional.dropout(x, p, training))
    assert kept_bytes(trace) == 0


class SelfAttention(nn.Module):
    """That of BERT: four projections of width 768, 12 heads, dropout behind."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(768, 768) for _ in range(4))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        query, key, value = (each(x).view(*x.shape[:2], 12, 64).transpose(1, 2)
                             for each in (self.query, self.key, self.value))
        heads = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        outputs: Tensor = self.dropout(self.out(heads.transpose(1, 2).flatten(2)))
        return outputs


@pytest.mark.parametrize("masked", [False, True])
def test_attention_of_bert_base_keeps_what_it_does_on_a_gpu(masked: bool) -> None:
    """Query, key, value, heads and outputs, a mask of dropout, the sums of exponentials; two numbers of the seed.

    The heads' memory lies as the last projection reads it, so nothing is copied for that.
    """
    activation = 512 * 768 * 4
    with FakeTensorMode():
        layer, x = SelfAttention(), torch.empty(1, 512, 768)
        mask = torch.empty(1, 1, 1, 512, dtype=torch.bool) if masked else None
        trace, _outputs = recorded(lambda: layer(x, mask))
    assert called(trace)["_scaled_dot_product_efficient_attention"] == 1
    expected = 5 * activation + 512 * 768 + 12 * 512 * 4 + 2 * 8
    assert kept_bytes(trace) == expected + (512 * 4 if masked else 0)


def test_half_precision_takes_flash_on_ampere() -> None:
    with FakeTensorMode():
        heads = torch.empty(1, 12, 512, 64, dtype=HALF, requires_grad=True)
        trace, outputs = recorded(lambda: functional.scaled_dot_product_attention(heads, heads, heads))
        assert kept_bytes(trace) == 12 * 512 * 64 * 2 + 12 * 512 * 4 + 2 * 8 + 8
        backward, _ = recorded(outputs.sum().backward)
    assert called(backward)["_scaled_dot_product_flash_attention_backward"] == 1


def test_flash_is_given_widths_in_eights() -> None:
    with FakeTensorMode():
        heads = torch.empty(1, 12, 512, 60, dtype=HALF, requires_grad=True)
        trace, outputs = recorded(lambda: functional.scaled_dot_product_attention(heads, heads, heads))
    assert called(trace)["constant_pad_nd"] == 3
    assert outputs.shape == heads.shape


@pytest.mark.parametrize(("capability", "dtype", "width", "mask", "kernel"), [
    (AMPERE, torch.float32, 64, False, "efficient"),
    (AMPERE, torch.float32, 64, True, "efficient"),
    (AMPERE, HALF, 64, False, "flash"),
    (AMPERE, HALF, 64, True, "efficient"),
    (AMPERE, HALF, 512, False, "efficient"),  # too wide for flash
    (VOLTA, torch.float16, 64, False, "efficient"),
    (HOPPER, HALF, 64, True, "cudnn" if torch.__version__ >= "2.11" else "efficient"),
    (HOPPER, HALF, 256, False, "flash"),
    (HOPPER, torch.float32, 64, False, "efficient"),
    (AMPERE, torch.float32, 6, False, "math"),
    (VOLTA, torch.float32, 6, False, "efficient"),
    (AMPERE, HALF, 12, True, "math"),
    (AMPERE, torch.float64, 64, False, "math"),
])
def test_the_kernel_goes_by_device_type_width_and_mask(capability: tuple[int, int], dtype: torch.dtype, width: int,
                                                       mask: bool, kernel: str) -> None:
    with FakeTensorMode():
        heads = torch.empty(2, 4, 16, width, dtype=dtype)
        seen = torch.empty(2, 1, 1, 16, dtype=torch.bool) if mask else None
        assert kernels_for(capability, heads, heads, heads, seen)[0] == kernel
        trace, outputs = recorded(
            lambda: functional.scaled_dot_product_attention(heads, heads, heads, seen), capability)
        assert outputs.shape == heads.shape
    assert (called(trace)["bmm"] == 2) == (kernel == "math")
    assert (called(trace)[f"_scaled_dot_product_{kernel}_attention"] == 1) == (kernel != "math")


@pytest.mark.parametrize(("version", "kernel"), [("2.10.0", "flash"), ("2.11.0", "cudnn")])
def test_cudnn_is_preferred_from_the_version_that_bundles_a_new_one(version: str, kernel: str,
                                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", TorchVersion(version))
    heads = torch.empty(2, 4, 16, 64, dtype=HALF)
    assert kernels_for(HOPPER, heads, heads, heads, None)[0] == kernel


def test_rows_of_a_mask_are_aligned_for_the_efficient_kernel() -> None:
    with FakeTensorMode():
        heads = torch.empty(2, 4, 20, 64)
        mask = torch.empty(2, 1, 20, 20)
        trace, _outputs = recorded(lambda: functional.scaled_dot_product_attention(heads, heads, heads, mask))
    padded = next(op for op in trace.ops if op.name == "aten::constant_pad_nd")
    assert trace.blocks[padded.made[0]].num_bytes == 2 * 20 * 32 * 4


def test_multi_head_attention_of_pytorch_takes_the_same_kernels() -> None:
    with FakeTensorMode():
        layer, x = nn.MultiheadAttention(64, 4, dropout=0.1), torch.empty(10, 2, 64)
        trace, _outputs = recorded(lambda: layer(x, x, x, need_weights=False))
    assert called(trace)["_scaled_dot_product_efficient_attention"] == 1


@pytest.mark.parametrize(("cell", "reserve"), [(nn.LSTM, 736_000_000), (nn.GRU, 864_000_000)])
def test_a_recurrent_layer_keeps_what_cudnn_reserved_on_a_p100(cell: type[nn.RNNBase], reserve: int) -> None:
    with FakeTensorMode():
        layer: Any = cell(123, 320, num_layers=4)  # type: ignore[call-arg]
        x = torch.empty(1000, 25, 123)
        trace, _outputs = recorded(lambda: layer(x))
    (op,) = (op for op in trace.ops if op.name == "aten::_cudnn_rnn")
    assert trace.blocks[op.made[-1]].num_bytes == reserve


@pytest.mark.parametrize(("cell", "units", "options"), [
    (nn.LSTM, 5, {}), (nn.GRU, 6, {}), (nn.RNN, 1, {}), (nn.RNN, 1, {"nonlinearity": "relu"}),
    (nn.LSTM, 5, {"bidirectional": True}), (nn.LSTM, 5, {"batch_first": True, "bias": False}),
    (nn.LSTM, 5, {"proj_size": 8}),
])
def test_a_recurrent_layer_is_one_operator_each_way(cell: type[nn.RNNBase], units: int,
                                                    options: dict[str, Any]) -> None:
    directions = 1 + options.get("bidirectional", False)
    with FakeTensorMode():
        layer: Any = cell(20, 32, num_layers=2, **options)  # type: ignore[call-arg]
        x = torch.empty(7, 3, 20, requires_grad=True)
        trace, outputs = recorded(lambda: layer(x)[0])
        assert outputs.shape == (7, 3, options.get("proj_size", 32) * directions)
        backward, _ = recorded(outputs.sum().backward)
        gradients = [parameter.grad for parameter in layer.parameters()]
    assert called(trace)["_cudnn_rnn"] == called(backward)["_cudnn_rnn_backward"] == 1
    (op,) = (op for op in trace.ops if op.name == "aten::_cudnn_rnn")
    assert trace.blocks[op.made[-1]].num_bytes == 7 * 3 * 32 * directions * (2 * units + 1) * 4
    assert [gradient.shape for gradient in gradients] == [parameter.shape for parameter in layer.parameters()]
    assert x.grad is not None
    assert x.grad.shape == x.shape


def test_inference_reserves_nothing_and_is_taken_apart() -> None:
    with FakeTensorMode():
        layer = nn.LSTM(20, 32).eval()
        linear = nn.Linear(32, 8)
        x = torch.empty(7, 3, 20)

        def predict() -> Tensor:
            with torch.inference_mode():
                outputs: Tensor = linear(layer(x)[0])
                return outputs

        trace, _outputs = recorded(predict)
    assert called(trace)["_cudnn_rnn"] == called(trace)["addmm"] == 1
    assert called(trace)["linear"] == called(trace)["lstm"] == 0
    (op,) = (op for op in trace.ops if op.name == "aten::_cudnn_rnn")
    assert trace.blocks[op.made[-1]].num_bytes == 0


@pytest.mark.parametrize("call", [
    lambda x: functional.layer_norm(x, (8,)), lambda x: functional.softmax(x, 1),
    lambda x: functional.log_softmax(x, 1), lambda x: x.pow(2), lambda x: x.sum(0), lambda x: x.cumsum(0),
    torch.exp, torch.sum, torch.linalg.vector_norm,
])
def test_autocast_computes_in_fp32_what_it_does_on_cuda(call: Callable[[Tensor], Tensor]) -> None:
    with FakeTensorMode(), torch.autocast("cpu", dtype=HALF):
        low = torch.empty(4, 8, dtype=HALF, requires_grad=True)
        outputs = recorded(lambda: call(low))[1]
        assert outputs.dtype == torch.float32
        outputs.sum().backward()
        assert low.grad is not None
        assert low.grad.dtype == HALF
        counts = torch.empty(4, 8, dtype=torch.int64)
        assert recorded(lambda: counts.sum())[1].dtype == torch.int64


def test_einsum_converts_its_inputs_under_autocast_and_a_weight_once() -> None:
    with FakeTensorMode():
        x, weight = torch.empty(4, 8), torch.empty(8, 8, requires_grad=True)

        def twice() -> None:
            with torch.autocast("cpu", dtype=HALF):
                for _ in range(2):
                    assert torch.einsum("ni,oi->no", x, weight).dtype == HALF

        trace, _ = recorded(twice)
    assert called(trace)["_to_copy"] == 3
    assert kept_bytes(trace) == 0


@pytest.mark.parametrize(("dtype", "copies"), [(torch.float16, 0), (torch.bfloat16, 1)])
def test_only_fp16_becomes_fp32_within_a_softmax(dtype: torch.dtype, copies: int) -> None:
    with FakeTensorMode(), torch.autocast("cpu", dtype=dtype):
        x = torch.empty(4, 8, dtype=dtype, requires_grad=True)
        trace, outputs = recorded(lambda: functional.log_softmax(x, 1))
        assert outputs.dtype == torch.float32
        assert called(trace)["_to_copy"] == copies
        outputs.sum().backward()
        assert x.grad is not None
        assert x.grad.dtype == dtype


def test_the_cross_entropy_converts_after_its_softmax() -> None:
    with FakeTensorMode(), torch.autocast("cpu", dtype=HALF):
        x, target = torch.empty(4, 8, dtype=HALF, requires_grad=True), torch.empty(4, dtype=torch.int64)
        trace, loss = recorded(lambda: functional.cross_entropy(x, target))
        assert loss.dtype == torch.float32
    sizes = {op.name: trace.blocks[op.made[0]].num_bytes for op in trace.ops if op.made}
    assert (sizes["aten::_log_softmax"], sizes["aten::_to_copy"]) == (4 * 8 * 2, 4 * 8 * 4)


@torch.inference_mode()
def decorated(x: Tensor, weight: Tensor) -> Tensor:
    for _ in range(2):
        outputs = torch.mm(x, weight)
    return outputs


def test_inference_mode_caches_weights_as_this_pytorch_does() -> None:
    with FakeTensorMode(), torch.autocast("cpu", dtype=HALF):
        x, weight = torch.empty(4, 8, dtype=HALF), torch.empty(8, 8, requires_grad=True)
        trace, _outputs = recorded(lambda: decorated(x, weight))
        assert called(trace)["mm"] == 2
        assert called(trace)["_to_copy"] == (1 if _inference_caches_weights() else 2)
        assert torch.is_autocast_cache_enabled()


def test_autocast_makes_weights_of_recurrent_layers_anew() -> None:
    with FakeTensorMode(), torch.autocast("cpu", dtype=HALF):
        layer, x = nn.LSTM(8, 8, bias=False), torch.empty(2, 4, 8)
        trace, (outputs, _state) = recorded(lambda: layer(x))
        assert outputs.dtype == HALF
        reserve, weights, state = 2 * 4 * 8 * 5 * 2, 2 * 32 * 8 * 2, 4 * 8 * 2
        # Copies of two states and two new ones; a copy of the input, and the outputs.
        assert kept_bytes(trace) == reserve + weights + 4 * state + 2 * (2 * 4 * 8 * 2)
        recorded(outputs.sum().backward)
        assert all(parameter.grad.dtype == torch.float32 for parameter in layer.parameters())


def test_everything_is_as_before_afterwards() -> None:
    before, clear = torch._C._InferenceMode, torch.clear_autocast_cache

    def fail() -> None:
        assert torch._C._InferenceMode is not before
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        recorded(fail)
    assert torch._C._InferenceMode is before
    assert torch.clear_autocast_cache is clear
    x = torch.randn(4, 8)
    with torch.autocast("cpu", dtype=HALF):
        assert functional.layer_norm(x.to(HALF), (8,)).dtype == HALF
    recorder = Recorder(RunningLayer(nn.Module()))
    with recorder:
        functional.dropout(x)
    assert called(recorder.trace)["native_dropout"] == 0
    with FakeTensorMode():
        weight, state = torch.empty(32, 8), torch.empty(1, 4, 8)
        rnn = torch.ops.aten._cudnn_rnn
        assert rnn(torch.empty(2, 4, 8), [weight, weight], 2, weight, state, state, 2, 8, 0, 1, False, 0.0, True, False,
                   [], None)[3].numel() == 0


def test_a_program_is_recorded_among_them() -> None:
    """A language model's logarithms of probabilities are bf16 on a CPU, fp32 on CUDA."""
    case = Case(find_workload("rnn_lm").prepare(), 35, 20, "infer", "bf16", torch.device("cuda"), DataRequest())
    with cuda_kernels(AMPERE):
        there = FakeProgram(case).trace(case)
    here = FakeProgram(case).trace(case)
    num_bytes = [max(block.num_bytes for block in trace.blocks if block.phase == "forward") for trace in (there, here)]
    assert num_bytes == [35 * 20 * 33_278 * 4, 35 * 20 * 33_278 * 2]
    assert called(there)["_cudnn_rnn"] == 1
