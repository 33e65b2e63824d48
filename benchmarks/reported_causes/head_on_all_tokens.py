"""The logits of all tokens of a prompt are computed, and all but the last token's are thrown away.

Report: huggingface/transformers, issue 38977 (also karpathy/nanoGPT, issue 42).
"""

import os
import time

import torch
import torch.nn as nn

REMEDY = bool(os.environ.get("REMEDY"))


class Model(nn.Module):
    """A small language model."""

    def __init__(self):
        super().__init__()
        self.transformer = nn.Embedding(16000, 128)
        layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.lm_head = nn.Linear(128, 16000, bias=False)

    def forward(self, ids, mask):
        hidden_states = self.blocks(self.transformer(ids), mask=mask, is_causal=True)
        if REMEDY:
            hidden_states = hidden_states[:, -1:]
        return self.lm_head(hidden_states)


torch.manual_seed(0)
model = Model().eval()
choices = torch.randint(0, 16000, (4,))
mask = nn.Transformer.generate_square_subsequent_mask(160)
answers = []
start = time.perf_counter()
with torch.inference_mode():
    for _ in range(80):
        logits = model(torch.randint(0, 16000, (4, 160)), mask)
        answers.append(logits[:, -1, choices].argmax(1))
print(f"loop: {time.perf_counter() - start:.3f} s, mean answer {torch.cat(answers).float().mean().item():.3f}")
