"""WikiText-2: the real splits, made files in the true format, broken ones, and the streams they are cut into."""

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.damage import attempt, damaged
from torch.utils.data import DataLoader

from charact.core.errors import UserError
from charact.datasets import wikitext
from charact.datasets._common.request import DataRequest
from charact.datasets._common.spec import PublishedFile, Split
from charact.datasets._samples.text_streams import TokenStreams, language_model_dataset
from charact.datasets.wikitext import DATASETS, NUM_LINES, NUM_TOKENS, tokenize

SPEC = DATASETS[0]
REAL = Path(__file__).resolve().parents[4] / "shared" / "data" / "wikitext-2"
needs_files = pytest.mark.skipif(not REAL.is_dir(), reason="needs WikiText-2's valid and test in ../shared/data")
MADE: dict[Split, str] = {"train": " \n = A <unk> = \n \n a b , a \n", "valid": " \n b a new \n"}
MADE_COUNTS: dict[Split, tuple[int, int]] = {"train": (4, 12), "valid": (2, 5)}


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files in the true format, with their counts as if published."""
    for split, text in MADE.items():
        (tmp_path / f"wiki.{split}.tokens").write_text(text)
        lines, tokens = MADE_COUNTS[split]
        monkeypatch.setitem(NUM_LINES, split, lines)
        monkeypatch.setitem(NUM_TOKENS, split, tokens)
    return tmp_path


def streams(tokens: int, *, batch_size: int, input_size: int) -> TokenStreams:
    return TokenStreams(np.arange(tokens), tokens, input_size, DataRequest(batch_size=batch_size))


@needs_files
@pytest.mark.parametrize(("split", "num_lines", "num_tokens", "num_words"), [
    ("valid", 3_760, 217_646, 13_777), ("test", 4_358, 245_569, 14_143)])
def test_the_real_splits_have_their_published_counts(
    split: Split, num_lines: int, num_tokens: int, num_words: int
) -> None:
    for directory in (REAL, REAL.parent):
        tokens, vocabulary = SPEC.load(directory, split)
        assert len(tokens) == num_tokens
        assert (tokens == vocabulary["<eos>"]).sum() == num_lines
        assert len(vocabulary) == num_words == len(np.unique(tokens))


@needs_files
def test_the_valid_split_begins_as_the_article_does() -> None:
    tokens, vocabulary = SPEC.load(REAL, "valid")
    assert " ".join(vocabulary.decode(tokens[:9])) == "<eos> = Homarus gammarus = <eos> <eos> Homarus gammarus"


@needs_files
@pytest.mark.parametrize("change", ["cut", "longer", "one bit"])
def test_a_changed_file_is_refused(tmp_path: Path, change: str) -> None:
    content = bytearray((REAL / "valid.txt").read_bytes())
    if change == "cut":
        del content[-1000:]
    elif change == "longer":
        content += b" a"
    else:
        content[5_000] ^= 1
    (tmp_path / "valid.txt").write_bytes(content)
    with pytest.raises(UserError, match=r"valid.txt is (truncated|foreign|truncated or foreign) \(.*: fetch it again"):
        SPEC.load(tmp_path, "valid")


def test_the_vocabulary_is_the_train_files(made: Path) -> None:
    tokens, vocabulary = SPEC.load(made, "valid")
    assert vocabulary.words == ("<unk>", "<eos>", "=", "A", "a", "b", ",")
    assert vocabulary.decode(tokens) == ["<eos>", "b", "a", "<unk>", "<eos>"]
    assert SPEC.load(made, "train")[1].words == vocabulary.words


def test_without_the_train_file_it_is_the_splits_own(made: Path) -> None:
    (made / "wiki.train.tokens").unlink()
    tokens, vocabulary = SPEC.load(made, "valid")
    assert vocabulary.decode(tokens) == ["<eos>", "b", "a", "new", "<eos>"]
    assert vocabulary.words == ("<unk>", "<eos>", "b", "a", "new")


def test_lines_and_words_that_are_not_as_many_as_published_are_refused(made: Path) -> None:
    (made / "wiki.valid.tokens").write_text(" \n b a \n")
    with pytest.raises(UserError, match=r"wiki.valid.tokens has 2 lines and 4 words for valid, 2 and 5 were published: "
                                        r"fetch it again from https://"):
        SPEC.load(made, "valid")


def test_the_plain_name_is_preferred(made: Path) -> None:
    (made / "valid.txt").write_bytes(b"other")
    with pytest.raises(UserError, match=r"valid.txt is truncated \(5 bytes, published 1,121,681\)"):
        SPEC.load(made, "valid")
    content = b" \n b b new \n"
    file = PublishedFile("valid.txt", len(content), hashlib.md5(content).hexdigest())
    (made / "valid.txt").write_bytes(content)
    tokens, vocabulary = replace(SPEC, files=(file, *SPEC.files[3:])).load(made, "valid")
    assert vocabulary.decode(tokens)[1:3] == ["b", "b"]


@given(st.binary(max_size=60) | st.sampled_from(sorted(MADE.values())).flatmap(lambda text: damaged(text.encode())))
def test_any_bytes_are_words_or_refused(content: bytes) -> None:
    lines = attempt(tokenize, content, Path("made"))
    if isinstance(lines, UserError):
        assert str(lines).startswith("made is not UTF-8 text")
    else:
        assert all(line[-1] == wikitext.END_OF_LINE for line in lines)
        assert [word for line in lines for word in line[:-1]] == content.decode().split()


@pytest.mark.parametrize(("content", "lines"), [
    (b"", []), (b"a b", [["a", "b", "<eos>"]]), (b"a\n\nb\n", [["a", "<eos>"], ["<eos>"], ["b", "<eos>"]]),
    ("a\u2028b\n".encode(), [["a", "b", "<eos>"]]),
])
def test_every_line_ends_with_its_mark(content: bytes, lines: list[list[str]]) -> None:
    assert tokenize(content, Path("made")) == lines


def test_an_epoch_has_as_many_batches_as_the_published_one() -> None:
    dataset = streams(NUM_TOKENS["train"], batch_size=20, input_size=35)
    assert dataset.streams.shape == (20, 104_431)
    assert len(dataset) == 20 * 2_984


def test_batches_continue_the_same_streams_and_targets_are_one_word_later() -> None:
    dataset = streams(103, batch_size=4, input_size=10)
    batches = list(DataLoader(dataset, batch_size=4, collate_fn=dataset.collate))
    inputs, targets = (torch.cat(parts) for parts in zip(*batches, strict=True))
    # Streams of 25 words: 24 to read, 24 to predict; the last stretch has 4 of them, the last 3 words are left over.
    assert [len(batch[0]) for batch in batches] == [10, 10, 4]
    assert inputs.T.tolist() == [list(range(start, start + 24)) for start in (0, 25, 50, 75)]
    assert torch.equal(targets, inputs + 1)


@pytest.mark.parametrize(("batch_size", "input_size"), [(4, 25), (60, 1), (200, 1)])
def test_a_text_that_is_too_short_is_refused(batch_size: int, input_size: int) -> None:
    with pytest.raises(UserError, match=rf"synthetic \(train\) has 100 words, too few for batch size {batch_size} and "
                                        rf"input size {input_size}: choose a smaller one"):
        streams(100, batch_size=batch_size, input_size=input_size)
    assert len(streams(100, batch_size=4, input_size=24)) == 4


@pytest.mark.parametrize("index", [-1, 12])
def test_streams_end(index: int) -> None:
    dataset = streams(103, batch_size=4, input_size=10)
    with pytest.raises(IndexError):
        dataset[index]


@pytest.mark.parametrize(("batch_size", "input_size"), [(20, 35), (2, 1200), (64, 1)])
def test_made_up_text_has_whole_stretches_only(batch_size: int, input_size: int) -> None:
    request = DataRequest(batch_size=batch_size)
    dataset = language_model_dataset(request, input_size=input_size, num_synthetic_words=50)
    assert {len(dataset[index][0]) for index in range(len(dataset) - batch_size, len(dataset))} == {input_size}
    assert len(dataset) >= 8 * batch_size


def test_made_up_text_depends_on_seed_and_split() -> None:
    texts = [
        language_model_dataset(DataRequest(seed=seed, split=split), input_size=8, num_synthetic_words=50).streams
        for seed, split in [(0, "train"), (0, "train"), (1, "train"), (0, "valid"), (0, "test")]
    ]
    assert np.array_equal(texts[0], texts[1])
    assert not any(np.array_equal(texts[0], other) for other in texts[2:])
    assert (texts[0] == 0).mean() == pytest.approx(1 / (1 / np.arange(1, 51)).sum(), abs=0.02)
