"""English-French sentence pairs of the Tatoeba project, as selected by PyTorch's translation tutorial.

The tutorial's archive has a file with lines `english<TAB>french`; a third column is not read. Sentences are
decomposed (NFD), stripped of accents and lower-cased, and keep only letters, `!` and `?`. A pair is kept if both
sentences have fewer words than the input size, so that an end mark fits, and the English one begins like "I am" or
"he is".

Published: 135,842 pairs, of which 11,445 are kept at 10 words, with 4,601 French and 2,991 English words. No split was
published: here the pairs of every tenth distinct English sentence are the test split, and both splits share the
vocabularies of all kept pairs. Source: pytorch/tutorials, "Translation with a Sequence to Sequence Network".

Tatoeba grows every week, and no checksum of the tutorial's archive was published. Its digest is recorded when it is
fetched, and compared on each read.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from charact.core.archives import zip_file
from charact.core.errors import UserError
from charact.datasets._common.spec import PublishedFile, Split, StoredDatasetSpec
from charact.datasets._common.vocabulary import Tokens, Vocabulary, sentence_lengths, zipf_tokens

if TYPE_CHECKING:
    from charact.datasets._common.request import DataRequest

SOS = PADDING = 0
"""The start mark; padding has the same index, which is never a target before the end mark."""
EOS = 1
MARKS = ("<sos>", "<eos>")
ARCHIVE, FILE = "data.zip", "eng-fra.txt"
MOST_BYTES = 2**26
"""Limit of the file in bytes; it has some ten million, newer ones four times as many."""
MOST_PAIRS = 1_000_000
MOST_LINE_LETTERS = 10_000
ENGLISH_BEGINNINGS = (
    "i am ", "i m ", "he is", "he s ", "she is", "she s ", "you are", "you re ", "we are", "we re ", "they are",
    "they re ",
)
NUM_SYNTHETIC_PAIRS: dict[Split, int] = {"train": 10_000, "test": 1_000, "valid": 1_000}
"""About as many pairs as the tutorial uses."""

Pair = tuple[str, str]
"""English and French."""


@dataclass(frozen=True)
class EncodedPairs:
    """Encoded sentences: sources and targets (N, length), each with its end mark and padded with zeros."""

    sources: Tokens
    targets: Tokens
    source_vocabulary: Vocabulary
    target_vocabulary: Vocabulary


class _Bare(dict[int, str]):
    """Cache of letters without accents.

    Works letter by letter: normalizing a sentence takes quadratic time if it has many accents in a row.
    """

    def __missing__(self, letter: int) -> str:
        decomposed = unicodedata.normalize("NFD", chr(letter))
        self[letter] = "".join(part for part in decomposed if unicodedata.category(part) != "Mn")
        return self[letter]


_BARE = _Bare()


def normalize(sentence: str) -> str:
    """Return the words of a sentence, lower-case, without accents, separated by one space; `!` and `?` are words."""
    bare = sentence.lower().translate(_BARE)
    return re.sub(r"[^a-z!?]+", " ", re.sub(r"([.!?])", r" \1", bare)).strip()


def parse_pairs(content: bytes, path: Path) -> list[Pair]:
    """Return the normalized pairs of a file's content; `path` is for messages."""
    try:
        lines = content.decode("utf-8-sig").strip().split("\n", MOST_PAIRS)
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text from byte {error.start:,} on: fetch it again") from error
    pairs = []
    for number, line in enumerate(lines, start=1):
        if number > MOST_PAIRS or len(line) > MOST_LINE_LETTERS:
            raise UserError(f"{path} has more than {MOST_PAIRS:,} lines, or {MOST_LINE_LETTERS:,} letters in line "
                            f"{number:,}: fetch it again")
        columns = line.split("\t")
        if len(columns) not in (2, 3):
            raise UserError(f"{path} has {len(columns)} columns in line {number:,}, a pair has 2 or 3: fetch it again")
        pairs.append((normalize(columns[0]), normalize(columns[1])))
    return pairs


