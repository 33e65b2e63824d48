"""Generation with a user's model in Hugging Face's manner: its words are those without a cache, at any place."""

import contextlib
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from charact.core.errors import UserError
from charact.datasets._common.request import DataRequest
from charact.execution.case import cases_of
from charact.execution.loop import Loop
from charact.workload.generation import Generator
from charact.workload.user_model.generation import check_inputs, model_generator
from charact.workload.user_model.input_spec import parse_input_spec
from charact.workload.user_model.model import own_model

NUM_LAYERS, NUM_HEADS, NUM_KV_HEADS, WIDTH, VOCABULARY = 2, 4, 2, 32, 50
BATCH, LENGTH, NUM_OUTPUTS = 3, 5, 7
SIZES = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": 64, "num_hidden_layers": NUM_LAYERS,
         "num_attention_heads": NUM_HEADS, "num_key_value_heads": NUM_KV_HEADS, "max_position_embeddings": 16,
         "initializer_range": 1.0, "bos_token_id": None, "eos_token_id": None}
SPEC = parse_input_spec("input_ids=int64[50] S")
MASKED = parse_input_spec("input_ids=int64[50] S, attention_mask=int64[1:2] S, labels=int64[50] S")


class Plain(nn.Module):
    """A layer of attention in plain torch, whose cache is a tuple of keys and values, and its outputs a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(16, WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor, past_key_values: tuple[Tensor, Tensor] | None = None) -> dict[str, Any]:
        first = 0 if past_key_values is None else past_key_values[0].shape[1]
        x = self.words(ids) + self.places(first + torch.arange(ids.shape[1]))
        keys, values = self.key(x), self.value(x)
        if past_key_values is not None:
            keys, values = torch.cat((past_key_values[0], keys), 1), torch.cat((past_key_values[1], values), 1)
        outputs = functional.scaled_dot_product_attention(self.query(x), keys, values, is_causal=first == 0)
        return {"logits": self.head(outputs), "past_key_values": (keys, values)}


class LogitsAlone(nn.Module):
    """A model without a cache, which returns its logits."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = Plain()

    def forward(self, input_ids: Tensor) -> Tensor:
        logits: Tensor = self.plain(input_ids)["logits"]
        return logits


class NoLogits(nn.Module):
    """A model of hidden states."""

    def forward(self, input_ids: Tensor, past_key_values: Any = None) -> dict[str, Any]:
        return {"hidden": input_ids[..., None].float(), "past_key_values": (input_ids,)}


class KeepsNothing(nn.Module):
    """A model that takes a cache and returns none."""

    def forward(self, input_ids: Tensor, past_key_values: Any = None) -> dict[str, Any]:
        return {"logits": torch.zeros(*input_ids.shape, VOCABULARY)}


def llama(**options: Any) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES | options))  # type: ignore[no-any-return]


def gpt2() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    model: nn.Module = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=NUM_LAYERS, n_head=NUM_HEADS, n_positions=16,
        initializer_range=1.0, bos_token_id=None, eos_token_id=None))
    return model


def mistral(window: int = 4) -> nn.Module:
    """Attention to the last 4 words."""
    transformers = pytest.importorskip("transformers")
    model: nn.Module = transformers.MistralForCausalLM(transformers.MistralConfig(sliding_window=window, **SIZES))
    return model


def wide_mistral() -> nn.Module:
    """A window that is never full."""
    return mistral(LENGTH + NUM_OUTPUTS + 1)


def t5() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    model: nn.Module = transformers.T5ForConditionalGeneration(transformers.T5Config(
        vocab_size=VOCABULARY, d_model=WIDTH, d_kv=8, d_ff=64, num_layers=1, num_heads=2))
    return model


def built(make: Callable[[], nn.Module], seed: int = 0) -> tuple[nn.Module, Tensor]:
    """Return a model in evaluation mode, and prompts."""
    torch.manual_seed(seed)
    model = make().eval()
    return model, torch.randint(0, VOCABULARY, (BATCH, LENGTH))


