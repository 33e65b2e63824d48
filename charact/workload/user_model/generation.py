"""Generation with a user's model in Hugging Face's manner.

Its forward reads words (N, T) and `past_key_values`, what it has kept of earlier words. Its output has `logits`
(N, T, vocabulary) and the `past_key_values` of the next call.
"""

import copy
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from charact.core.errors import UserError
from charact.workload.generation import Generator, RecomputingGenerator
from charact.workload.user_model.input_spec import InputSpec, TensorSpec

CACHES = ("growing", "static", "none")
"""Kinds of caches of a user's model; `growing` is the model's own, whichever that is."""
_MASK, _LABELS = "attention_mask", "labels"
"""Inputs next to the words: a mask of ones as long as all words so far, and targets, which a generation does not read.
"""


def check_inputs(name: str, spec: InputSpec) -> None:
    """Check that a model named `name` can generate from the inputs of a spec."""
    words = _words_of(spec)
    if words is None:
        raise UserError(f"{name} has no words to generate from: name them in --input-spec, as in "
                        "input_ids=int64[500] S, or leave --mode generate out")
    for number, one in enumerate(spec.inputs, 1):
        if one is not words and one.name not in (_MASK, _LABELS):
            raise UserError(f"a generation reads words and {_MASK} only: leave {one.name or f'input {number}'} out of "
                            "--input-spec")


def model_generator(model: nn.Module, name: str, spec: InputSpec, output_size: int, cache: str) -> Generator:
    """Return a generation with a model named `name`; `cache` is one of `CACHES`."""
    called = _Model(model, name, spec)
    prompts = partial(called.prompts, output_size)
    if cache == "none":
        return RecomputingGenerator(lambda words: called(words, len_before=0)[0], prompts)
    if not called.takes("past_key_values"):
        raise UserError(f"{name} keeps nothing from one word to the next: its forward has no argument past_key_values; "
                        "add --cache none to read all words again for each one")
    static = partial(_static_cache, model, name, output_size) if cache == "static" else None
    return ModelGenerator(called, prompts, output_size, static)


class ModelGenerator(Generator):
    """A model with its own cache, or a static one.

    Args:
        model: called with words, the number of words before them, and the cache; returns logits and the new cache.
        prompts: returns the prompts (N, T) of a batch.
        output_size: words of each request after its prompt.
        static: returns a static cache for prompts (N, T); None for the model's own cache.
    """

    def __init__(self, model: "_Model", prompts: Callable[[Any], Tensor], output_size: int,
                 static: Callable[[Tensor], Any] | None) -> None:
        self._model, self._prompts, self._output_size, self._static = model, prompts, output_size, static
        self._cache: Any = None
        self._num_prompt_words = self._num_words = 0
        self._some_word = torch.empty(0, 1, dtype=torch.int64)
        """An arbitrary word of each request, (N, 1)."""
        self._cut: Callable[[Any, int], Any] | None = None
        """Function that returns a cache without a number of words after the prompts; None until one is read."""

    def prefill(self, batch: Any) -> Tensor:
        """See `Generator`."""
        prompts = self._prompts(batch)
        self._cache, self._cut, self._num_words = None, None, 0
        if self._static is not None:
            self._cache = self._static(prompts)
        logits = self._read(prompts)
        self._num_prompt_words, self._some_word = self._num_words, torch.zeros_like(prompts[:, :1])
        return logits

    def decode(self, words: Tensor) -> Tensor:
        """See `Generator`."""
        self._prepare_to_cut()
        return self._read(words[:, None])

    def go_to(self, num_words: int) -> None:
        """See `Generator`."""
        if self._static is not None:
            self._num_words = self._num_prompt_words + num_words
            for layer in self._cache.layers:
                layer.cumulative_length.fill_(self._num_words)
            return
        self._prepare_to_cut()
        assert self._cut is not None
        self._cache = self._cut(self._cache, self._num_words - self._num_prompt_words)
        self._num_words = self._num_prompt_words
        if num_words:
            words = self._some_word.expand(-1, num_words)
            # Not all models of users read several words after earlier ones; those of transformers do.
            for part in [words] if hasattr(self._cache, "get_seq_length") else words.chunk(num_words, 1):
                self._read(part)

    def state(self) -> list[Tensor]:
        """Return all keys and values, and other tensors of the cache that have an axis."""
        leaves = tree_leaves([vars(layer) for layer in self._cache.layers] if hasattr(self._cache, "layers")
                             else vars(self._cache) if hasattr(self._cache, "__dict__") else self._cache)
        return [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim()]

    def _prepare_to_cut(self) -> None:
        # Not in `prefill`: a copy would count as part of it.
        if self._cut is None and self._static is None:
            self._cut = _cutting(self._cache, self._num_prompt_words + self._output_size)

    def _read(self, words: Tensor) -> Tensor:
        logits, self._cache = self._model(words, self._num_words, self._cache, keeps=True)
        self._num_words += words.shape[1]
        return logits


