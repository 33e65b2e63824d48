"""Contents of tensors, against tensors whose contents are known."""

import pytest
import torch

from charact.measure.script.inspection import tensor_contents
from charact.measure.script.inspection.tensor_contents import (
    denormal_frac,
    num_repeated_rows,
    num_used_rows,
    padding_frac,
)


class TestUsedRows:
    @pytest.mark.parametrize("chunk", [1, 64, 1 << 22])
    def test_rows_with_a_nonzero_element_count(self, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tensor_contents, "_CHUNK_ELEMENTS", chunk)
        gradient = torch.zeros(101, 8)
        gradient[[3, 50, 100], [0, 7, 2]] = torch.tensor([1e-30, -1.0, float("nan")])
        assert num_used_rows(gradient) == 3

    def test_of_a_large_gradient_some_rows_are_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tensor_contents, "_MOST_ELEMENTS", 200)
        gradient = torch.zeros(1000, 2)
        gradient[:500] = 1
        assert num_used_rows(gradient) == 500

    def test_rows_of_a_sparse_gradient_count_once(self) -> None:
        layer = torch.nn.Embedding(100, 4, sparse=True)
        layer(torch.tensor([5, 5, 7])).sum().backward()
        assert layer.weight.grad is not None
        assert num_used_rows(layer.weight.grad) == 2


def test_denormal_numbers_are_nonzero_and_below_the_smallest_normal_one() -> None:
    tensor = torch.tensor([0.0, 1e-40, -1e-40, 1e-37, 1.0])
    assert denormal_frac([tensor, torch.ones(3, 1)]) == 2 / 8
    assert denormal_frac([tensor.half()]) == 0
    assert denormal_frac([]) == 0


LENGTHS = torch.tensor([8, 6, 3, 3])
TOKENS = torch.arange(8) < LENGTHS[:, None]
PADDED = 1 - 20 / 32


class TestPadding:
    @pytest.mark.parametrize(("name", "mask"), [
        ("attention_mask", TOKENS), ("attention_mask", TOKENS.long()), ("mask", TOKENS.flip(1).float()),
        ("src_key_padding_mask", ~TOKENS), ("mask", ~TOKENS), ("attention_mask", TOKENS[:, None, None]),
        ("mask", torch.zeros(4, 8).masked_fill(~TOKENS, float("-inf"))),
    ])
    def test_masks_of_all_kinds(self, name: str, mask: torch.Tensor) -> None:
        assert padding_frac(name, mask) == pytest.approx(PADDED)

    @pytest.mark.parametrize(("name", "mask"), [
        ("mask", torch.ones(8, 8).tril()), ("mask", torch.ones(8, 8).triu(1).bool()),
        ("masked", torch.arange(32).reshape(4, 8)), ("mask", torch.tensor([[1, 0, 1, 0], [0, 1, 1, 0]])),
        ("mask", torch.ones(4, 2, 8, 8)), ("x", TOKENS), ("x", torch.zeros(4, 8)),
    ])
    def test_other_tensors_are_no_padding(self, name: str, mask: torch.Tensor) -> None:
        assert padding_frac(name, mask) is None

    def test_without_padding(self) -> None:
        assert padding_frac("attention_mask", torch.ones(4, 8)) == 0
        assert padding_frac("key_padding_mask", torch.zeros(4, 8, dtype=torch.bool)) == 0

    @pytest.mark.parametrize("flipped", [False, True])
    def test_identifiers_whose_ends_one_fills(self, flipped: bool) -> None:
        ids = (torch.arange(32).reshape(4, 8) + 5).masked_fill(~TOKENS, 2)
        assert padding_frac("ids", ids.flip(1) if flipped else ids) == pytest.approx(PADDED)

    @pytest.mark.parametrize("ids", [
        torch.arange(8).expand(4, 8),  # positions
        torch.zeros(4, 8, dtype=torch.long),  # types of tokens
        torch.tensor([[0, 0, 0, 1, 1, 0], [0, 0, 1, 1, 0, 0]]),
        torch.tensor([[5, 6, 7, 9], [4, 3, 8, 9]]),  # an end
    ])
    def test_other_identifiers(self, ids: torch.Tensor) -> None:
        assert padding_frac("ids", ids) is None


class TestRepeatedRows:
    @pytest.mark.parametrize(("tensors", "expected"), [
        ([torch.arange(60).view(5, 12).repeat_interleave(4, 0)], 15),
        ([torch.arange(60).view(5, 12)], 0),
        ([torch.arange(16).view(2, 8).repeat(2, 1)], 2), ([torch.arange(14).view(2, 7).repeat(2, 1)], None),
        ([torch.arange(24).view(3, 8)], None),
        ([torch.randn(5, 3, 4).repeat(2, 1, 1)], 5),
        ([torch.arange(60).view(5, 12), torch.ones(5, 12)], 0),  # all arguments of a row must be the same
        ([torch.arange(12).repeat(6, 1), torch.randint(0, 9, (6, 1))[:, [0] * 12] * 0 + torch.arange(6)[:, None]], 0),
        ([torch.arange(12).expand(6, 12)], None),  # no tensor with rows of its own
        ([torch.ones(6, 12)], None),
        ([torch.ones(6, 12, dtype=torch.bool)], None),
        ([torch.tensor([[1], [1], [2], [2]])], None),  # alike by chance
        ([torch.arange(24).view(2, 12)], None),
        ([torch.randn(5, 12), torch.randn(6, 12)], None),
    ])
    def test_rows_that_repeat_earlier_ones_count(self, tensors: list[torch.Tensor], expected: int | None) -> None:
        assert num_repeated_rows(tensors) == expected

    def test_the_program_s_random_state_stays(self) -> None:
        before = torch.get_rng_state()
        num_repeated_rows([torch.arange(60).view(5, 12)])
        assert torch.equal(torch.get_rng_state(), before)