def generation(model: nn.Module, cache: str, num_outputs: int = NUM_OUTPUTS, spec: Any = SPEC) -> Generator:
    spec = parse_input_spec("int64[50] S") if isinstance(model, Plain) else spec
    return model_generator(model, "tiny", spec, num_outputs, cache)


def batch_of(prompts: Tensor) -> list[Tensor]:
    return [prompts, torch.ones_like(prompts), prompts]


def written(generator: Generator, prompts: Tensor, num_words: int = NUM_OUTPUTS) -> Tensor:
    """Return the most likely words, (N, T)."""
    words = [generator.prefill(batch_of(prompts)).argmax(-1)]
    for _ in range(num_words - 1):
        words.append(generator.decode(words[-1]).argmax(-1))
    return torch.stack(words, 1)


def recomputed(model: nn.Module, prompts: Tensor, num_words: int = NUM_OUTPUTS) -> Tensor:
    """Return the most likely words, each from the whole sequence."""
    words = prompts
    for _ in range(num_words):
        outputs = model(words)
        logits = outputs["logits"] if isinstance(outputs, dict) else outputs if isinstance(
            outputs, Tensor) else outputs.logits
        words = torch.cat((words, logits[:, -1].argmax(-1, keepdim=True)), 1)
    return words[:, prompts.shape[1]:]


CASES = [(Plain, "growing"), (Plain, "none"), (LogitsAlone, "none"), (llama, "growing"), (llama, "static"),
         (llama, "none"), (gpt2, "growing"), (gpt2, "static"), (gpt2, "none"), (mistral, "growing"), (mistral, "none"),
         (wide_mistral, "growing")]


@pytest.mark.parametrize("spec", [SPEC, MASKED], ids=["words", "mask"])
@pytest.mark.parametrize(("make", "cache"), CASES)
@torch.inference_mode()
def test_words_are_those_without_a_cache(make: Callable[[], nn.Module], cache: str, spec: Any) -> None:
    if spec is MASKED and "attention_mask" not in inspect.signature(make().forward).parameters:
        spec = parse_input_spec("input_ids=int64[50] S, labels=int64[50] S")
    model, prompts = built(make)
    expected = recomputed(model, prompts)
    assert len(expected.unique()) > 3
    generator = generation(model, cache, spec=spec)
    assert written(generator, prompts).tolist() == expected.tolist()
    generator.go_to(0)
    assert generator.decode(expected[:, 0]).argmax(-1).tolist() == expected[:, 1].tolist()
    generator.go_to(0)
    assert generator.decode(expected[:, 0]).argmax(-1).tolist() == expected[:, 1].tolist()
    others = prompts.flip(0)
    assert written(generator, others).tolist() == expected.flip(0).tolist()  # earlier prompts were forgotten


@pytest.mark.parametrize("make", [llama, gpt2, mistral])
@torch.inference_mode()
def test_words_are_those_of_generate(make: Callable[[], Any]) -> None:
    model, prompts = built(make)
    expected = model.generate(prompts, do_sample=False, max_new_tokens=NUM_OUTPUTS, pad_token_id=0)  # type: ignore[operator]
    assert written(generation(model, "growing"), prompts).tolist() == expected[:, LENGTH:].tolist()


@pytest.mark.parametrize(("make", "cache"), CASES)
@torch.inference_mode()
def test_it_goes_on_at_any_word(make: Callable[[], nn.Module], cache: str) -> None:
    model, prompts = built(make)
    generator = generation(model, cache)
    words = generator.prefill(batch_of(prompts)).argmax(-1)
    generator.go_to(NUM_OUTPUTS - 2)
    if cache == "static":  # its places hold no words
        assert bool(generator.decode(words).isfinite().all())
        return
    zeros = torch.zeros(BATCH, NUM_OUTPUTS - 2, dtype=torch.int64)
    expected = recomputed(model, torch.cat((prompts, zeros, words[:, None]), 1), 1)
    assert generator.decode(words).argmax(-1).tolist() == expected[:, 0].tolist()


