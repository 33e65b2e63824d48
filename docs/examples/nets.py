"""A small network for images of any size, and a small language model."""

from torch import Tensor, nn


class Net(nn.Module):
    """Two convolutions and a classifier of 10 classes."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
            nn.Flatten(), nn.Linear(2 * width, 10),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return logits of shape (batch, 10) for images of shape (batch, 3, height, width)."""
        logits: Tensor = self.layers(images)
        return logits


def tiny_llama() -> nn.Module:
    """Return a Llama of Hugging Face's Transformers with 2.5 million random weights, for 500 tokens."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(
        vocab_size=500, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=8,
        num_key_value_heads=2, max_position_embeddings=64))
