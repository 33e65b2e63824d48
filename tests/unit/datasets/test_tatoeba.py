"""Tatoeba pairs: the real file, synthetic files, the tutorial's rules, synthetic pairs, and broken files."""

import io
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.damage import attempt, damaged

from charact.core.errors import UserError
from charact.datasets._common.request import DataRequest
from charact.datasets._samples.translation_pairs import translation_dataset
from charact.datasets.tatoeba import (
    ARCHIVE,
    DATASETS,
    EOS,
    PADDING,
    encode_pairs,
    in_split,
    make_pairs,
    normalize,
    parse_pairs,
    select,
)

REAL = Path(__file__).resolve().parents[4] / "shared" / "data" / "tatoeba"
needs_tatoeba = pytest.mark.skipif(not REAL.is_dir(), reason="needs eng-fra.txt in ../shared/data/tatoeba")
MADE = Path("made")
LINES = [
    "Go.\tVa !",
    "I'm cold.\tJ'ai froid.",
    "He is old!\tIl est âgé !",
    "Am I late?\tSuis-je en retard ?",
    "You're right.\tVous avez raison.",
]
ATTRIBUTION = "\tCC-BY 2.0 (France) Attribution: tatoeba.org #1 (a) & #2 (b)"


def file_bytes(lines: list[str]) -> bytes:
    return ("\n".join(lines) + "\n").encode()


def zip_bytes(name: str, content: bytes) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("data/names/Irish.txt", "Ó Néill")
        file.writestr(name, content)
    return archive.getvalue()


def write_archive(directory: Path) -> None:
    (directory / "data.zip").write_bytes(zip_bytes("data/eng-fra.txt", file_bytes(LINES)))


@pytest.mark.parametrize(("sentence", "words"), [
    ("I'm cold.", "i m cold"),
    (" Où est-ce, l'été ?", "ou est ce l ete ?"),
    ("Va !", "va !"), ("Go!!", "go ! !"), ("No. 7 is n°7", "no is n"), ("Ça œuvre…", "ca uvre"), ("", ""),
])
def test_sentences_are_normalized_as_in_the_tutorial(sentence: str, words: str) -> None:
    assert normalize(sentence) == words


@pytest.mark.parametrize("ending", ["", ATTRIBUTION])
@pytest.mark.parametrize("newline", ["", "\r"])
def test_both_forms_of_the_file_give_the_same_pairs(ending: str, newline: str) -> None:
    pairs = parse_pairs(file_bytes([line + ending + newline for line in LINES]), MADE)
    assert pairs[1] == ("i m cold", "j ai froid")
    assert pairs[2] == ("he is old !", "il est age !")
    assert len(pairs) == 5
    assert [english for english, _ in select(pairs, 10)] == ["i m cold", "he is old !", "you re right"]


def test_sentences_leave_a_place_for_the_end_mark() -> None:
    pairs = [("i m " + "so " * 7, "a"), ("i m " + "so " * 8, "a"), ("i m so", "a " * 9), ("i m so", "a " * 10)]
    assert select(pairs, 10) == [pairs[0], pairs[2]]


def test_a_pair_without_a_french_word_is_left_out() -> None:
    assert select(parse_pairs("I'm 5.\t…\n".encode(), MADE), 10) == []


@needs_tatoeba
def test_the_real_extract_has_the_counts_that_a_plain_reading_gives() -> None:
    """135,842 pairs give 11,445 in the tutorial; here the first 5,000 of a newer file, the shortest sentences."""
    content = (REAL / "eng-fra.txt").read_bytes()
    pairs = parse_pairs(content, REAL)
    kept = select(pairs, 10)
    assert (len(pairs), len(kept)) == (5_000, 769)
    # Counted on the raw English text: none this short is left out for its length, but "I'm 19." has no word to follow.
    beginnings = ("I'm ", "I am ", "He's ", "He is", "She's ", "She is", "You're ", "You are", "We're ", "We are",
                  "They're ", "They are")
    assert sum(line.startswith(beginnings) for line in content.decode().split("\n")) == 769 + 1
    train, test = (encode_pairs(pairs, split, 10) for split in ("train", "test"))
    assert len(train.sources) + len(test.sources) == 769
    assert len(train.source_vocabulary) == len({word for _, french in kept for word in french.split()}) + 2 == 601
    assert len(train.target_vocabulary) == 349
    assert train.source_vocabulary.words == test.source_vocabulary.words


def test_pairs_become_numbers_from_french_to_english() -> None:
    pairs = parse_pairs(file_bytes(LINES), MADE)
    encoded = encode_pairs(pairs, "train", 6)
    assert encoded.source_vocabulary.words[:5] == ("<sos>", "<eos>", "j", "ai", "froid")
    assert encoded.sources[0].tolist() == [2, 3, 4, EOS, PADDING, PADDING]
    assert encoded.targets[1].tolist() == [5, 6, 7, 8, EOS, PADDING]
    assert encoded.target_vocabulary.decode(encoded.targets[1][:4]) == ["he", "is", "old", "!"]
    assert encoded.sources.dtype == encoded.targets.dtype == np.int64


