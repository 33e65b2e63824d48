"""Does the language model learn? One epoch on WikiText-2's valid split, its perplexity as it goes.

    python benchmarks/learn_rnn_lm.py DIRECTORY_OF_WIKITEXT_2

Each batch is predicted before it is learnt from, and none comes twice: a tenth's perplexity is that of new text.
"""

import argparse
import math
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from charact.workload import DataRequest, find_workload


def learn(directory: Path, variant: str, batch_size: int, input_size: int) -> list[float]:
    """Perplexity of each tenth of the epoch, printed as it is known."""
    torch.manual_seed(1111)
    workload = find_workload("rnn_lm").prepare(variant)
    dataset: Any = workload.dataset(input_size, DataRequest("wikitext2", directory, "valid", batch_size=batch_size))
    model = workload.model(dataset)
    (optimizer,) = workload.optimizers(model)
    loader = DataLoader(dataset, batch_size=batch_size, collate_fn=dataset.collate)
    print(f"rnn_lm {variant}, {dataset.num_words:,} words, {len(loader)} batches of {input_size} × {batch_size}")
    started = time.monotonic()
    perplexities: list[float] = []
    losses: list[float] = []
    for number, batch in enumerate(loader, start=1):
        loss = workload.loss(workload.forward(model, batch), batch)
        loss.backward()  # type: ignore[no-untyped-call]
        workload.clip_gradients(model)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if number * 10 // len(loader) > len(perplexities):
            perplexities.append(math.exp(sum(losses) / len(losses)))
            losses.clear()
            print(f"{len(perplexities)}/10 of the epoch, {time.monotonic() - started:.0f} s: "
                  f"perplexity {perplexities[-1]:,.0f}", flush=True)
    return perplexities


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--variant", default="lstm-tied")
    parser.add_argument("--batch-size", type=int, default=20)
    parser.add_argument("--input-size", type=int, default=35)
    arguments = parser.parse_args()
    last = learn(arguments.directory, arguments.variant, arguments.batch_size, arguments.input_size)[-1]
    raise SystemExit(0 if last < 1_000 else f"the last tenth's perplexity is {last:,.0f}, not below 1,000")
