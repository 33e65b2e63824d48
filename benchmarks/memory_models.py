"""Ten models of users, for `memory_prediction.py`: classes of transformers, and nets with less common layers."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional

SPECS = {
    "bert": "input_ids=int64[500] S, attention_mask=int64[1:2] S, labels=int64[2]",
    "gpt2": "input_ids=int64[500] S, labels=int64[500] S", "llama": "input_ids=int64[500] S, labels=int64[500] S",
    "t5": "input_ids=int64[500] S, labels=int64[500] S", "vit": "3xSxS -> int64[10]",
    "mobile": "3xSxS -> int64[10]", "dilated": "3xSxS -> int64[10]", "unet": "3xSxS -> 3xSxS",
    "video": "3x8xSxS -> int64[10]", "speech": "Sx40 -> int64[10]",
}
"""Inputs of each model."""
SEQUENCES = ("bert", "gpt2", "llama", "t5", "speech")


def bert() -> Any:
    """Return an encoder with a classifier."""
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(BertConfig(
        vocab_size=500, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=160))


def gpt2() -> Any:
    """Return a decoder with learned positions."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(vocab_size=500, n_positions=128, n_embd=64, n_layer=3, n_head=4))


def llama() -> Any:
    """Return a decoder with grouped-query attention."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(vocab_size=500, hidden_size=64, intermediate_size=160, num_hidden_layers=3,
                                        num_attention_heads=4, num_key_value_heads=2))


def t5() -> Any:
    """Return an encoder and a decoder."""
    from transformers import T5Config, T5ForConditionalGeneration

    return T5ForConditionalGeneration(T5Config(vocab_size=500, d_model=64, d_kv=16, d_ff=160, num_layers=2, num_heads=4,
                                               decoder_start_token_id=0))


def vit() -> nn.Module:
    """Return a classifier of patches, without transformers: images of any size."""
    return _Patches()


class _Patches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 96, 8, stride=8)
        layer = nn.TransformerEncoderLayer(96, 4, 256, batch_first=True, activation="gelu", norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.classes = nn.Linear(96, 10)

    def forward(self, x: torch.Tensor) -> Any:
        """Return scores (N, 10)."""
        return self.classes(self.layers(self.patches(x).flatten(2).mT).mean(1))


def mobile() -> nn.Module:
    """Return depthwise separable convolutions with squeeze-and-excitation."""
    return nn.Sequential(_Separable(3, 24, 2), _Separable(24, 48, 2), _Separable(48, 96, 1), nn.AdaptiveAvgPool2d(1),
                         nn.Flatten(), nn.Linear(96, 10))


class _Separable(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, 2 * outputs, 1, bias=False), nn.BatchNorm2d(2 * outputs), nn.SiLU(),
            nn.Conv2d(2 * outputs, 2 * outputs, 5, stride, 2, groups=2 * outputs, bias=False),
            nn.BatchNorm2d(2 * outputs), nn.SiLU())
        self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(2 * outputs, 8, 1), nn.ReLU(),
                                  nn.Conv2d(8, 2 * outputs, 1), nn.Sigmoid())
        self.project = nn.Conv2d(2 * outputs, outputs, 1)

    def forward(self, x: torch.Tensor) -> Any:
        """Return features at the stride."""
        x = self.body(x)
        return self.project(x * self.gate(x))


def dilated() -> nn.Module:
    """Return parallel dilated convolutions with group norms."""
    return nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), _Pyramid(32), _Pyramid(32), nn.AdaptiveMaxPool2d(1),
                         nn.Flatten(), nn.Linear(32, 10))


class _Pyramid(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Conv2d(width, width, 3, padding=rate, dilation=rate) for rate in (1, 2, 4))
        self.join = nn.Sequential(nn.Conv2d(3 * width, width, 1), nn.GroupNorm(4, width), nn.LeakyReLU())

    def forward(self, x: torch.Tensor) -> Any:
        """Return features of the input's size."""
        return x + self.join(torch.cat([branch(x) for branch in self.branches], 1))


def unet() -> nn.Module:
    """Return an encoder and a decoder with transposed convolutions and connections between them."""
    return _UNet()


class _UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList((nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)))
        self.middle = nn.Conv2d(32, 64, 3, padding=1)
        self.up = nn.ModuleList((nn.ConvTranspose2d(64, 32, 2, 2), nn.ConvTranspose2d(64, 16, 2, 2)))
        self.last = nn.Conv2d(32, 3, 1)

    def forward(self, x: torch.Tensor) -> Any:
        """Return an image of the input's size, a multiple of 4."""
        kept = []
        for layer in self.down:
            x = functional.relu(layer(x))
            kept.append(x)
            x = functional.max_pool2d(x, 2)
        x = functional.relu(self.middle(x))
        for layer in self.up:
            x = torch.cat([functional.relu(layer(x)), kept.pop()], 1)
        return self.last(x)


def video() -> nn.Module:
    """Return three-dimensional convolutions."""
    return nn.Sequential(
        nn.Conv3d(3, 16, (3, 7, 7), (1, 2, 2), (1, 3, 3)), nn.BatchNorm3d(16), nn.ReLU(), nn.MaxPool3d(2),
        nn.Conv3d(16, 32, 3, padding=1), nn.BatchNorm3d(32), nn.ReLU(), nn.Conv3d(32, 32, 1), nn.AdaptiveAvgPool3d(1),
        nn.Flatten(), nn.Linear(32, 10))


def speech() -> nn.Module:
    """Return convolutions over time, a bidirectional LSTM and a GRU."""
    return _Speech()


class _Speech(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.frames = nn.Sequential(nn.Conv1d(40, 64, 5, padding=2), nn.BatchNorm1d(64), nn.GELU())
        self.lstm = nn.LSTM(64, 48, num_layers=2, bidirectional=True, batch_first=True)
        self.gru = nn.GRU(96, 32, batch_first=True)
        self.classes = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> Any:
        """Return scores (N, 10)."""
        x = self.frames(x.mT).mT
        return self.classes(self.gru(self.lstm(x)[0])[0][:, -1])
