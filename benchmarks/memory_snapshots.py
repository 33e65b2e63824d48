"""Memory estimates against recorded CUDA memory snapshots: the peak, and the sequence of requests.

Run `python benchmarks/memory_snapshots.py [SNAPSHOT ...]`, with the recorded snapshots in `../shared/memory`. Their
program is rebuilt here: a decoder of 24 pre-norm blocks with rotary positions, attention with a hand-written softmax, a
feed-forward layer of three matrices, and AdamW by hand. `--requests` lists where the two sequences of requests differ.
The snapshots do not name the precision: each program is estimated in fp32 and under autocast.
"""

import argparse
import gzip
import itertools
import json
import math
import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from charact import memory
from charact.measure.memory_estimate.cuda_kernels import cuda_kernels
from charact.measure.memory_estimate.function_trace import trace_function
from charact.measure.memory_estimate.replay import GRANULE_BYTES

SNAPSHOTS = Path(__file__).resolve().parents[2] / "shared" / "memory"
DEVICE = "a100-80gb"
"""The snapshots hold the cuBLAS workspaces of compute capability 8; they do not name the device."""
VOCABULARY, WIDTH, NUM_HEADS, FEED_FORWARD, NUM_BLOCKS, BATCH = 10_000, 1024, 16, 4096, 24, 4


class Linear(nn.Module):
    """A linear layer without biases, computed by `einsum`."""

    def __init__(self, num_inputs: int, num_outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_outputs, num_inputs))

    def forward(self, x: Tensor) -> Tensor:
        """Return the product with the weight."""
        return torch.einsum("...i,oi->...o", x, self.weight)


class Norm(nn.Module):
    """Root-mean-square normalization, computed in fp32 by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalized input in its own type."""
        dtype = x.dtype
        x = x.to(torch.float32)
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
        x = x * scale
        return (self.weight * x).to(dtype)


def softmax(x: Tensor) -> Tensor:
    """Compute the softmax over the last dimension by hand."""
    shifted = x - torch.max(x, dim=-1, keepdim=True)[0]
    exponentials = torch.exp(shifted)
    return exponentials / torch.sum(exponentials, dim=-1, keepdim=True)


def silu(x: Tensor) -> Tensor:
    """Compute the sigmoid-weighted unit by hand."""
    return x * torch.sigmoid(x)


def rotated(x: Tensor, table: Tensor) -> Tensor:
    """Apply rotary positions to (batch, heads, positions, width)."""
    first, second = x.reshape(*x.shape[:-1], -1, 2).movedim(-1, 0)
    cosine, sine = table
    turned_first = cosine * first - sine * second
    turned_second = sine * first + cosine * second
    return torch.stack((turned_first, turned_second), dim=-1).flatten(-2)


class Attention(nn.Module):
    """Causal attention without a fused kernel."""

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.query, self.key, self.value, self.output = (Linear(WIDTH, WIDTH) for _ in range(4))
        self.table = table

    def forward(self, x: Tensor) -> Tensor:
        """Attend over (batch, positions, width)."""
        length = x.shape[1]
        query, key, value = self.query(x), self.key(x), self.value(x)
        query, key, value = (each.unflatten(-1, (NUM_HEADS, -1)).transpose(1, 2) for each in (query, key, value))
        query = rotated(query, self.table[:, :length])
        key = rotated(key, self.table[:, :length])
        places = torch.arange(length)
        mask = places[:, None] >= places[None, :]
        attended = self.attend(query, key, value, mask)
        attended = attended.transpose(1, 2).flatten(2)
        outputs: Tensor = self.output(attended)
        return outputs

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        """Attend by hand."""
        scores = torch.einsum("...qd,...kd->...qk", query, key) / math.sqrt(query.shape[-1])
        scores = torch.where(mask, scores, float("-inf"))
        weights = softmax(scores)
        return torch.einsum("...qk,...kd->...qd", weights, value)


class FeedForward(nn.Module):
    """Gated feed-forward layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.third = Linear(WIDTH, FEED_FORWARD), Linear(WIDTH, FEED_FORWARD)
        self.second = Linear(FEED_FORWARD, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Return the gated transformation."""
        outputs: Tensor = self.second(silu(self.first(x)) * self.third(x))
        return outputs


