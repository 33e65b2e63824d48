"""Children's Book Test: made files in the published form, the rules of cutting, made-up questions, broken files."""

import io
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.damage import attempt, damaged

from charact.core.errors import UserError
from charact.datasets import cbtest
from charact.datasets._common.registry import find_dataset
from charact.datasets._common.request import DataRequest
from charact.datasets._common.spec import PublishedFile
from charact.datasets._samples.cloze import ClozeQuestions, cloze_dataset
from charact.datasets.cbtest import (
    ARCHIVE,
    NUM_SAMPLES,
    PADDING,
    PLACEHOLDER,
    QUERY_LENGTH,
    UNKNOWN,
    EncodedQuestion,
    encode_questions,
    make_questions,
    parse_questions,
)

MADE = Path("made")
CANDIDATES = ["Fox", "hen", "cow", "dog", "cat", "pig", "ram", "owl", "bee", "ant"]


def sample_bytes(answer: str = "Fox", query: str = "The XXXXX ran .", candidates: list[str] | None = None,
                 sentence: str = "One day the Fox met a hen .") -> bytes:
    """A sample as it was published, with an empty line at its end."""
    lines = [f"{number} {sentence} {number}" for number in range(1, 21)]
    lines.append(f"21 {query}\t{answer}\t\t{'|'.join(CANDIDATES if candidates is None else candidates)}")
    return "".join(f"{line}\n" for line in [*lines, ""]).encode()


def parse_one(content: bytes) -> cbtest.Question:
    (question,) = parse_questions(content, MADE)
    return question


def encode(content: bytes) -> list[EncodedQuestion]:
    numbers = {mark: number for number, mark in enumerate(cbtest.MARKS)}
    return encode_questions(parse_questions(content, MADE), numbers, grow=True)


