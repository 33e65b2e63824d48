"""Children's Book Test: 20 sentences of a book, and the next with a missing word, to be chosen among ten.

A sample has 20 lines `1 <sentence>` to `20 <sentence>`, a line `21 <query with XXXXX><TAB>answer<TAB><TAB>c1|…|c10`
and an empty line. Words are separated by spaces and lower-cased; only the first ten candidates are used. The
vocabulary has the words of the training file; other words are unknown.

Source: Hill et al., "The Goldilocks Principle", ICLR 2016; lower case and ten candidates after kevinkwl/AoAReader;
the archive's checksum as ParlAI has it. Its publisher has no https.
"""

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from charact.core.archives import tar_files
from charact.core.errors import UserError
from charact.datasets._common.spec import PublishedFile, Split, StoredDatasetSpec
from charact.datasets._common.vocabulary import Vocabulary, sentence_lengths, zipf_tokens

if TYPE_CHECKING:
    from charact.datasets._common.request import DataRequest

PADDING, UNKNOWN, PLACEHOLDER = 0, 1, 2
MARKS = ("<pad>", "<unk>", "xxxxx")
"""Padding, unknown words, and the missing word."""
NUM_SENTENCES = 20
NUM_CANDIDATES = 10
QUERY_LENGTH = 64
"""Length in words to which queries are cut or padded, so that shapes depend only on the document's length."""
NUM_SAMPLES: dict[str, dict[Split, int]] = {
    "NE": {"train": 108_719, "valid": 2_000, "test": 2_500}, "CN": {"train": 120_769, "valid": 2_000, "test": 2_500},
}
NUM_SYNTHETIC_SAMPLES: dict[Split, int] = {"train": 2_000, "test": 500, "valid": 500}
ARCHIVE = "CBTest.tgz"
MOST_BYTES = 3 * 2**27
"""Limit in bytes of a split's file and the training file together; the largest have some 300 million."""
MOST_LINE_BYTES = 2**16
MOST_WORDS = 2_000_000
"""Limit of a vocabulary; the published files have some 50,000 words."""
_FILE_SPLITS: dict[Split, str] = {"train": "train", "valid": "valid_2000ex", "test": "test_2500ex"}

Words = NDArray[np.int32]
"""(N,) word indices; half the memory of int64, with which the training files need some 400 MB."""


class Question(NamedTuple):
    """A sample as words; the answer is one of the candidates."""

    document: list[str]
    query: list[str]
    candidates: list[str]
    answer: str


class EncodedQuestion(NamedTuple):
    """A sample as word indices; the answer is the index of a candidate."""

    document: Words
    query: Words
    candidates: Words
    answer: int


Questions = tuple[Sequence[EncodedQuestion], Vocabulary]


def parse_questions(content: bytes, path: Path) -> Iterator[Question]:
    """Yield the samples of a file's content; all words at once would need gigabytes. `path` is for messages."""
    document: list[str] = []
    expected = 1
    place = 0
    lines = io.BytesIO(content)
    while raw := lines.readline(MOST_LINE_BYTES + 1):
        place += 1
        if len(raw) > MOST_LINE_BYTES:
            raise UserError(f"{path} has more than {MOST_LINE_BYTES:,} bytes in line {place:,}: fetch it again")
        try:
            line = raw.decode().strip()
        except UnicodeDecodeError as error:
            raise UserError(f"{path} is not UTF-8 text in line {place:,}: fetch it again") from error
        if expected == 1 and not line:
            continue
        number, _, text = line.partition(" ")
        if number != str(expected):
            raise UserError(f"{path} has no sentence {expected} of a sample in line {place:,}: fetch it again")
        if expected <= NUM_SENTENCES:
            document += text.lower().split()
            expected += 1
        else:
            yield _question(document, text, f"{path} line {place:,}")
            document, expected = [], 1
    if expected != 1 or place == 0:
        raise UserError(f"{path} ends in sentence {expected} of a sample: fetch it again")


def _question(document: list[str], text: str, place: str) -> Question:
    columns = text.lower().split("\t")
    if len(columns) != 4:
        raise UserError(f"{place} has {len(columns)} columns, a query has 4: fetch it again")
    query, answer = columns[0].split(), columns[1].strip()
    candidates = [word for word in (part.strip() for part in columns[3].split("|")) if word][:NUM_CANDIDATES]
    if not document or not answer or not candidates or not any(MARKS[PLACEHOLDER] in word for word in query):
        raise UserError(f"{place} lacks the document, XXXXX, the answer or the candidates of a query: fetch it again")
    if answer not in candidates:  # it is the eleventh, or missing
        candidates[NUM_CANDIDATES - 1:] = [answer]
    return Question(document, query, candidates, answer)


