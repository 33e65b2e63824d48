"""Memory estimates of functions with all that people put into theirs: devices, conversions, autocast, libraries."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from charact import memory
from charact.core.errors import UserError
from charact.measure.memory_estimate.cuda_kernels import cuda_kernels
from charact.measure.memory_estimate.function_trace import trace_function

Step = Callable[[], Any]


def net(width: int = 64) -> nn.Module:
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))


def weight_bytes(build: Callable[[], Step]) -> int:
    """Bytes of the weights in an estimate for a GPU."""
    with cuda_kernels((8, 0)):
        trace = trace_function(build, "build", on_cuda=True)
    return sum(block.num_bytes for block in trace.blocks if block.birth is None and block.category == "weights")


def peak(build: Callable[[], Step]) -> int:
    return memory.estimate(build, device="a100-80gb").peak_bytes


NUM_WEIGHTS = 64 * 64 + 64 + 64 * 10 + 10


@pytest.mark.parametrize("convert", [
    lambda model: model.to(torch.bfloat16), lambda model: model.half(), lambda model: model.to("cuda", torch.float16),
    lambda model: model.cuda().bfloat16(),
])
def test_a_converted_model_has_weights_of_its_type(convert: Callable[[nn.Module], nn.Module]) -> None:
    def build() -> Step:
        model = convert(net())
        dtype = next(model.parameters()).dtype
        inputs = torch.randn(8, 64, device="cuda", dtype=dtype)
        optimizer = torch.optim.AdamW(model.parameters())

        def step() -> None:
            model(inputs).sum().backward()
            assert all(parameter.grad is not None and parameter.grad.dtype == dtype for parameter in model.parameters())
            optimizer.step()
            optimizer.zero_grad()

        return step

    assert weight_bytes(build) == 2 * NUM_WEIGHTS


def test_shared_weights_stay_shared_when_converted() -> None:
    def build() -> Step:
        first, second = nn.Linear(32, 32, bias=False), nn.Linear(32, 32, bias=False)
        second.weight = first.weight
        model, inputs = nn.Sequential(first, second).bfloat16(), torch.randn(4, 32, dtype=torch.bfloat16)
        assert first.weight is second.weight
        return lambda: model(inputs).sum().backward()

    assert weight_bytes(build) == 2 * 32 * 32


def test_a_weight_that_was_replaced_is_not_counted() -> None:
    def build() -> Step:
        embedding, head = nn.Embedding(100, 32), nn.Linear(32, 100, bias=False)
        head.weight = embedding.weight
        tokens = torch.randint(0, 100, (4,))
        return lambda: head(embedding(tokens)).sum().backward()

    assert weight_bytes(build) == 4 * 100 * 32


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_of_cuda_is_in_effect_without_a_gpu(dtype: torch.dtype) -> None:
    seen = []

    def build() -> Step:
        model, inputs = net().cuda(), torch.randn(8, 64, device=torch.device("cuda", 0))
        targets = torch.randint(0, 10, (8,), device="cuda")
        optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda")

        def step() -> None:
            with torch.autocast("cuda", dtype=dtype):
                outputs = model(inputs)
                loss = functional.cross_entropy(outputs, targets)
            seen.append(outputs.dtype)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            torch.cuda.synchronize()

        return step

    assert peak(build) > 0
    assert seen == [dtype, dtype]


def test_optimizers_update_all_weights_at_once_as_on_a_gpu() -> None:
    """A foreach update has temporary tensors of the size of all weights; a loop, of one."""
    def build(foreach: bool | None) -> Callable[[], Step]:
        def make() -> Step:
            model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(8)))
            optimizer, inputs = torch.optim.AdamW(model.parameters(), foreach=foreach), torch.randn(2, 512)

            def step() -> None:
                model(inputs).sum().backward()
                optimizer.step()

            return step

        return make

    by_default, at_once, one_by_one = (peak(build(foreach)) for foreach in (None, True, False))
    assert by_default == at_once > one_by_one + 6 * 512 * 512 * 4


def test_initializations_need_no_values() -> None:
    def build() -> Step:
        model = net()
        for parameter in model.parameters():
            nn.init.trunc_normal_(parameter, std=0.02)
            nn.init.trunc_normal_(parameter, 0.0, 1.0, -0.1, 0.1)
        weight = torch.empty(6, 4)
        for initialize in (nn.init.xavier_uniform_, nn.init.kaiming_normal_, nn.init.orthogonal_):
            initialize(weight)
        inputs = torch.randn(8, 64)
        return lambda: model(inputs)

    assert weight_bytes(build) == 4 * NUM_WEIGHTS


def test_a_copied_model_has_its_own_weights() -> None:
    def build() -> Step:
        model = net()
        average, inputs = copy.deepcopy(model), torch.randn(8, 64)

        def step() -> None:
            model(inputs).sum().backward()
            with torch.no_grad():
                for mean, parameter in zip(average.parameters(), model.parameters(), strict=True):
                    mean.lerp_(parameter, 0.1)

        return step

    assert weight_bytes(build) == 2 * 4 * NUM_WEIGHTS


def test_layers_that_copy_themselves_and_checkpoints_work() -> None:
    def build() -> Step:
        model = nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), 2)
        inputs = torch.randn(2, 16, 64, requires_grad=True)
        return lambda: checkpoint(model, inputs, use_reentrant=False).sum().backward()

    assert peak(build) > 0


@pytest.mark.parametrize("place", [
    lambda model, inputs: model.to(0)(inputs.to(0)), lambda model, inputs: model.to(device=0)(inputs.to(device=0)),
    lambda model, inputs: model.cuda(0)(inputs.to(torch.device(0))),
    lambda model, inputs: model(torch.randn(8, 64, device=0)), lambda model, inputs: model(inputs.to(0, torch.float32)),
    lambda model, inputs: model(inputs.new_empty((8, 64), device=torch.cuda.current_device())),
    lambda model, inputs: model(inputs.to("cuda" if torch.cuda.is_available() else "none")),
])
def test_a_device_may_be_named_by_its_index(place: Callable[[nn.Module, Tensor], Tensor]) -> None:
    def build() -> Step:
        model, inputs = net(), torch.randn(8, 64)
        outputs = place(model, inputs)
        assert outputs.shape == (8, 10)
        return lambda: model(inputs)

    assert weight_bytes(build) == 4 * NUM_WEIGHTS


def test_a_program_may_ask_for_cuda() -> None:
    before = torch.cuda.is_available(), torch.cuda.device_count()

    def build() -> Step:
        assert torch.cuda.is_available()
        assert torch.cuda.device_count() == 1
        torch.cuda.set_device(0)
        torch.cuda.manual_seed_all(0)
        model, inputs = net(), torch.randn(8, 64)
        optimizer = torch.optim.AdamW(model.parameters())

        def step() -> None:
            with torch.random.fork_rng():
                model(inputs).sum().backward()
            optimizer.step()

        return step

    assert peak(build) > 0
    assert (torch.cuda.is_available(), torch.cuda.device_count()) == before


def test_transformers_does_not_remember_that_cuda_is_available() -> None:
    utils = pytest.importorskip("transformers.utils")
    before = utils.is_torch_cuda_available()
    utils.is_torch_cuda_available.cache_clear()

    def build() -> Step:
        assert utils.is_torch_cuda_available()
        model, inputs = net(), torch.randn(8, 64)
        return lambda: model(inputs)

    assert peak(build) > 0
    assert utils.is_torch_cuda_available() == before


def calling(call: Callable[[], Any]) -> Callable[[], Step]:
    """A program with a call that no CPU can answer."""
    def build() -> Step:
        call()
        return lambda: None

    return build


OF_CUDA = tuple(map(calling, (
    lambda: torch.cuda.get_device_properties(0), lambda: torch.cuda.Event(enable_timing=True), torch.cuda.Stream,
    lambda: torch.ones(1).type("torch.cuda.FloatTensor"), lambda: torch.cuda.FloatTensor(3), torch.cuda.CUDAGraph,
    lambda: torch.cuda.device(0).__enter__(), torch.cuda.current_stream, torch.cuda.mem_get_info,
    lambda: torch.Generator("cuda"), lambda: torch.cuda.nvtx.range_push("step"),
)))


def of_compiler() -> Step:
    model = torch.compile(net())
    return lambda: model(torch.randn(8, 64))


def of_module_compiler() -> Step:
    model = net()
    model.compile()
    return lambda: model(torch.randn(8, 64))


@torch.compile(backend="eager")
def compiled_before(model: nn.Module, inputs: Tensor) -> Tensor:
    outputs: Tensor = model(inputs)
    return outputs


def of_function_compiled_before() -> Step:
    model, inputs = net(), torch.randn(8, 64)
    return lambda: compiled_before(model, inputs)


def of_value() -> Step:
    model = net()
    return lambda: model(torch.randn(8, 64)).sum().item()


@pytest.mark.parametrize(("build", "reason"), [
    (of_compiler, "it calls torch.compile"), (of_module_compiler, "it calls torch.compile"),
    (of_function_compiled_before, "its function compiled_before is compiled by torch.compile"),
    (of_value, "depends on values"),
    *(pytest.param(build, r"calls CUDA's runtime, which this machine does not have \(line \d+ of test_function",
                   marks=pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU"))
      for build in OF_CUDA),
])
def test_what_cannot_be_estimated_is_named_in_a_line(build: Callable[[], Step], reason: str) -> None:
    with pytest.raises(UserError, match=reason) as caught:
        memory.estimate(build, device="a100-80gb")
    assert "\n" not in str(caught.value)


def test_a_function_that_ran_compiled_is_named_too() -> None:
    """Its code is in the compiler's cache."""
    compiled_before(net(), torch.randn(8, 64))
    with pytest.raises(UserError, match="its function compiled_before is compiled"):
        memory.estimate(of_function_compiled_before, device="cpu")
    assert compiled_before(net(), torch.randn(4, 64)).shape == (4, 10)  # the compiler works again


