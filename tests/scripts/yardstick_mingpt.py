"""A small transformer by a trainer class: callbacks, groups of parameters, a loader that begins anew; then sampling."""

from collections import defaultdict
from collections.abc import Callable

import torch
from own_clock import num_iterations, phase
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, RandomSampler

NUM_WORDS, BLOCK_SIZE, WIDTH, HEADS = 32, 24, 96, 4


class SortDataset(Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        numbers = torch.randint(NUM_WORDS, (BLOCK_SIZE // 2,), generator=torch.Generator().manual_seed(index))
        both = torch.cat((numbers, numbers.sort()[0]))
        x, y = both[:-1].clone(), both[1:].clone()
        y[:BLOCK_SIZE // 2 - 1] = -1
        return x, y


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.size()
        q, k, v = (part.view(batch, length, HEADS, -1).transpose(1, 2) for part in self.attn(self.ln_1(x)).chunk(3, -1))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(NUM_WORDS, WIDTH), nn.Embedding(BLOCK_SIZE, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.ln_f, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, NUM_WORDS, bias=False)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        decay = [one for one in self.parameters() if one.dim() >= 2]
        rest = [one for one in self.parameters() if one.dim() < 2]
        return torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}],
                                 lr=5e-4, betas=(0.9, 0.95))

    def forward(self, words: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        x = self.wte(words) + self.wpe(torch.arange(words.size(1)))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.ln_f(x))
        if targets is None:
            return logits, None
        with phase("loss"):
            return logits, functional.cross_entropy(logits.view(-1, NUM_WORDS), targets.view(-1), ignore_index=-1)

    @torch.no_grad()
    def generate(self, words: Tensor, num_words: int) -> Tensor:
        for _ in range(num_words):
            num_iterations["infer"] += 1
            logits, _ = self(words[:, -BLOCK_SIZE:])
            words = torch.cat((words, logits[:, -1].argmax(-1, keepdim=True)), dim=1)
        return words


class Trainer:
    def __init__(self, model: GPT, dataset: Dataset) -> None:
        self.model, self.dataset = model, dataset
        self.callbacks: defaultdict[str, list[Callable[[Trainer], None]]] = defaultdict(list)
        self.iter_num, self.loss = 0, torch.zeros(())

    def trigger(self, event: str) -> None:
        for callback in self.callbacks[event]:
            callback(self)

    def run(self, max_iters: int) -> None:
        self.optimizer = self.model.configure_optimizers()
        loader = DataLoader(self.dataset, sampler=RandomSampler(self.dataset, replacement=True, num_samples=48),
                            batch_size=16)
        self.model.train()
        data_iter = iter(loader)
        while True:
            try:
                batch = next(data_iter)
            except StopIteration:
                data_iter = iter(loader)
                batch = next(data_iter)
            num_iterations["train"] += 1
            x, y = [one.to("cpu") for one in batch]
            with phase("forward"):
                _, self.loss = self.model(x, y)
            self.model.zero_grad(set_to_none=True)
            with phase("backward"):
                self.loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.trigger("on_batch_end")
            self.iter_num += 1
            if self.iter_num >= max_iters:
                break


def batch_end_callback(trainer: Trainer) -> None:
    if trainer.iter_num % 4 == 0:
        print(f"iter {trainer.iter_num}: train loss {trainer.loss.item():.5f}")


torch.manual_seed(3407)
model = GPT()
trainer = Trainer(model, SortDataset())
trainer.callbacks["on_batch_end"].append(batch_end_callback)
trainer.run(max_iters=10)
model.eval()
print(model.generate(torch.tensor([[3, 1, 2]]), 5).tolist())