def encode_questions(questions: Iterable[Question], numbers: dict[str, int], *, grow: bool) -> list[EncodedQuestion]:
    """Return encoded samples; with `grow`, new words get the next indices in `numbers`."""
    def encode(words: Iterable[str]) -> Words:
        found = (numbers.setdefault(word, len(numbers)) if grow else numbers.get(word, UNKNOWN) for word in words)
        return np.fromiter(found, np.int32)

    encoded = []
    for document, query, candidates, answer in questions:
        blank = next(place for place, word in enumerate(query) if MARKS[PLACEHOLDER] in word)
        query[blank] = MARKS[PLACEHOLDER]
        # A long query is cut around the blank.
        start = max(0, min(blank - QUERY_LENGTH // 2, len(query) - QUERY_LENGTH))
        encoded.append(EncodedQuestion(encode(document), encode(query[start: start + QUERY_LENGTH]),
                                       encode(candidates), candidates.index(answer)))
        if len(numbers) > MOST_WORDS:
            raise UserError(f"cbtest has more than {MOST_WORDS:,} different words, more than any book: fetch it again")
    return encoded


def make_questions(request: "DataRequest", length: int, num_words: int) -> list[EncodedQuestion]:
    """Return synthetic samples that can be answered: the query repeats a part of the document with a word missing.

    Words follow Zipf's law. By default, documents fill about 85 % of `length`, like CBTest's mean of 433 of 512. The
    other candidates are words of the document, fewer than nine if it has no more. The vocabulary has `num_words` words,
    including special tokens.
    """
    asked = request.synthetic
    generator = np.random.default_rng((request.seed, [*NUM_SYNTHETIC_SAMPLES].index(request.split)))
    mean = length * (0.85 if asked.length_mean_frac is None else asked.length_mean_frac)
    spread = length * (0.15 if asked.length_spread_frac is None else asked.length_spread_frac)
    lengths = sentence_lengths(generator, NUM_SYNTHETIC_SAMPLES[request.split], mean, spread, length)
    ends = np.cumsum(lengths)
    tokens = zipf_tokens(generator, int(ends[-1]), num_words - len(MARKS), asked.zipf_exponent) + len(MARKS)
    questions = []
    for document in np.split(tokens.astype(np.int32), ends[:-1]):
        blank = int(generator.integers(len(document)))
        start = max(0, blank - 15)
        query = document[start: blank + 16].copy()
        query[blank - start] = PLACEHOLDER
        others = np.setdiff1d(document, document[blank])
        chosen = generator.choice(others, min(len(others), NUM_CANDIDATES - 1), replace=False)
        answer = int(generator.integers(len(chosen) + 1))
        candidates = np.insert(chosen, answer, document[blank]).astype(np.int32)
        questions.append(EncodedQuestion(document, query, candidates, answer))
    return questions


def _reader(kind: str) -> Callable[[StoredDatasetSpec, Path, Split], Questions]:
    def read(spec: StoredDatasetSpec, directory: Path, split: Split) -> Questions:
        path, archive = spec.find(directory, ARCHIVE)
        name, train_name = (f"cbtest_{kind}_{_FILE_SPLITS[part]}.txt" for part in (split, "train"))
        contents = tar_files(archive, (name, train_name), path, MOST_BYTES)
        numbers = {mark: number for number, mark in enumerate(MARKS)}
        if split != "train":
            encode_questions(parse_questions(contents.pop(train_name), path), numbers, grow=True)
        questions = encode_questions(parse_questions(contents[name], path), numbers, grow=split == "train")
        published = NUM_SAMPLES[kind][split]
        if len(questions) != published:
            raise UserError(f"{path} has {len(questions):,} samples for {split}, {published:,} were published: "
                            f"fetch it again from {spec.source}")
        return questions, Vocabulary(numbers, unknown=MARKS[UNKNOWN])

    return read


def _spec(name: str, kind: str, words: str) -> StoredDatasetSpec:
    return StoredDatasetSpec(
        name=name, kind="cloze", splits=("train", "valid", "test"), read=_reader(kind),
        description=f"a missing word of a children's book, to be chosen among ten {words}",
        source="http://www.thespermwhale.com/jaseweston/babi/",
        home="cbtest",
        files=(PublishedFile(ARCHIVE, 120_547_669, "932df0cadc1337b2a12b4c696b1041c1d1c6d4b6bd319874c6288f02e4a61e92",
                             splits=("train", "valid", "test")),),
    )


DATASETS = [_spec("cbtest_ne", "NE", "named entities"), _spec("cbtest_cn", "CN", "common nouns")]
