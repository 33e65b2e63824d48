"""Limits of data files on both sides, and synthetic samples against their definition."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from charact.core.errors import UserError
from charact.datasets import cbtest, tatoeba, wikitext
from charact.datasets._common.request import DataRequest, Synthetic
from charact.datasets._common.vocabulary import sentence_lengths, zipf_tokens

FILE = Path("f")


@pytest.mark.parametrize(("text", "refused"), [
    ("I am\tje suis", False), ("I am 1\tje suis", True), ("a\tb\na\tb", False), ("a\tb\na\tb\na\tb", True),
    ("a\tb\tc", False), ("a\tb\tc\td", True), ("a", True)])
def test_limits_of_pairs(monkeypatch: pytest.MonkeyPatch, text: str, refused: bool) -> None:
    monkeypatch.setattr(tatoeba, "MOST_LINE_LETTERS", 12)
    monkeypatch.setattr(tatoeba, "MOST_PAIRS", 2)
    if refused:
        with pytest.raises(UserError, match="fetch it again"):
            tatoeba.parse_pairs(text.encode(), FILE)
    else:
        assert len(tatoeba.parse_pairs(text.encode(), FILE)) == text.count("\n") + 1


@pytest.mark.parametrize(("english", "french", "kept"), [
    ("i am a b", "je", True), ("i am a b c", "je", False), ("i am a", "a b c d", True), ("i am a", "a b c d e", False),
    ("i am a", "", False), ("you", "vous", False)])
def test_pairs_of_the_tutorial(english: str, french: str, kept: bool) -> None:
    assert tatoeba.select([(english, french)], 5) == ([(english, french)] if kept else [])


def sample(query: str = "who XXXXX\tbob\t\tbob|al", sentence: str = "a b") -> str:
    return "".join(f"{number} {sentence}\n" for number in range(1, 21)) + f"21 {query}\n\n"


@pytest.mark.parametrize(("text", "message"), [
    (sample(), None), (sample(sentence="x" * 36), None),
    (sample(sentence="x" * 37), "has more than 40 bytes in line 10"),
    (sample("who XXXXX\tbob\t\tal"), None), (sample("who XXXXX\t\t\tal"), "line 21 lacks"),
    (sample("who XXXXX\tbob\t\t | "), "line 21 lacks"), (sample("who\tbob\t\tal"), "line 21 lacks"),
    (sample(sentence=" "), "line 21 lacks"), (sample("who XXXXX\tbob\tal"), "line 21 has 3 columns"),
    (sample().partition("21")[0], "ends in sentence 21"), ("", "ends in sentence 1"), ("\n", None)])
def test_limits_of_questions(monkeypatch: pytest.MonkeyPatch, text: str, message: str | None) -> None:
    monkeypatch.setattr(cbtest, "MOST_LINE_BYTES", 40)
    if message is None:
        found = list(cbtest.parse_questions(text.encode(), FILE))
        assert [(len(each.document) >= 20, each.answer in each.candidates) for each in found] == (
            [(True, True)] if text.strip() else [])
    else:
        with pytest.raises(UserError, match=message):
            list(cbtest.parse_questions(text.encode(), FILE))


def test_candidates_are_ten_with_the_answer() -> None:
    words = [f"w{number}" for number in range(12)]
    for answer, expected in (("w9", words[:10]), ("w11", [*words[:9], "w11"]), ("x", [*words[:9], "x"])):
        (found,) = cbtest.parse_questions(sample(f"XXXXX\t{answer}\t\t{'|'.join(words)}").encode(), FILE)
        assert found.candidates == expected


def test_the_limit_of_words(monkeypatch: pytest.MonkeyPatch) -> None:
    marks = {mark: number for number, mark in enumerate(cbtest.MARKS)}
    for limit, refused in ((len(marks) + 5, False), (len(marks) + 4, True)):
        monkeypatch.setattr(cbtest, "MOST_WORDS", limit)
        questions = cbtest.parse_questions(sample().encode(), FILE)  # a, b, who, bob, al
        if refused:
            with pytest.raises(UserError, match="different words"):
                cbtest.encode_questions(questions, dict(marks), grow=True)
        else:
            assert len(cbtest.encode_questions(questions, dict(marks), grow=True)) == 1


@pytest.mark.parametrize(("num_words", "blank"), [(5, 2), (200, 0), (200, 199), (200, 100), (200, 30), (200, 180)])
def test_long_queries_are_cut_around_the_blank(num_words: int, blank: int) -> None:
    query = [f"q{number}" for number in range(num_words)]
    numbers = {word: number for number, word in enumerate([*cbtest.MARKS, *query])}
    query[blank] = "(xxxxx,"
    (encoded,) = cbtest.encode_questions([cbtest.Question(["a"], query, ["b", "c"], "c")], numbers, grow=False)
    places = encoded.query - len(cbtest.MARKS)
    (at,) = np.flatnonzero(encoded.query == cbtest.PLACEHOLDER)
    start = blank - at
    others = np.arange(len(places)) != at
    assert (places[others] == (np.arange(len(places)) + start)[others]).all()
    assert len(places) == min(num_words, cbtest.QUERY_LENGTH)
    if 50 < blank < 150:
        assert at == cbtest.QUERY_LENGTH // 2
    assert (encoded.answer, encoded.document.tolist()) == (1, [cbtest.UNKNOWN])


def test_lengths_have_the_mean_and_spread() -> None:
    generator = np.random.default_rng(0)
    lengths = sentence_lengths(generator, 20_000, 100.0, 10.0, 1000)
    assert (lengths.mean(), lengths.std()) == (pytest.approx(100, rel=0.01), pytest.approx(10, rel=0.03))
    assert set(sentence_lengths(generator, 50, 7.0, 0.0, 9)) == {7}
    assert sentence_lengths(generator, 500, 5.0, 50.0, 6).min() == 1
    assert sentence_lengths(generator, 500, 5.0, 2.0, 6).max() == 6
    counts = np.bincount(zipf_tokens(generator, 50_000, 4, 2.0), minlength=4) / 50_000
    assert counts == pytest.approx(np.array([1, 1 / 4, 1 / 9, 1 / 16]) / (1 + 1 / 4 + 1 / 9 + 1 / 16), abs=0.01)


@pytest.mark.parametrize(("options", "mean", "spread"), [
    ({}, 0.7 * 49, 0.2 * 49), ({"length_mean_frac": 0.5, "length_spread_frac": 0.02}, 25, 1)])
def test_synthetic_pairs_have_the_lengths_that_are_asked(monkeypatch: pytest.MonkeyPatch, options: dict[str, float],
                                                         mean: float, spread: float) -> None:
    monkeypatch.setitem(tatoeba.NUM_SYNTHETIC_PAIRS, "test", 2000)
    request: Any = DataRequest(seed=1, split="test", synthetic=Synthetic(**options))
    pairs = tatoeba.make_pairs(request, 50, 30, 20)
    lengths = (pairs.sources == tatoeba.EOS).argmax(1)
    assert ((pairs.targets == tatoeba.EOS).argmax(1) == lengths).all()
    assert (lengths.mean(), lengths.std()) == (pytest.approx(mean, rel=0.02), pytest.approx(spread, rel=0.15))
    words = np.arange(50) < lengths[:, None]
    assert (pairs.sources[words].min(), pairs.sources.max(), pairs.targets.max()) == (len(tatoeba.MARKS), 29, 19)
    assert (pairs.sources[:, 1:][~words[:, :-1]] == tatoeba.PADDING).all()
    assert (len(pairs.source_vocabulary), len(pairs.target_vocabulary)) == (30, 20)


@pytest.mark.parametrize(("content", "lines"), [
    (b"a b\nc\n", [["a", "b", "<eos>"], ["c", "<eos>"]]), (b"a", [["a", "<eos>"]]), (b"\n\n", [["<eos>"], ["<eos>"]])])
def test_lines_end_with_a_mark(content: bytes, lines: list[list[str]]) -> None:
    assert wikitext.tokenize(content, FILE) == lines