def archive_bytes(files: dict[str, bytes]) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(f"CBTest/data/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return archive.getvalue()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if every split had been published with 2 samples, and the archive without its checksum."""
    monkeypatch.setitem(NUM_SAMPLES, "NE", {"train": 2, "valid": 2, "test": 2})
    unsized = PublishedFile(ARCHIVE, None, None, splits=("train", "valid", "test"))
    monkeypatch.setattr(cbtest, "DATASETS", [replace(spec, files=(unsized,)) for spec in cbtest.DATASETS])


def write_archive(directory: Path, train: bytes, other: bytes | None = None) -> None:
    """An archive with the training file, and the same file for the other splits."""
    names = [f"cbtest_NE_{part}.txt" for part in ("train", "valid_2000ex", "test_2500ex")]
    contents = [train, other or train, other or train]
    (directory / ARCHIVE).write_bytes(archive_bytes(dict(zip(names, contents, strict=True))))


def request(directory: Path, split: Any = "train") -> DataRequest:
    return DataRequest("cbtest_ne", directory, split)


def test_a_sample_is_read_in_lower_case() -> None:
    question = parse_one(sample_bytes())
    assert question.document[:9] == ["one", "day", "the", "fox", "met", "a", "hen", ".", "1"]
    assert len(question.document) == 20 * 9
    assert question.query == ["the", "xxxxx", "ran", "."]
    assert question.candidates == [word.lower() for word in CANDIDATES]
    assert question.answer == "fox"


@pytest.mark.parametrize(("candidates", "read"), [
    (["Fox", "hen"], ["fox", "hen"]),
    (["Fox", "", "hen"], ["fox", "hen"]),
    ([*CANDIDATES, "elk"], [word.lower() for word in CANDIDATES]),
    ([*CANDIDATES[1:], "elk", "Fox"], [*CANDIDATES[1:], "fox"]),
])
def test_at_most_ten_candidates_are_used_and_the_answer_is_one(candidates: list[str], read: list[str]) -> None:
    assert parse_one(sample_bytes(candidates=candidates)).candidates == read


def test_samples_need_no_empty_line_between_them_and_may_end_in_carriage_returns() -> None:
    content = sample_bytes() + sample_bytes("hen")
    for form in (content, content.replace(b"\n\n", b"\n"), content.replace(b"\n", b"\r\n"), content.rstrip()):
        assert [question.answer for question in parse_questions(form, MADE)] == ["fox", "hen"]


def test_words_become_numbers_by_first_occurrence() -> None:
    (question,) = encode(sample_bytes())
    assert question.document[:9].tolist() == [3, 4, 5, 6, 7, 8, 9, 10, 11]
    assert question.query[:2].tolist() == [5, PLACEHOLDER]
    assert question.candidates[:2].tolist() == [6, 9]
    assert question.answer == 0


def test_a_long_query_is_cut_around_the_blank() -> None:
    for before, after in ((100, 100), (0, 200), (200, 0), (3, 5)):
        query = " ".join([*["one"] * before, "XXXXX", *["day"] * after])
        (question,) = encode(sample_bytes(query=query))
        assert len(question.query) == min(QUERY_LENGTH, before + 1 + after)
        assert (question.query == PLACEHOLDER).sum() == 1


def test_a_document_is_cut_to_the_words_nearest_to_the_query() -> None:
    dataset = ClozeQuestions(encode(sample_bytes()), 60, 4, answerable_only=False)
    full = ClozeQuestions(encode(sample_bytes()), 60, 200, answerable_only=False)
    assert dataset[0].document.tolist() == full[0].document[176:180].tolist()
    assert full[0].document[180:].tolist() == [PADDING] * 20


def test_samples_whose_answer_is_cut_away_are_left_out_of_training(small: None, tmp_path: Path) -> None:
    content = sample_bytes("Fox") + sample_bytes("hen")
    write_archive(tmp_path, content)
    for split, num_samples in (("train", 1), ("test", 2)):
        dataset = cloze_dataset(request(tmp_path, split), input_size=3, num_synthetic_words=0)
        assert len(dataset) == num_samples
        answers = {int(sample.candidates[sample.answer]) for sample in (dataset[i] for i in range(num_samples))}
        assert 9 in answers


def test_the_training_file_makes_the_vocabulary(small: None, tmp_path: Path) -> None:
    write_archive(tmp_path, sample_bytes() * 2, sample_bytes(sentence="Once a Fox met an elk .") * 2)
    questions, vocabulary = find_dataset("cbtest_ne").load(tmp_path, "valid")  # type: ignore[attr-defined]
    assert questions[0].document[:3].tolist() == [UNKNOWN, vocabulary["a"], vocabulary["fox"]]
    assert "elk" not in vocabulary
    assert "hen" in vocabulary
    dataset = cloze_dataset(request(tmp_path), input_size=200, num_synthetic_words=0)
    assert (dataset[0].document != UNKNOWN).all()
    assert dataset.num_words == 3 + 8 + 20 + 1 + 8  # marks, sentence, numbers, "ran", other candidates


def test_made_up_questions_are_a_function_of_their_seed() -> None:
    def words(seed: int, split: Any = "test") -> list[int]:
        return make_questions(DataRequest(seed=seed, split=split), 30, 100)[0].document.tolist()

    assert words(1) == words(1)
    assert words(1) != words(2)
    assert words(1, "valid") != words(1, "test")


@pytest.mark.parametrize("length", [1, 2, 30])
def test_made_up_questions_can_be_answered_from_their_documents(length: int) -> None:
    for question in make_questions(DataRequest(split="test"), length, 40):
        assert 1 <= len(question.document) <= length
        assert 2 < question.document.min() <= question.document.max() < 40
        (blank,) = np.flatnonzero(question.query == PLACEHOLDER)
        filled = question.query.copy()
        filled[blank] = question.candidates[question.answer]
        stretches = np.lib.stride_tricks.sliding_window_view(question.document, len(filled))
        assert (stretches == filled).all(1).any()
        assert len(set(question.candidates)) == len(question.candidates) == min(10, len(set(question.document)))


@pytest.mark.parametrize(("content", "reason"), [
    (b"<html>not found</html>", r"has no sentence 1 of a sample in line 1"),
    (b"", "ends in sentence 1"),
    (sample_bytes()[:200], "ends in sentence"),
    (sample_bytes().replace(b"\n5 ", b"\n6 "), "has no sentence 5 of a sample in line 5"),
    (sample_bytes().replace(b"Fox\t\t", b"Fox\t"), "line 21 has 3 columns"),
    (sample_bytes(query="The ran ."), "line 21 lacks"),
    (sample_bytes(answer=""), "line 21 lacks"),
    (sample_bytes(candidates=[]), "line 21 has 2 columns"),
    (b"".join(b"%d\n" % number for number in range(1, 21)) + b"21 XXXXX\ta\t\ta|b\n", "line 21 lacks"),
    (sample_bytes() + b"1 \xff\n", "is not UTF-8 text"),
])
def test_other_content_is_refused(content: bytes, reason: str) -> None:
    with pytest.raises(UserError, match=f"^made {reason}.*: fetch it again$"):
        list(parse_questions(content, MADE))


def test_a_file_of_another_length_is_refused(small: None, tmp_path: Path) -> None:
    write_archive(tmp_path, sample_bytes() * 3)
    with pytest.raises(UserError, match=r"has 3 samples for valid, 2 were published: fetch it again from http"):
        cloze_dataset(request(tmp_path, "valid"), input_size=9, num_synthetic_words=9)


def test_an_archive_without_a_file_is_refused(small: None, tmp_path: Path) -> None:
    (tmp_path / ARCHIVE).write_bytes(archive_bytes({"cbtest_NE_train.txt": sample_bytes() * 2}))
    with pytest.raises(UserError, match=r"CBTest\.tgz has no cbtest_NE_valid_2000ex\.txt: fetch it again$"):
        cloze_dataset(request(tmp_path, "valid"), input_size=9, num_synthetic_words=9)


def test_an_archive_of_another_size_is_refused(tmp_path: Path) -> None:
    (tmp_path / ARCHIVE).write_bytes(archive_bytes({}))
    with pytest.raises(UserError, match=r"CBTest\.tgz is truncated .*published 120,547,669"):
        cloze_dataset(request(tmp_path), input_size=9, num_synthetic_words=9)


@settings(deadline=None)
@given(st.binary(max_size=64) | damaged(sample_bytes() + sample_bytes("hen")))
def test_encoding_takes_a_file_whole_or_refuses_it_in_one_line(content: bytes) -> None:
    questions = attempt(encode, content)
    if isinstance(questions, UserError):
        return
    assert len(questions) == content.count(b"\n21 ")
    for question in questions:
        assert PLACEHOLDER in question.query
        assert 0 <= question.answer < len(question.candidates) <= 10
        assert len(question.document) > 0
    samples = ClozeQuestions(questions, 10_000, 30, answerable_only=False)
    assert all(samples[index].document.shape == (30,) for index in range(len(samples)))