@pytest.mark.parametrize(("make", "cache", "num_words"), [
    (llama, "growing", LENGTH + NUM_OUTPUTS - 1), (llama, "static", LENGTH + NUM_OUTPUTS),
    (mistral, "growing", 4 - 1),  # transformers drops the oldest word of a window that is full
])
@torch.inference_mode()
def test_the_cache_has_the_bytes_of_the_closed_form(make: Callable[[], nn.Module], cache: str, num_words: int) -> None:
    model, prompts = built(make)
    generator = generation(model, cache)
    written(generator, prompts)
    num_bytes = sum(tensor.nbytes for tensor in generator.state())
    assert num_bytes == 2 * NUM_LAYERS * NUM_KV_HEADS * (WIDTH // NUM_HEADS) * num_words * BATCH * 4


@torch.inference_mode()
def test_only_a_full_window_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[Any] = []
    cases = [(*built(make), num_copies) for make, num_copies in ((llama, 0), (wide_mistral, 0), (mistral, 1))]
    monkeypatch.setattr("copy.deepcopy", copied.append)
    for model, prompts, num_copies in cases:
        generator = generation(model, "growing")
        generator.prefill(batch_of(prompts))
        assert copied == []
        generator.decode(prompts[:, 0])
        assert len(copied) == num_copies


@pytest.mark.parametrize(("precision", "caches"), [
    ("fp32", ["growing", "static", "none"]), ("bf16", ["growing", "none"]), ("pure-bf16", ["growing", "static"])])
def test_a_loop_begins_again_at_the_prompts(precision: str, caches: list[str]) -> None:
    pytest.importorskip("transformers")
    workload = own_model(f"{__name__}:llama", "", SPEC, None, "SGD", 0.1).prepare()
    for case in cases_of(workload, [LENGTH], [BATCH], ["decode"], [precision], [4], caches,
                         device=torch.device("cpu"), data=DataRequest()):
        loop = Loop(case)
        words = [loop.iteration(lambda phase: contextlib.nullcontext()).outputs.tolist() for _ in range(6)]
        assert words[:3] == words[3:]
        assert words[0] != words[1]
        loop.place(1.0)
        loop.iteration(lambda phase: contextlib.nullcontext())
        assert loop.iteration(lambda phase: contextlib.nullcontext()).outputs.tolist() == words[0]


def test_a_static_cache_is_not_for_autocast() -> None:
    model, prompts = built(llama)
    with (pytest.raises(UserError, match="--cache static is not for autocast: use --precision fp32 or pure-bf16"),
          torch.autocast("cpu", torch.bfloat16)):
        generation(model, "static").prefill(batch_of(prompts))


@pytest.mark.parametrize(("make", "cache", "message"), [
    (LogitsAlone, "growing", "its forward has no argument past_key_values; add --cache none"),
    (NoLogits, "growing", "returned a dict with no logits, but a generation needs logits"),
    (KeepsNothing, "growing", "returned a dict without past_key_values: add --cache none"),
    (Plain, "static", "--cache static is for models of transformers, which tiny is not: use --cache growing"),
    (mistral, "static", "--cache static is for attention to all earlier words, but tiny has other layers"),
    (t5, "growing", "tiny is an encoder with a decoder"),
    (lambda: llama(max_position_embeddings=11), "growing", "input size 5 with output size 7 is too large for tiny"),
    (lambda: llama(max_position_embeddings=11), "none", r"\(takes at most 11\)"),
])  # fmt: skip
def test_a_model_that_cannot(make: Callable[[], nn.Module], cache: str, message: str) -> None:
    model, prompts = built(make)
    with pytest.raises(UserError, match=message) as caught:
        generation(model, cache).prefill(batch_of(prompts))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("spec", "message"), [
    ("3xSxS", "tiny has no words to generate from: name them in --input-spec, as in input_ids=int64"),
    ("int64[50] SxB", "tiny has no words"),
    ("input_ids=int64[50] S, token_type_ids=int64[2] S", "leave token_type_ids out of --input-spec"),
    ("int64[50] S, int64[2] S", "leave input 2 out of --input-spec"),
])
def test_inputs_that_do_not_suit(spec: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        check_inputs("tiny", parse_input_spec(spec))
    assert "\n" not in str(caught.value)