def test_cuda_devices_are_an_error_of_a_cpu_estimate() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")

    def build() -> Step:
        model = net().cuda()
        return lambda: model(torch.randn(8, 64))

    with pytest.raises(UserError, match="calls CUDA's runtime"):
        memory.estimate(build, device="cpu")


def tiny(name: str, **more: Any) -> tuple[Any, str]:
    transformers = pytest.importorskip("transformers")
    layers = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    model, options, inputs = {
        "bert": ("BertForMaskedLM", layers | {"vocab_size": 1000}, "input_ids"),
        "llama": ("LlamaForCausalLM", layers | {"vocab_size": 1000, "num_key_value_heads": 2}, "input_ids"),
        "gpt2": ("GPT2LMHeadModel", {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 1000, "bos_token_id": 0,
                                     "eos_token_id": 0}, "input_ids"),
        "vit": ("ViTForImageClassification", layers, "pixel_values"),
        "t5": ("T5ForConditionalGeneration", {"d_model": 64, "d_kv": 16, "num_layers": 2, "num_heads": 4, "d_ff": 128,
                                              "vocab_size": 1000, "decoder_start_token_id": 0}, "input_ids"),
    }[name]
    created = getattr(transformers, model)
    return created(created.config_class(**options, **more)), inputs


@pytest.mark.parametrize("name", ["bert", "llama", "gpt2", "vit", "t5"])
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)])
def test_models_of_hugging_face_are_created_and_trained(name: str, dtype: torch.dtype) -> None:
    def build() -> Step:
        model, inputs = tiny(name)
        model = model.to("cuda", dtype)
        tokens = torch.randint(0, 1000, (2, 64), device="cuda")
        given = {"input_ids": {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens},
                 "pixel_values": {"pixel_values": torch.randn(2, 3, 224, 224, dtype=dtype),
                                  "labels": torch.randint(0, 2, (2,))}}[inputs]
        optimizer = torch.optim.AdamW(model.parameters())

        def step() -> None:
            model(**given).loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    composition = memory.estimate(build, device="a100-80gb").composition
    weights, state = (composition.loc[composition["category"] == category, "bytes"].sum()
                      for category in ("weights", "optimizer_state"))
    assert weights > 0
    assert state >= 2 * weights * 0.9


def test_a_full_mask_of_hugging_face_needs_no_memory() -> None:
    """A decoder then computes the causal mask in the kernel, for which fake tensors would not qualify."""
    def operators(mask: bool) -> set[str]:
        def build() -> Step:
            model, _ = tiny("llama")
            model.bfloat16()
            tokens = torch.randint(0, 1000, (2, 64))
            full = torch.ones_like(tokens) if mask else None
            return lambda: model(input_ids=tokens, attention_mask=full, labels=tokens).loss.backward()

        with cuda_kernels((8, 0)):
            return {op.name for op in trace_function(build, "build", on_cuda=True).ops}

    for mask in (False, True):
        assert "aten::_scaled_dot_product_flash_attention" in operators(mask)


def test_gradients_of_unused_layers_do_not_count() -> None:
    def loss(x: Tensor) -> Tensor:
        return x.sum()

    def build() -> Step:
        used, unused, inputs = nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False), torch.randn(2, 64)
        return lambda: (unused, loss(used(inputs)).backward())

    with cuda_kernels((8, 0)):
        trace = trace_function(build, "build", on_cuda=True)
    assert sum(block.num_bytes for block in trace.blocks if block.category == "gradients") == 64 * 64 * 4
