"""Names by which inference servers annotate their steps, with the facts in them.

Sources: vLLM (vllm/v1/worker/gpu_worker.py, annotate_profile; gpu_model_runner.py), SGLang
(model_executor/model_runner.py, step[...]; managers/scheduler.py, run_batch), TensorRT-LLM
(_torch/pyexecutor/py_executor.py, _forward_step), Transformers (generation/utils.py).
"""

import re
from functools import lru_cache
from typing import Literal, NamedTuple

StepKind = Literal["prefill", "decode", "mixed"]
_MAX_LENGTH = 400


class StepName(NamedTuple):
    """Facts of a step that its annotation has; None for others."""

    kind: StepKind | None = None
    reason: str | None = None
    """Why the step is of no kind."""
    num_requests: int | None = None
    num_context_requests: int | None = None
    """Requests whose prompt the step processes."""
    num_tokens: int | None = None


_NUMBER = r"(\d{1,12})"
_VLLM = re.compile(rf"execute_context_{_NUMBER}(?:\({_NUMBER}\))?_generation_{_NUMBER}(?:\({_NUMBER}\))?", re.ASCII)
_VLLM_WITH_TOTAL = re.compile(
    rf"execute_{_NUMBER}_context_{_NUMBER}(?:\([a-z0-9]*\))?_generation_{_NUMBER}(?:\([a-z0-9]*\))?", re.ASCII)
_VLLM_NEW = re.compile(rf"execute_new_{_NUMBER}_cached_{_NUMBER}", re.ASCII)
_SGLANG = re.compile(rf"step\[([A-Z_0-9]+) bs={_NUMBER}(?: toks={_NUMBER})?(?: [^\]]*)?\]", re.ASCII)
_TENSORRT = re.compile(
    rf"\[Executor\] _forward_step(?: \d+)?: {_NUMBER} ctx reqs,(?: {_NUMBER} ctx tokens,)? {_NUMBER} gen reqs",
    re.ASCII)
_PART = re.compile(r"gpu_model_runner: \w+")
_RUN_BATCH = re.compile(r"(?:^|/)sglang/srt/managers/scheduler\.py\(\d+\): run_batch")
_GENERATE = re.compile(r"(?:^|/)transformers/generation/utils\.py\(\d+\): generate")
_MODES: dict[str, tuple[StepKind | None, str | None]] = {
    "EXTEND": ("prefill", None), "SPLIT_PREFILL": ("prefill", None), "DECODE": ("decode", None),
    "TARGET_VERIFY": ("decode", None), "MIXED": ("mixed", None), "IDLE": (None, "the batch has no request"),
    "DRAFT_EXTEND": (None, "the draft model follows prefills and decodes alike"),
    "DRAFT_EXTEND_V2": (None, "the draft model follows prefills and decodes alike"),
}  # fmt: skip
"""Kinds by SGLang's forward modes; verifying drafted tokens is a decode of several tokens a sequence."""
PREPROCESS = "gpu_model_runner: preprocess"
"""The first part of a step of vLLM's model runner."""
FRAME_ENDS = (": run_batch", ": generate")
"""Ends of the names of Python calls that serve requests."""


@lru_cache(maxsize=4096)
def step_of_name(name: str) -> StepName | None:
    """Return the facts in a scheduler's annotation of a step; None if the name is of another form."""
    if len(name) > _MAX_LENGTH:
        return None
    if match := _VLLM.fullmatch(name):
        return _by_requests(match[1], match[3], _total(match[2], match[4]))
    if match := _VLLM_WITH_TOTAL.fullmatch(name):
        return _by_requests(match[2], match[3], int(match[1]))
    if match := _VLLM_NEW.fullmatch(name):
        new, cached = int(match[1]), int(match[2])
        if cached:  # requests scheduled before, which decode or process the rest of a prompt
            return StepName(num_requests=new + cached)
        return _by_requests(match[1], match[2], None)
    if match := _SGLANG.fullmatch(name):
        kind, reason = _MODES.get(match[1], (None, f"the forward mode {match[1]} is neither prefill nor decode"))
        num_requests = int(match[2])
        context = {"prefill": num_requests, "decode": 0}.get(kind or "")
        return StepName(kind, reason, num_requests, context, int(match[3]) if match[3] else None)
    if match := _TENSORRT.fullmatch(name):
        return _by_requests(match[1], match[3], None)
    return None


def is_part(name: str) -> bool:
    """Return whether an annotation is of a part of a step of vLLM's model runner."""
    return _PART.fullmatch(name) is not None


def is_batch_call(frame: str) -> bool:
    """Return whether a Python call runs a batch of SGLang's scheduler."""
    return _RUN_BATCH.search(frame) is not None and frame.endswith(FRAME_ENDS[0])


def is_generate_call(frame: str) -> bool:
    """Return whether a Python call is `generate` of Transformers."""
    return _GENERATE.search(frame) is not None and frame.endswith(FRAME_ENDS[1])


@lru_cache(maxsize=4096)
def is_of_serving(name: str) -> bool:
    """Return whether an annotation or a Python call is of a server's step, a part of it, or a generation."""
    return step_of_name(name) is not None or is_part(name) or is_batch_call(name) or is_generate_call(name)


def stage_of_file(stem: str) -> StepKind | None:
    """Return the kind of the steps in a file that SGLang wrote for one stage, by its name without suffixes."""
    return {"DECODE": "decode", "EXTEND": "prefill"}.get(stem.rpartition("-")[2])  # type: ignore[return-value]


def _total(*numbers: str | None) -> int | None:
    known = [int(number) for number in numbers if number is not None]
    return sum(known) if len(known) == len(numbers) else None


def _by_requests(context: str, generation: str, num_tokens: int | None) -> StepName:
    num_context, num_generation = int(context), int(generation)
    num_requests = num_context + num_generation
    if num_tokens is not None and num_tokens < num_requests:  # each request has a token: the number is another
        num_tokens = None
    if not num_requests:
        return StepName(None, "the annotation names no request", 0, 0, num_tokens)
    kind: StepKind = "mixed" if num_context and num_generation else "prefill" if num_context else "decode"
    return StepName(kind, None, num_requests, num_context, num_tokens)
