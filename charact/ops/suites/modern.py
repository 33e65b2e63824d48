"""Operations of one layer of a transformer that reads 2,048 tokens, in three sizes, and of the step that updates it."""

from dataclasses import dataclass, replace

from charact.ops import Problem, parse_problem

_TOKENS = 2048


@dataclass(frozen=True)
class _Transformer:
    width: int
    heads: int
    inner: int
    words: int
    gated: bool = False
    """Whether the inner layer has a gate: then its first product is twice as wide, and one more matrix its weights."""

    @property
    def parameters(self) -> int:
        """Weights of a layer's products."""
        return 4 * self.width**2 + (3 if self.gated else 2) * self.width * self.inner


_SIZES = {
    "gpt2-small": _Transformer(768, 12, 3072, 50_257),
    "gpt-1.3b": _Transformer(2048, 16, 8192, 50_257),
    "7b": _Transformer(4096, 32, 11_008, 32_000, gated=True),
}
"""A. Radford et al. 2019 (GPT-2, its smallest); T. Brown et al. 2020, table 2.1 (GPT-3 XL; its table says 24 heads of
128, which its width does not hold: 16 do); H. Touvron et al. 2023, table 2 (LLaMA 7B)."""


def _texts(size: _Transformer) -> list[str]:
    width, inner = size.width, size.inner
    return [
        f"gemm:{_TOKENS}x{3 * width}x{width}", f"gemm:{_TOKENS}x{width}x{width}",
        f"gemm:{_TOKENS}x{(2 if size.gated else 1) * inner}x{width}", f"gemm:{_TOKENS}x{width}x{inner}",
        f"attention:1x{size.heads}x{_TOKENS}x{_TOKENS}x{width // size.heads}:causal",
        f"normalization:layer_norm:{_TOKENS}x{width}", f"softmax:{_TOKENS}x{size.words}",
        f"embedding:{size.words}x{width}x{_TOKENS}", f"optimizer:adamw:{size.parameters}x4:fused",
    ]


class _Modern:
    """Products of queries, keys and values, of the output and of the inner layer; attention; what is bound by bytes."""

    name = "modern"
    source = "GPT-2 (Radford et al. 2019), GPT-3 XL (Brown et al. 2020), LLaMA 7B (Touvron et al. 2023)"
    sets = tuple(_SIZES)

    def problems(self) -> list[Problem]:
        return [replace(parse_problem(text), suite=self.name, set=name)
                for name, size in _SIZES.items() for text in _texts(size)]


SUITE = _Modern()