class Block(nn.Module):
    """Pre-norm block."""

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.attention, self.feed_forward = Attention(table), FeedForward()
        self.norms = nn.ModuleList([Norm(), Norm()])

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of input, attention and feed-forward layer."""
        attended: Tensor = self.attention(self.norms[0](x))
        after = x + attended
        transformed: Tensor = self.feed_forward(self.norms[1](after))
        return after + transformed


class Decoder(nn.Module):
    """Decoder of the snapshots."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.embeddings = nn.Parameter(torch.empty(VOCABULARY, WIDTH))
        table = torch.empty(2, length, WIDTH // NUM_HEADS // 2)
        self.blocks = nn.ModuleList(Block(table) for _ in range(NUM_BLOCKS))
        self.norm, self.head = Norm(), Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits over the vocabulary."""
        x = embedded = self.embeddings[tokens]
        for block in self.blocks:
            x = block(x)
        assert embedded is not x  # lives as long as in the recorded program
        logits: Tensor = self.head(self.norm(x))
        return logits


def log_softmax(x: Tensor) -> Tensor:
    """Compute the logarithm of the softmax by hand."""
    shifted = x - torch.max(x, dim=-1, keepdim=True)[0]
    return shifted - torch.log(torch.sum(torch.exp(shifted), dim=-1, keepdim=True))


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Compute the mean cross-entropy by hand."""
    losses = -log_softmax(logits)
    return torch.gather(losses, -1, targets[..., None]).mean()


class AdamW(torch.optim.Optimizer):
    """AdamW by hand, one parameter after the other."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "decay": 0.01})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update one parameter after the other."""
        for group in self.param_groups:
            rate, (beta1, beta2), decay = group["lr"], group["betas"], group["decay"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                gradient, state = parameter.grad.data, self.state[parameter]
                parameter.data -= rate * decay * parameter.data
                first = state.get("first", torch.zeros_like(gradient))
                second = state.get("second", torch.zeros_like(gradient))
                new_first = beta1 * first + (1 - beta1) * gradient
                new_second = beta2 * second + (1 - beta2) * gradient**2
                parameter.data -= rate * new_first / (torch.sqrt(new_second) + group["eps"])
                state["first"], state["second"] = new_first, new_second


def program(length: int, *, trains: bool, precision: torch.dtype | None) -> Callable[[], Callable[[], None]]:
    """Return the function that builds the snapshots' program; `precision` is autocast's type."""
    def build() -> Callable[[], None]:
        model = Decoder(length)
        optimizer = AdamW(model.parameters())
        tokens, targets = (torch.randint(0, VOCABULARY, (BATCH, length)) for _ in range(2))

        def step() -> None:
            with torch.autocast("cuda", precision) if precision else nullcontext():
                if not trains:
                    with torch.inference_mode():
                        model(tokens)
                    return
                logits = model(tokens)
                loss = cross_entropy(logits, targets)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()

        return step

    return build


def recorded(name: str) -> dict[str, Any]:
    """Read a snapshot."""
    with gzip.open(SNAPSHOTS / f"{name}.json.gz") as file:
        snapshot: dict[str, Any] = json.load(file)
        return snapshot


def recorded_requests(snapshot: dict[str, Any]) -> list[int]:
    """Return the requests (bytes) in order."""
    return [num_bytes for kind, _, num_bytes, *_ in snapshot["events"] if kind == "a" and num_bytes]


def recorded_peak(snapshot: dict[str, Any]) -> int:
    """Return the most allocated bytes, counted back from the blocks at the end."""
    now: int = sum(size for segment in snapshot["segments_at_end"] for size, _, state in segment["blocks"]
                   if state == "active_allocated")
    peak = now
    for kind, _, num_bytes, *_ in reversed(snapshot["events"]):
        size = -(-num_bytes // GRANULE_BYTES) * GRANULE_BYTES
        now += {"a": -size, "f": size, "o": size}.get(kind, 0)
        peak = max(peak, now)
    return peak


def estimated_requests(build: Callable[[], Callable[[], None]], capability: tuple[int, int] = (8, 0)
                       ) -> list[tuple[int, str]]:
    """Return the estimate's requests for tensors (bytes) and their operators, without workspaces."""
    with cuda_kernels(capability):
        trace = trace_function(build, "the program", on_cuda=True)
    operators = {number: op.name for op in trace.ops for number in op.made}
    return [(block.num_bytes, operators.get(number, "?")) for number, block in enumerate(trace.blocks)
            if block.birth is not None and block.num_bytes]


def differences(theirs: Sequence[int], ours: Sequence[int], window: int = 8) -> list[tuple[int, list[int], list[int]]]:
    """Align two sequences; return each place in the first, what only the first has, and what only the second has.

    After a difference, both continue at the nearest places from which `window` requests agree.
    """
    found, i, j = [], 0, 0

    def agree(left: int, right: int) -> bool:
        return theirs[i + left:i + left + window] == ours[j + right:j + right + window]

    while i < len(theirs) or j < len(ours):
        if theirs[i:i + 1] == ours[j:j + 1]:
            i, j = i + 1, j + 1
            continue
        steps = ((left, distance - left) for distance in itertools.count(1) for left in range(distance + 1))
        left, right = next(pair for pair in steps if agree(*pair))
        found.append((i, list(theirs[i:i + left]), list(ours[j:j + right])))
        i, j = i + left, j + right
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for each snapshot and precision."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("snapshots", nargs="*", help="names, such as cuda_medium_512_training; default: all")
    parser.add_argument("--requests", action="store_true", help="list the differences")
    options = parser.parse_args(arguments)
    files = sorted(SNAPSHOTS.glob("cuda_medium_*.json.gz"))
    names = options.snapshots or [path.name.partition(".")[0] for path in files]
    print("| snapshot | estimated as | only recorded | only estimated | recorded peak | estimated | ratio | in range |")
    print("|---|---|---|---|---|---|---|---|")
    for name in names:
        snapshot, (_, length, mode) = recorded(name), re.split(r"_(\d+)_", name)
        for precision in (None, torch.bfloat16):
            build = program(int(length), trains=mode == "training", precision=precision)
            requests = estimated_requests(build)
            differing = differences(recorded_requests(snapshot), [num_bytes for num_bytes, _ in requests])
            found, peak = memory.estimate(build, device=DEVICE), recorded_peak(snapshot)
            only = sum(len(left) for _, left, _ in differing), sum(len(right) for _, _, right in differing)
            print(f"| {name} | {precision or 'fp32'} | {only[0]} | {only[1]} | {peak:,} | {found.peak_bytes:,} | "
                  f"{found.peak_bytes / peak:.4f} | {found.low_bytes <= peak <= found.high_bytes} |", flush=True)
            for place, left, right in differing if options.requests else ():
                print(f"    {place}: only recorded {left}, only estimated {right}")


if __name__ == "__main__":
    main()