def select(pairs: Iterable[Pair], length: int) -> list[Pair]:
    """Return the pairs of the tutorial: both sentences below `length` words, the English one with a known start."""
    return [
        (english, french) for english, french in pairs
        if french and english.startswith(ENGLISH_BEGINNINGS)
        and len(english.split()) < length and len(french.split()) < length
    ]


def in_split(pairs: Sequence[Pair], split: Split) -> list[Pair]:
    """Return the pairs of a split; translations of one English sentence stay together."""
    numbers = {english: number for number, english in enumerate(dict.fromkeys(english for english, _ in pairs))}
    return [pair for pair in pairs if (numbers[pair[0]] % 10 == 9) == (split == "test")]


def encode_pairs(pairs: Sequence[Pair], split: Split, length: int) -> EncodedPairs:
    """Return the selected pairs of a split, French to English; words are indexed by first occurrence, as published."""
    kept = select(pairs, length)
    chosen = in_split(kept, split)
    if not chosen:
        raise UserError(f"tatoeba has no pair for {split} below {length} words that begins like 'I am' or 'he is': "
                        "choose a larger --input-sizes, or give the whole file")
    french, english = (
        Vocabulary.from_tokens((word for pair in kept for word in pair[side].split()), specials=MARKS)
        for side in (1, 0)
    )
    sources = [french.encode(pair[1].split()) for pair in chosen]
    targets = [english.encode(pair[0].split()) for pair in chosen]
    return EncodedPairs(padded(sources, length), padded(targets, length), french, english)


def padded(sentences: Sequence[Tokens], length: int) -> Tokens:
    """Return sentences as rows (N, length): the words, the end mark, zeros."""
    rows = np.full((len(sentences), length), PADDING, np.int64)
    for row, sentence in zip(rows, sentences, strict=True):
        row[: len(sentence)] = sentence
        row[len(sentence)] = EOS
    return rows


def make_pairs(request: "DataRequest", length: int, num_source_words: int, num_target_words: int) -> EncodedPairs:
    """Return synthetic pairs of independent words under Zipf's law, with a default mean length of 0.7 of the longest.

    Both sentences of a pair have the same length. The vocabularies have `num_source_words` and `num_target_words`
    words, including special tokens.
    """
    asked = request.synthetic
    generator = np.random.default_rng((request.seed, [*NUM_SYNTHETIC_PAIRS].index(request.split)))
    longest = length - 1
    mean = max(1.0, 0.7 * longest) if asked.length_mean_frac is None else asked.length_mean_frac * length
    spread = 0.2 * longest if asked.length_spread_frac is None else asked.length_spread_frac * length
    lengths = sentence_lengths(generator, NUM_SYNTHETIC_PAIRS[request.split], mean, spread, longest)
    ends = np.cumsum(lengths)
    sides = []
    for num_words in (num_source_words, num_target_words):
        words = zipf_tokens(generator, int(ends[-1]), num_words - len(MARKS), asked.zipf_exponent) + len(MARKS)
        sides.append(padded(np.split(words, ends[:-1]), length))
    sources, targets = sides
    vocabularies = [Vocabulary([*MARKS, *(f"w{number}" for number in range(len(MARKS), num_words))])
                    for num_words in (num_source_words, num_target_words)]
    return EncodedPairs(sources, targets, *vocabularies)


def read_pairs(spec: StoredDatasetSpec, directory: Path, split: Split) -> list[Pair]:
    """Return all normalized pairs for any split, because the split is known only after too long ones are left out."""
    path, archive = spec.find(directory, ARCHIVE)
    return parse_pairs(zip_file(archive, FILE, path, MOST_BYTES), path)


DATASETS = [
    StoredDatasetSpec(
        name="tatoeba", kind="translation", splits=("train", "test"), read=read_pairs,
        description="French and English sentences that begin like 'I am' or 'he is', 11,445 pairs below 10 words",
        source="https://download.pytorch.org/tutorial/", home="tatoeba",
        files=(PublishedFile(ARCHIVE, None, None, splits=("train", "test")),),
    ),
]