class _Model:
    """Calls of a model, and the parts of its output."""

    def __init__(self, model: nn.Module, name: str, spec: InputSpec) -> None:
        self._model, self._name, self._spec = model, name, spec
        whole = getattr(model, "_orig_mod", model)  # of a compiled one
        self._arguments = inspect.signature(whole.forward).parameters
        config = _text_config(whole)
        if getattr(getattr(whole, "config", None), "is_encoder_decoder", False):
            raise UserError(f"{name} is an encoder with a decoder, from which charact does not generate: use a decoder "
                            "alone, or --mode infer")
        longest = getattr(config, "max_position_embeddings", None)
        self._longest = longest if isinstance(longest, int) else None

    def takes(self, argument: str) -> bool:
        """Return whether the model's forward names an argument."""
        return argument in self._arguments

    def prompts(self, output_size: int, batch: Any) -> Tensor:
        """Return the prompts of a batch, after checking that the model has places for them and the outputs."""
        words: Tensor = next(tensor for one, tensor in zip(self._spec.inputs, batch, strict=False)
                             if one is _words_of(self._spec))
        if self._longest is not None and words.shape[1] + output_size > self._longest:
            raise UserError(f"input size {words.shape[1]} with output size {output_size} is too large for {self._name} "
                            f"(takes at most {self._longest})")
        return words

    def __call__(self, words: Tensor, len_before: int, cache: Any = None, *, keeps: bool = False) -> tuple[Tensor, Any]:
        """Read words (N, T) after others; return logits of the next words, (N, vocabulary), and the new cache."""
        positional: list[Tensor] = []
        named: dict[str, Any] = {}
        for one in self._spec.inputs:
            if one.name == _LABELS:
                continue
            value = words
            if one.name == _MASK:
                value = words.new_ones(len(words), len_before + words.shape[1], dtype=getattr(torch, one.type))
            if one.name is None:
                positional.append(value)
            else:
                named[one.name] = value
        options = {"use_cache": keeps, "logits_to_keep": 1}
        named |= {option: value for option, value in options.items() if self.takes(option)}
        if cache is not None:
            named["past_key_values"] = cache
        outputs = self._model(*positional, **named)
        logits = outputs if isinstance(outputs, Tensor) and not keeps else _part(outputs, "logits")
        if not isinstance(logits, Tensor) or logits.dim() != 3:
            given = f"logits {tuple(logits.shape)}" if isinstance(logits, Tensor) else "no logits"
            raise UserError(f"{self._name} returned a {type(outputs).__name__} with {given}, but a generation needs "
                            "logits (N, T, vocabulary): use a model with a head of words, as LlamaForCausalLM has")
        new_cache = _part(outputs, "past_key_values") if keeps else None
        if keeps and new_cache is None:
            raise UserError(f"{self._name} returned a {type(outputs).__name__} without past_key_values: add --cache "
                            "none to read all words again for each one")
        return logits[:, -1], new_cache


def _words_of(spec: InputSpec) -> TensorSpec | None:
    """Return the input that has the words, (N, T): `input_ids`, or the first text; None if there is none."""
    texts = [one for one in spec.inputs if one.is_text and one.batch_axis == 0 and one.name != _LABELS]
    return next((one for one in texts if one.name == "input_ids"), texts[0] if texts else None)


def _part(outputs: Any, name: str) -> Any:
    return outputs.get(name) if isinstance(outputs, Mapping) else getattr(outputs, name, None)


def _text_config(model: nn.Module) -> Any:
    config: Any = getattr(getattr(model, "_orig_mod", model), "config", None)
    return config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config


def _static_cache(model: nn.Module, name: str, output_size: int, prompts: Tensor) -> Any:
    """Return transformers' cache with memory for prompts and outputs."""
    if torch.is_autocast_enabled(prompts.device.type):  # keys may be fp32, and values not
        raise UserError("--cache static is not for autocast: use --precision fp32 or pure-bf16, or --cache growing")
    try:
        from transformers import PreTrainedConfig, StaticCache
    except ImportError:
        raise UserError("--cache static needs transformers, which is not installed, or before version 5: use --cache "
                        "growing") from None
    config = _text_config(model)
    if not isinstance(config, PreTrainedConfig):
        raise UserError(f"--cache static is for models of transformers, which {name} is not: use --cache growing")
    cache = StaticCache(config=config, max_cache_len=prompts.shape[1] + output_size)
    if any(type(layer).__name__ != "StaticLayer" for layer in cache.layers):
        raise UserError(f"--cache static is for attention to all earlier words, but {name} has other layers: use "
                        "--cache growing")
    return cache


def _cutting(cache: Any, most_words: int) -> Callable[[Any, int], Any]:
    """Return a function that brings a cache back to the words of now; it will have `most_words` at most.

    The function gets the later cache, and how many words were read since. A cache that cannot lose words, such as one
    of a sliding window that will be full, is copied now.
    """
    if _can_crop(cache, most_words):
        def shorten(later: Any, num_since: int) -> Any:
            if num_since:
                later.crop(-num_since)
            return later
    elif all(isinstance(leaf, Tensor | int) for leaf in tree_leaves(cache)):
        before = [leaf.shape if isinstance(leaf, Tensor) else leaf for leaf in tree_leaves(cache)]

        def shorten(later: Any, num_since: int) -> Any:
            leaves, structure = tree_flatten(later)
            cut = [leaf[tuple(map(slice, was))] if isinstance(leaf, Tensor) else was
                   for leaf, was in zip(leaves, before, strict=True)]
            return tree_unflatten(cut, structure)
    else:
        unread = copy.deepcopy(cache)

        def shorten(later: Any, num_since: int) -> Any:
            return copy.deepcopy(unread)
    return shorten


def _can_crop(cache: Any, most_words: int) -> bool:
    """Return whether a cache can lose its last words, if it has `most_words` at most."""
    return hasattr(cache, "crop") and all(
        getattr(layer, "is_croppable", True) and (not getattr(layer, "is_sliding", False)
                                                  or layer.sliding_window > most_words)
        for layer in getattr(cache, "layers", []))
