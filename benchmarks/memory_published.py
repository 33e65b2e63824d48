"""Memory estimates against peaks that others published: training on one GPU, with all that determines the memory.

Run `python benchmarks/memory_published.py [NAME ...]`. Nothing runs on a GPU, and the result is the
same on any machine with the same PyTorch. A row is a published peak; reserved memory is compared with the allocator's
reserve, and memory in use (`nvidia-smi`) with the reserve and the context that the source measured.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from charact import memory

MIB = 2**20
VIT = "rasbt/pytorch-memory-optim, logs.md (torch 2.1.0.dev20230623)"
BERT = "huggingface/transformers, docs/source/en/perf_train_gpu_one.mdx (January 2022)"
BERT_CONTEXT_BYTES = 1343 * MIB
"""Memory in use after the first tensor, in the same source."""


class Attention(nn.Module):
    """Multi-head attention; `copies` also copies the kernel's outputs, as after FlashAttention 1."""

    def __init__(self, width: int, num_heads: int, *, copies: bool) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(width, num_heads, batch_first=True)
        self.copies = copies

    def forward(self, x: Tensor) -> Tensor:
        """Attend to all positions of (batch, positions, width)."""
        if not self.copies:
            outputs: Tensor = self.layer(x, x, x, need_weights=False)[0]
            return outputs
        batch, length, width = x.shape
        projected = functional.linear(x.transpose(0, 1), self.layer.in_proj_weight, self.layer.in_proj_bias)
        projected = projected.reshape(length, batch, 3, width).movedim(2, 0).contiguous()
        query, key, value = (each.reshape(length, batch, self.layer.num_heads, -1).permute(1, 2, 0, 3)
                             for each in projected)
        attended = functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).contiguous()
        attended = attended.transpose(0, 1).contiguous().reshape(length * batch, width)
        outputs = self.layer.out_proj(attended)
        return outputs.reshape(length, batch, width).transpose(0, 1)


class Block(nn.Module):
    """Pre-norm encoder block."""

    def __init__(self, width: int, num_heads: int, *, copies: bool) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.attention = Attention(width, num_heads, copies=copies)
        self.layers = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of input, attention and feed-forward layer."""
        x = self.attention(self.norms[0](x)) + x
        transformed: Tensor = self.layers(self.norms[1](x))
        return x + transformed


class VisionTransformer(nn.Module):
    """ViT-L/16 at 224 pixels with 10 classes."""

    def __init__(self, *, copies: bool) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 1024, 16, 16)
        self.token = nn.Parameter(torch.zeros(1, 1, 1024))
        self.positions = nn.Parameter(torch.zeros(1, 197, 1024))
        self.blocks = nn.Sequential(*(Block(1024, 16, copies=copies) for _ in range(24)))
        self.norm, self.head = nn.LayerNorm(1024), nn.Linear(1024, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits."""
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(images), -1, -1), x], dim=1) + self.positions
        logits: Tensor = self.head(self.norm(self.blocks(x))[:, 0])
        return logits


def vision(batch: int, precision: str, optimizer: str = "Adam", accumulate: int = 1, *, copies: bool = True
           ) -> Callable[[], None]:
    """Return an iteration of ViT-L/16; gradients are cleared after the forward pass, if they are not accumulated.

    Args:
        batch: images.
        precision: fp32, 16-mixed or bf16-true, as in Lightning.
        optimizer: a class of torch.optim.
        accumulate: batches per update.
        copies: whether half precision uses FlashAttention 1, as PyTorch before 2.2 does. Its outputs are
            (total positions, heads, width), so that the multi-head attention copies them (`fmha_api.cpp`).
    """
    dtype = torch.bfloat16 if precision == "bf16-true" else torch.float32
    model = VisionTransformer(copies=copies and precision != "fp32").to(dtype)
    images, targets = torch.randn(batch, 3, 224, 224, dtype=dtype), torch.randint(0, 10, (batch,))
    updater = getattr(torch.optim, optimizer)(model.parameters(), lr=1e-4)
    kept: list[Any] = []

    def step() -> None:
        for _ in range(accumulate):
            with torch.autocast("cuda", torch.float16, enabled=precision == "16-mixed"):
                logits = model(images).float()
            loss = functional.cross_entropy(logits, targets)
            if accumulate == 1:
                updater.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            kept[:] = [logits, loss]
        updater.step()
        if accumulate > 1:
            updater.zero_grad()

    return step


