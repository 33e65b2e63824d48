"""Programs that generate, with stopwatches of their own: `transformers`, or a loop of sleeps `cached` or `recomputing`.

`by_forward` calls `model.forward` by itself, and `once` for a single request.

`t5`, `bart` and `translating` have an encoder; so have `t5-beams`. `training` generates after each epoch.
`classifying` calls the model of the loops with texts of mixed lengths. The file that TRUTH names then holds the times
to the first tokens and those of the further ones.
"""

import json
import os
import random
import sys
import time
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

NUM_REQUESTS, PROMPT, OUTPUTS = 6, 40, 10
NUM_STEPS = 4
PROMPT_S, TOKEN_S, SAMPLE_S = 0.02, 0.006, 0.002
first_s: list[float] = []
token_s: list[float] = []


def note(begin_s: float, ends_s: list[float]) -> None:
    """Note the times of a request from its begin and the ends of its tokens."""
    first_s.append(ends_s[0] - begin_s)
    token_s.extend(after - before for before, after in pairwise(ends_s))


class Sleepy(nn.Module):
    """A language model whose words take a known time."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(100, 8)

    def forward(self, ids: Tensor, cache: list[Tensor] | None = None) -> Tensor:
        x = self.words(ids)
        time.sleep(TOKEN_S if ids.shape[1] == 1 else PROMPT_S)
        if cache is not None:
            cache.append(x)
            x = torch.cat(cache, 1)
        return x.sum(1) @ self.words.weight.T


@torch.no_grad()
def loop(has_cache: bool, num_requests: int = NUM_REQUESTS, *, by_forward: bool = False, model: Sleepy | None = None
         ) -> None:
    model = (model or Sleepy()).eval()
    for _ in range(num_requests):
        ids = torch.randint(0, 100, (2, PROMPT))
        cache: list[Tensor] | None = [] if has_cache else None
        read, ends_s = ids, []
        begin_s = time.perf_counter()
        for _ in range(OUTPUTS):
            logits = model.forward(read, cache) if by_forward else model(read, cache)
            new = logits.argmax(-1, keepdim=True)
            time.sleep(SAMPLE_S)
            ends_s.append(time.perf_counter())
            ids = torch.cat([ids, new], 1)
            read = new if has_cache else ids
        note(begin_s, ends_s)
        print(ids.sum().item())
        time.sleep(0.03)  # such as for showing the answer


def train() -> None:
    model = Sleepy()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = DataLoader(torch.randint(0, 100, (2 * NUM_STEPS, PROMPT)), batch_size=2)
    for _ in range(NUM_REQUESTS):
        model.train()
        for ids in batches:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(ids), ids[:, -1]).backward()
            optimizer.step()
        loop(True, 1, model=model)


@torch.no_grad()
def classify() -> None:
    model = Sleepy().eval()
    draw = random.Random(0)
    for _ in range(60):
        print(model(torch.randint(0, 100, (2, draw.randint(1, 4)))).argmax(-1).tolist())


class Stopwatch:
    """A streamer, which is given the prompts and then each token when it is known."""

    def __init__(self) -> None:
        self.times_s: list[float] = []

    def put(self, _: Tensor) -> None:
        self.times_s.append(time.perf_counter())

    def end(self) -> None:
        note(self.times_s[0], self.times_s[1:])


def transformers() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=200, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512)).eval()
    for _ in range(NUM_REQUESTS):
        ids = torch.randint(3, 200, (2, 8 * PROMPT))
        outputs = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=OUTPUTS,
                                 min_new_tokens=OUTPUTS, do_sample=False, pad_token_id=0, streamer=Stopwatch())
        print(outputs.sum().item())


class Encoder(nn.Module):
    """An encoder that takes a known time."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(100, 8)

    def forward(self, ids: Tensor) -> Tensor:
        time.sleep(PROMPT_S)
        return self.words(ids).sum(1)


@torch.no_grad()
def translate() -> None:
    encoder, decoder = Encoder().eval(), Sleepy().eval()
    for _ in range(NUM_REQUESTS):
        begin_s, ends_s = time.perf_counter(), []
        cache = [encoder(torch.randint(0, 100, (2, PROMPT)))[:, None]]
        read = torch.zeros(2, 1, dtype=torch.int64)
        for _ in range(OUTPUTS):
            read = decoder(read, cache).argmax(-1, keepdim=True)
            time.sleep(SAMPLE_S)
            ends_s.append(time.perf_counter())
        note(begin_s, ends_s)
        time.sleep(0.03)


class EncoderStopwatch(Stopwatch):
    """The same of a model with an encoder: a request begins with that; it is given the decoder's first word, too."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.begin_s = 0.0
        encoder.register_forward_pre_hook(lambda *_: setattr(self, "begin_s", time.perf_counter()))

    def end(self) -> None:
        note(self.begin_s, self.times_s[1:])
        self.times_s = []


def encoding_transformers(kind: str, num_beams: int = 1) -> None:
    import transformers as library

    shared = {"vocab_size": 200, "d_model": 256, "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1}
    model = (library.T5ForConditionalGeneration(library.T5Config(
        d_kv=64, d_ff=512, num_layers=3, num_heads=4, **shared)) if kind == "t5" else
        library.BartForConditionalGeneration(library.BartConfig(
            encoder_layers=3, decoder_layers=3, encoder_ffn_dim=512, decoder_ffn_dim=512, encoder_attention_heads=4,
            decoder_attention_heads=4, max_position_embeddings=512, **shared))).eval()
    stopwatch = EncoderStopwatch(model.get_encoder())
    for _ in range(NUM_REQUESTS):
        ids = torch.randint(3, 200, (2, 8 * PROMPT))
        outputs = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=OUTPUTS, do_sample=False,
                                 min_new_tokens=OUTPUTS, num_beams=num_beams,
                                 streamer=None if num_beams > 1 else stopwatch)
        print(outputs.sum().item())


torch.manual_seed(0)
torch.set_num_threads(1)
{"transformers": transformers, "cached": lambda: loop(True), "recomputing": lambda: loop(False),
 "by_forward": lambda: loop(True, by_forward=True), "once": lambda: loop(True, 1, by_forward=True),
 "classifying": classify, "translating": translate, "training": train, "t5": lambda: encoding_transformers("t5"),
 "bart": lambda: encoding_transformers("bart"), "t5-beams": lambda: encoding_transformers("t5", 3)}[sys.argv[1]]()
with open(os.environ["TRUTH"], "w", encoding="utf-8") as file:
    json.dump({"first_s": first_s, "token_s": token_s}, file)
