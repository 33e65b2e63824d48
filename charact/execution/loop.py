"""The iteration of a case: every pass runs this loop, with its own annotations around phases."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, cast

import torch
from torch.utils.data import Dataset

from charact.execution.attention import AttentionBackend
from charact.execution.batches import Batches
from charact.execution.case import Case
from charact.execution.compilations import clear_compilations
from charact.execution.precision import PRECISIONS, quantize_weights
from charact.execution.sharding import Shard
from charact.record.schema import GENERATING_MODES
from charact.workload.generation import Generator

Mark = Callable[[str], AbstractContextManager[Any]]
"""Function that returns, for a phase's name, a context manager around it."""


class Step(NamedTuple):
    """Result of an iteration: its batch, the model's outputs, and the loss if one was computed."""

    batch: Any
    outputs: Any
    loss: torch.Tensor | None


class Loop:
    """A case in execution: its model on the device, its optimizers, and its iterations.

    In mode decode an iteration reads one word of each request and chooses the next, the most likely one, until each has
    its number of outputs; an end mark ends none. Then the same prompts go on anew, without being read again.

    Raises:
        UserError: the case's device has no such backend of attention, or its precision does not suit it.

    Args:
        case: the case to run.
        batches: batches on the device; by default those of the case's data, in endless epochs.
        dataset: the case's data; read again by default.
        model: its model, `placed`; by default one with random weights.
        shard: shards the model, as by FSDP2; by default it stays whole.
        wrap: returns what is called in training instead of the model, such as `DistributedDataParallel` around it.
    """

    def __init__(self, case: Case, batches: Iterator[Any] | None = None, *, dataset: Dataset[Any] | None = None,
                 model: torch.nn.Module | None = None, shard: Shard | None = None,
                 wrap: Callable[[torch.nn.Module], Any] | None = None) -> None:
        torch.manual_seed(case.data.seed)
        self.case = case
        self.precision = PRECISIONS[case.precision]
        case.check_trainable()
        self.workload = case.workload.prepare(case.workload.variant)
        self.dataset = case.dataset() if dataset is None else dataset
        self.model = placed(case.model(self.workload, self.dataset), case) if model is None else model
        self.model.train(case.training)
        if shard is not None:
            shard(self.model)
        # `model.compile()` would skip a model that consists only of PyTorch's own modules.
        self._attention = AttentionBackend(case.attention, case.device)
        self._called: Any = (self._attention.compile(self.model) if case.compiled else wrap(self.model) if wrap
                             else self.model)
        # A wrapper would exchange buffers, for which the other ranks do not wait.
        self._predicting: Any = self.model if wrap else self._called
        self._compiling = case.compiled
        if case.compiled:
            clear_compilations()
        self.optimizers = self.workload.optimizers(self.model) if case.training else []
        # With PyTorch's default scale the first steps overflow and are skipped, which would make updates too short.
        self.scaler = torch.amp.GradScaler(case.device.type, init_scale=2.0**10,
                                           enabled=case.training and self.precision.scaled)
        self.generator: Generator | None = None
        if case.mode in GENERATING_MODES:
            self.generator = self.workload.generator(cast(torch.nn.Module, self._called), case.output_size, case.cache)
        self._first_words: torch.Tensor | None = None
        """The word of each request that follows its prompt; None before the prompts were read."""
        self._words: torch.Tensor | None = None
        """Word that each request reads next."""
        self._num_read = 0
        """Number of words that each request has read after its prompt."""
        self.batch: Any = None
        """Batch of the current iteration, on the device; None between iterations."""
        self._batches = self._endless_batches() if batches is None else batches

    def iteration(self, mark: Mark) -> Step:
        """Run one iteration, each phase inside `mark(phase)`.

        Raises:
            StopIteration: there are no more batches.
            RuntimeError: the model should be compiled, but no part of it was.
            UserError: the case's backend of attention does not take the inputs, or there is no attention.
        """
        act = {"train": self._train, "infer": self._predict, "prefill": self._prefill, "decode": self._decode}
        with self._attention.restricted():
            step = act[self.case.mode](mark)
        self.batch = None
        if self._compiling and not self.num_compiled:
            raise RuntimeError("torch.compile compiled no part of this model (it cannot compile PyTorch's recurrent "
                               "layers): leave --compile out")
        self._compiling = False
        return step

    def validate(self, mark: Mark) -> Step:
        """Predict a batch and compute its loss, without gradients; the caller sets the evaluation mode.

        Raises:
            StopIteration: there are no more batches.
        """
        with self._attention.restricted():
            step = self._predict(mark)
        with mark("loss"), torch.inference_mode(), self.autocast():
            loss = self.workload.loss(step.outputs, step.batch)
        self.batch = None
        return step._replace(loss=loss)

    def feed(self, batches: Iterator[Any]) -> None:
        """Continue with other batches, on the device, as at the beginning of an epoch."""
        self.workload.start_epoch()
        self._batches, self._first_words = batches, None

    def cache(self) -> list[torch.Tensor]:
        """Return the tensors that a generation keeps from one word to the next; none in other modes."""
        return [] if self.generator is None else self.generator.state()

    def place(self, frac: float) -> None:
        """Go on at a share of the words that a request reads after its prompt; no effect in modes but decode."""
        if self.case.mode == "decode":
            with self._attention.restricted():
                if self._first_words is None:
                    self._begin_requests()
                assert self.generator is not None
                self._num_read = round(frac * (self.case.output_size - 2))
                with torch.inference_mode(), self.autocast():
                    self.generator.go_to(self._num_read)

    def next_batch(self) -> Any:
        """Fetch the next batch, on the device.

        Raises:
            StopIteration: there are no more batches.
        """
        return next(self._batches)

    @property
    def num_compiled(self) -> int:
        """Number of compiled graphs so far: one for each shape, and mode of the model."""
        return torch._dynamo.utils.counters["stats"]["unique_graphs"] if self.case.compiled else 0

    def close(self) -> None:
        """Release the loader, which stops its workers."""
        self._batches = iter(())

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the autocast context of the case's precision; an empty one if it has none."""
        dtype = self.precision.autocast
        return contextlib.nullcontext() if dtype is None else torch.autocast(self.case.device.type, dtype=dtype)

    def _train(self, mark: Mark) -> Step:
        for _ in range(self.case.accumulate):
            with mark("data"):
                self.batch = self.next_batch()
            with mark("forward"), self.autocast():
                outputs = self.workload.forward(self._called, self.batch)
            with mark("loss"), self.autocast():
                loss = self.workload.loss(outputs, self.batch)
            with mark("backward"):
                self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        with mark("update"):
            for optimizer in self.optimizers:
                self.scaler.unscale_(optimizer)
            self.workload.clip_gradients(self.model)
            for optimizer in self.optimizers:
                self.scaler.step(optimizer)
            self.scaler.update()
            for optimizer in self.optimizers:
                optimizer.zero_grad()
        return Step(self.batch, outputs, loss)

    def _predict(self, mark: Mark) -> Step:
        with mark("data"):
            self.batch = self.next_batch()
        with mark("forward"), torch.inference_mode(), self.autocast():
            outputs = self.workload.forward(self._predicting, self.batch)
        return Step(self.batch, outputs, None)

    def _prefill(self, mark: Mark) -> Step:
        assert self.generator is not None
        with mark("data"):
            self.batch = self.next_batch()
        with mark("forward"), torch.inference_mode(), self.autocast():
            logits = self.generator.prefill(self.batch)
        with mark("sample"), torch.inference_mode():
            words = logits.argmax(-1)
        return Step(self.batch, words, None)

    def _decode(self, mark: Mark) -> Step:
        if self._first_words is None:
            self._begin_requests()
        assert self.generator is not None
        if self._num_read == self.case.output_size - 1:  # the last word is not read
            self._num_read, self._words = 0, self._first_words
            with torch.inference_mode():
                self.generator.go_to(0)
        assert self._words is not None
        with mark("forward"), torch.inference_mode(), self.autocast():
            logits = self.generator.decode(self._words)
        with mark("sample"), torch.inference_mode():
            self._words = logits.argmax(-1)
        self._num_read += 1
        return Step(None, self._words, None)

    def _begin_requests(self) -> None:
        self._words = self._first_words = self._prefill(lambda _: contextlib.nullcontext()).outputs
        self.batch, self._num_read = None, 0

    def _endless_batches(self) -> Iterator[Any]:
        batches = Batches(self.case, self.dataset, shuffle=self.case.training, whole=True)
        seed: int | None = self.case.data.seed
        while True:
            self.workload.start_epoch()
            yield from batches.epoch(seed)
            seed = None


def placed(model: torch.nn.Module, case: Case) -> torch.nn.Module:
    """Return the model on the case's device, with its type and layout."""
    dtype = case.dtype
    if dtype != torch.float32 or any(
            parameter.is_floating_point() and parameter.dtype != dtype for parameter in model.parameters()):
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.is_floating_point():
                tensor.data = tensor.data.to(dtype)  # `model.to` rejects fake ones, and treats complex ones as real
    if case.device.type != "cpu":
        model = model.to(case.device)
    if case.channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if PRECISIONS[case.precision].quantized:
        quantize_weights(model)
    return model
