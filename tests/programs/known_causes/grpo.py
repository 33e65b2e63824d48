"""Policy optimization without a fault: generate groups, score them, then two steps on the same batch."""

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
from marks import mark
from torch.utils.data import DataLoader

VOCABULARY, WIDTH, HEADS = 128, 96, 4
PROMPT, GROUP, NEW = 8, 4, 16


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x, cache=None):
        rows, length, _ = x.shape
        q, k, v = self.qkv(x).view(rows, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        if cache is not None:
            if cache:
                k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
            cache[:] = [k, v]
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=length > 1)
        return self.out(attended.transpose(1, 2).reshape(rows, length, WIDTH))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Attention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x, cache=None):
        x = x + self.attention(self.norm1(x), cache)
        return x + self.mlp(self.norm2(x))


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(64, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids, caches=None, start=0):
        x = self.tokens(ids) + self.positions(torch.arange(start, start + ids.shape[1]))
        for index, layer in enumerate(self.layers):
            x = layer(x, caches[index] if caches is not None else None)
        return self.head(x)

    @torch.no_grad()
    def generate(self, prompt, num_new):
        caches = [[] for _ in self.layers]
        ids, logits = prompt, self(prompt, caches)
        for index in range(num_new):
            chosen = torch.multinomial(logits[:, -1].softmax(-1), 1)
            ids = torch.cat([ids, chosen], 1)
            if index < num_new - 1:
                logits = self(chosen, caches, ids.shape[1] - 1)
        return ids


def log_probabilities(model, ids):
    logits = model(ids[:, :-1])[:, PROMPT - 1:]
    return torch.gather(logits.log_softmax(-1), 2, ids[:, PROMPT:, None]).squeeze(-1)


torch.manual_seed(0)
torch.set_num_threads(1)
policy = LanguageModel()
reference = copy.deepcopy(policy).eval().requires_grad_(False)
optimizer = torch.optim.AdamW(policy.parameters(), 1e-4, fused=True)
prompts = DataLoader(torch.randint(0, VOCABULARY, (240, PROMPT)), batch_size=6, shuffle=True)
mark("imports")
for step, prompt in enumerate(prompts):
    mark("data")
    policy.eval()
    ids = policy.generate(prompt.repeat_interleave(GROUP, 0), NEW)
    policy.train()
    mark("generation")
    reward = (ids[:, PROMPT:] % 2 == 0).float().mean(1).view(-1, GROUP)
    advantage = ((reward - reward.mean(1, keepdim=True)) / (reward.std(1, keepdim=True) + 1e-4)).flatten()[:, None]
    with torch.no_grad():
        old, expected = log_probabilities(policy, ids), log_probabilities(reference, ids)
    mark("scoring")
    for _ in range(2):
        new = log_probabilities(policy, ids)
        ratio = (new - old).exp()
        gain = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        divergence = (expected - new).exp() - (expected - new) - 1
        loss = (0.04 * divergence - gain).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        mark("policy step")
    if step % 10 == 0:
        print(step, reward.mean().item(), loss.item())