def test_splits_share_no_english_sentence_and_lose_none() -> None:
    pairs = [(f"i m word{number // 3}", f"mot{number}") for number in range(90)]
    train, test = in_split(pairs, "train"), in_split(pairs, "test")
    assert sorted(train + test) == sorted(pairs)
    assert not {english for english, _ in train} & {english for english, _ in test}
    assert len(test) == 9


def test_the_file_is_read_from_the_archive(tmp_path: Path) -> None:
    write_archive(tmp_path)
    dataset = translation_dataset(DataRequest("tatoeba", tmp_path), input_size=8, num_source_words=9,
                                  num_target_words=9)
    assert len(dataset) == 3
    assert dataset[0][0].tolist() == [2, 3, 4, EOS, 0, 0, 0, 0]


def test_made_up_pairs_are_a_function_of_their_seed() -> None:
    def sources(seed: int, split: str = "train") -> np.ndarray:
        return make_pairs(DataRequest(seed=seed, split=split), 10, 100, 80).sources  # type: ignore[arg-type]

    assert np.array_equal(sources(1), sources(1))
    assert not np.array_equal(sources(1), sources(2))
    assert not np.array_equal(sources(1, "valid"), sources(1, "test"))


@pytest.mark.parametrize("length", [2, 3, 10, 50])
def test_made_up_sentences_end_once_and_are_padded(length: int) -> None:
    pairs = make_pairs(DataRequest(split="test"), length, 100, 80)
    for rows, num_words in ((pairs.sources, 100), (pairs.targets, 80)):
        assert rows.shape == (1_000, length)
        assert ((rows == EOS).sum(1) == 1).all()
        ends = (rows == EOS).argmax(1)
        assert ((rows == PADDING) == (np.arange(length) > ends[:, None])).all()
        assert 1 < rows.max() < num_words
    assert len(pairs.source_vocabulary) == 100
    assert len(pairs.target_vocabulary) == 80


@pytest.mark.parametrize(("content", "reason"), [
    (b"", "has 1 columns in line 1"),
    (b"I'm cold.\n", "has 1 columns in line 1"),
    (b"a\tb\nc\td\te\tf\n", "has 4 columns in line 2"),
    (b"a\tb\n\nc\td\n", "has 1 columns in line 2"),
    (b"a\tb\nc\xff\td\n", "is not UTF-8 text from byte 5 on"),
    (b"<html>not found</html>", "has 1 columns"),
])
def test_other_content_is_refused(content: bytes, reason: str) -> None:
    with pytest.raises(UserError, match=f"^made {reason}.*fetch it again$"):
        parse_pairs(content, MADE)


def test_a_length_that_no_pair_has_is_refused(tmp_path: Path) -> None:
    write_archive(tmp_path)
    with pytest.raises(UserError, match=r"no pair for train below 3 words.*larger --input-sizes"):
        translation_dataset(DataRequest("tatoeba", tmp_path), input_size=3, num_source_words=9, num_target_words=9)


def test_an_archive_without_the_file_or_with_an_absurd_one_is_refused(tmp_path: Path) -> None:
    archive = zip_bytes("data/eng-fra.txt", b"a\tb")
    announced = archive.rfind((3).to_bytes(4, "little"))
    bomb = archive[:announced] + (2**30).to_bytes(4, "little") + archive[announced + 4 :]
    for content, said in ((zip_bytes("data/deu.txt", b"a\tb"), r"has no eng-fra\.txt"),
                          (zip_bytes("data/eng-fra.txt.bak", b"a\tb"), r"has no eng-fra\.txt"),
                          (bomb, r"unpacks to 1\.0 GiB, the limit is 64\.0 MiB")):
        (tmp_path / ARCHIVE).write_bytes(content)
        with pytest.raises(UserError, match=said):
            DATASETS[0].load(tmp_path, "train")


@settings(deadline=None)
@given(st.binary(max_size=64) | st.text(alphabet="I'm \t\né!", max_size=40).map(str.encode)
       | damaged(file_bytes(LINES)))
def test_parsing_takes_a_file_whole_or_refuses_it_in_one_line(content: bytes) -> None:
    pairs = attempt(parse_pairs, content, MADE)
    if isinstance(pairs, UserError):
        return
    assert len(pairs) == content.decode("utf-8-sig").strip().count("\n") + 1
    assert all(re.fullmatch(r"([a-z!?]+( [a-z!?]+)*)?", side) for pair in pairs for side in pair)
    encoded = attempt(encode_pairs, pairs, "train", 10)
    kept = in_split(select(pairs, 10), "train")
    if isinstance(encoded, UserError):
        assert not kept
        return
    decoded = [" ".join(encoded.source_vocabulary.decode(row[row > EOS])) for row in encoded.sources]
    assert decoded == [french for _, french in kept]


@pytest.mark.slow
def test_a_file_larger_than_the_published_one_is_read() -> None:
    pairs = parse_pairs(b"I'm x\ty\n" * 150_000, MADE)
    assert len(select(pairs, 10)) == len(pairs) == 150_000