def bert(batch: int, accumulate: int = 1, *, half: bool = False, checkpoints: bool = False) -> Callable[[], None]:
    """Return an iteration of BERT-large at 512 tokens as of 2022: attention by hand, gradients zeroed in place."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(vocab_size=30522, hidden_size=1024, num_hidden_layers=24, num_attention_heads=16,
                        intermediate_size=4096, attn_implementation="eager")
    model = BertForSequenceClassification(config)
    if checkpoints:
        model.gradient_checkpointing_enable()
    tokens, labels = torch.randint(0, 30000, (batch, 512)), torch.randint(0, 2, (batch,))
    updater = torch.optim.AdamW(model.parameters(), foreach=False)

    def step() -> None:
        for _ in range(accumulate):
            with torch.autocast("cuda", torch.float16, enabled=half):
                loss = model(input_ids=tokens, attention_mask=torch.ones_like(tokens), labels=labels).loss
            loss.backward()
        updater.step()
        updater.zero_grad(set_to_none=False)

    return step


@dataclass(frozen=True)
class Peak:
    """A published peak."""

    name: str
    device: str
    source: str
    published_bytes: float
    measure: str
    """`reserved`: torch.cuda.max_memory_reserved. `in use`: NVML, of the whole device."""
    build: Callable[[], Callable[[], None]]
    configuration: str


def _vision(name: str, gigabytes: float, configuration: str, *arguments: Any, **options: Any) -> Peak:
    return Peak(name, "a100-40gb", VIT, gigabytes * 1e9, "reserved", partial(vision, *arguments, **options),
                configuration)


def _bert(name: str, mebibytes: float, configuration: str, *arguments: Any, **options: Any) -> Peak:
    return Peak(name, "v100-16gb", BERT, mebibytes * MIB, "in use", partial(bert, *arguments, **options), configuration)


PEAKS = (
    _vision("vit_fp32", 26.79, "ViT-L/16, batch 64, fp32, Adam", 64, "fp32"),
    _vision("vit_mixed", 18.21, "ViT-L/16, batch 64, 16-mixed, Adam", 64, "16-mixed"),
    _vision("vit_bf16", 13.82, "ViT-L/16, batch 64, bf16-true, Adam", 64, "bf16-true"),
    _vision("vit_bf16_16", 5.69, "ViT-L/16, batch 16, bf16-true, Adam", 16, "bf16-true"),
    _vision("vit_bf16_accumulate", 3.91, "ViT-L/16, 4 batches of 4, bf16-true, Adam", 4, "bf16-true", "Adam", 4),
    _vision("vit_bf16_sgd", 2.02, "ViT-L/16, 4 batches of 4, bf16-true, SGD", 4, "bf16-true", "SGD", 4),
    _bert("bert", 14949, "BERT-large, batch 4 × 512, fp32, AdamW", 4),
    _bert("bert_accumulate", 8681, "BERT-large, 4 batches of 1 × 512, fp32, AdamW", 1, 4),
    _bert("bert_checkpoints", 6775, "as before, with gradient checkpointing", 1, 4, checkpoints=True),
    _bert("bert_fp16", 13939, "BERT-large, batch 4 × 512, fp16 autocast, AdamW", 4, half=True),
    _bert("bert_fp16_checkpoints", 7275, "BERT-large, 4 batches of 1 × 512, fp16 autocast, checkpointing, AdamW", 1, 4,
          half=True, checkpoints=True),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for each published peak."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="names of peaks; default: all")
    options = parser.parse_args(arguments)
    print("| name | configuration | device | measure | published | estimated | estimated / published |")
    print("|---|---|---|---|---|---|---|")
    for peak in PEAKS:
        if options.names and peak.name not in options.names:
            continue
        found = memory.estimate(peak.build, device=peak.device)
        estimated = found.facts["reserved_peak_bytes"] + (BERT_CONTEXT_BYTES if peak.measure == "in use" else 0)
        cells = (peak.name, peak.configuration, peak.device, peak.measure, f"{peak.published_bytes / 1e9:.2f} GB",
                 f"{estimated / 1e9:.2f} GB", f"{estimated / peak.published_bytes:.3f}")
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
