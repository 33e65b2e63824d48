"""What made-up data are asked to look like, and do: the option's words, and the statistics of what is drawn."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from charact.commands._shared.options import parse_synthetic
from charact.core.errors import UserError
from charact.datasets._common.request import DataRequest, Synthetic
from charact.datasets._samples.cloze import ClozeQuestions, cloze_dataset
from charact.datasets._samples.images import image_dataset
from charact.datasets._samples.text_streams import language_model_dataset
from charact.datasets._samples.translation_pairs import SentencePairs, translation_dataset
from charact.datasets.synthetic import KEYS
from charact.datasets.tatoeba import EOS, MARKS
from charact.workload.registry import find_workload


def asked(text: str = "", *, seed: int = 0, batch_size: int = 20) -> DataRequest:
    return DataRequest(seed=seed, batch_size=batch_size, synthetic=parse_synthetic(text) if text else Synthetic())


def pairs(text: str = "", length: int = 50) -> SentencePairs:
    return translation_dataset(asked(text), input_size=length, num_source_words=900, num_target_words=700)


def questions(text: str = "", length: int = 200) -> ClozeQuestions:
    return cloze_dataset(asked(text), input_size=length, num_synthetic_words=900)


def words_of(kind: str, text: str) -> np.ndarray:
    """Words of a kind of data without marks, numbered from 0."""
    if kind == "language_model":
        return language_model_dataset(asked(text), input_size=35, num_synthetic_words=900).streams.flatten()
    if kind == "translation":
        rows = pairs(text).pairs.sources
        return rows[rows > EOS] - len(MARKS)
    return np.concatenate([question.document for question in questions(text).questions]) - 3


def zipf_exponent(words: np.ndarray, num_words: int) -> float:
    """Most likely exponent of independent words after Zipf's law, on a fine grid."""
    ranks = np.arange(1, num_words + 1)
    counts = np.bincount(words, minlength=num_words)
    grid = np.arange(0, 3, 0.005)
    likelihood = [-exponent * (counts * np.log(ranks)).sum() - counts.sum() * np.log((ranks**-exponent).sum())
                  for exponent in grid]
    return float(grid[int(np.argmax(likelihood))])


@pytest.mark.parametrize("kind", ["language_model", "translation", "cloze"])
@pytest.mark.parametrize("exponent", [0.0, pytest.param(0.8, marks=pytest.mark.slow),
                                      pytest.param(1.0, marks=pytest.mark.slow), 1.7])
def test_the_exponent_is_found_again_in_the_text(kind: str, exponent: float) -> None:
    num_marks = {"language_model": 0, "translation": 2, "cloze": 3}[kind]
    words = words_of(kind, f"zipf={exponent},vocabulary={300 + num_marks}")
    assert zipf_exponent(words, 300) == pytest.approx(exponent, abs=0.02)


@pytest.mark.parametrize("kind", ["language_model", "translation", "cloze"])
def test_without_an_exponent_it_is_1(kind: str) -> None:
    num_words = {"language_model": 900, "translation": 898, "cloze": 897}[kind]
    assert zipf_exponent(words_of(kind, ""), num_words) == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("num_words", [4, 60])
def test_words_stay_within_the_vocabulary_which_is_used_up(num_words: int) -> None:
    text = f"vocabulary={num_words},zipf=0"
    streams = language_model_dataset(asked(text), input_size=35, num_synthetic_words=9)
    assert (streams.num_words, streams.streams.max()) == (num_words, num_words - 1)
    translated = pairs(text, 10)
    assert len(translated.source_vocabulary) == len(translated.target_vocabulary) == num_words
    assert translated.pairs.sources.max() == translated.pairs.targets.max() == num_words - 1
    asked_of = questions(text, 40)
    assert asked_of.num_words == num_words
    assert max(int(question.document.max()) for question in asked_of.questions) == num_words - 1


@pytest.mark.parametrize(("mean", "spread"), [(0.2, 0.05), (0.5, 0.1), (0.5, 0.0), (0.7, 0.05)])
def test_lengths_have_the_mean_and_spread_asked_for(mean: float, spread: float) -> None:
    text = f"length-mean={mean},length-spread={spread}"
    sentences = (pairs(text).pairs.sources > EOS).sum(1) / 50
    documents = np.array([len(question.document) for question in questions(text).questions]) / 200
    for lengths in (sentences, documents):
        assert lengths.mean() == pytest.approx(mean, abs=0.01)
        # Rounding to whole words spreads a little, too.
        assert lengths.std() == pytest.approx(spread, abs=0.01)


def test_a_mean_of_1_fills_the_input() -> None:
    text = "length-mean=1,length-spread=0"
    assert ((pairs(text).pairs.sources > EOS).sum(1) == 49).all()  # and the end mark
    assert {len(question.document) for question in questions(text).questions} == {200}


def test_without_lengths_they_are_as_before() -> None:
    sentences = (pairs().pairs.sources > EOS).sum(1)
    documents = [len(question.document) for question in questions().questions]
    assert sentences.mean() == pytest.approx(0.7 * 49, rel=0.02)
    # .85 before the longest are cut to the input size.
    assert 0.82 * 200 < np.mean(documents) < 0.85 * 200


def test_pictures_have_the_classes_asked_for() -> None:
    dataset = image_dataset(asked("classes=100"), input_size=1, num_synthetic_classes=7)
    assert dataset.num_classes == 100
    counts = np.bincount([dataset[index][1] for index in range(5_000)])
    assert len(counts) == 100
    # Uniform: chi-squared of 99 degrees of freedom is below 150 with probability .999.
    assert ((counts - 50) ** 2 / 50).sum() < 150


@pytest.mark.parametrize(("workload", "text", "output_size"), [
    ("resnet18", "classes=12", 12), ("rnn_lm", "vocabulary=60", 60), ("seq2seq", "vocabulary=60", 60),
    ("transformer", "vocabulary=60", 60), ("transformer_lm", "vocabulary=60", 60),
])
def test_models_are_made_for_them(workload: str, text: str, output_size: int) -> None:
    prepared = find_workload(workload).prepare()
    dataset = prepared.dataset(prepared.smallest_input_size, asked(text, batch_size=2))
    batch = next(iter(DataLoader(dataset, batch_size=2, collate_fn=getattr(dataset, "collate", None))))
    assert prepared.forward(prepared.model(dataset), batch).shape[-1] == output_size


@pytest.mark.parametrize(("make", "text", "key", "heeded"), [
    (lambda request: image_dataset(request, input_size=8, num_synthetic_classes=2), "zipf=2", "zipf", "classes"),
    (lambda request: language_model_dataset(request, input_size=8, num_synthetic_words=9), "length-mean=0.5",
     "length-mean", "vocabulary, zipf"),
    (lambda request: translation_dataset(request, input_size=8, num_source_words=9, num_target_words=9), "classes=3",
     "classes", "vocabulary, zipf, length-mean, length-spread"),
    (lambda request: cloze_dataset(request, input_size=8, num_synthetic_words=9), "classes=3", "classes",
     "vocabulary, zipf, length-mean, length-spread"),
])
def test_what_the_data_do_not_heed_is_refused(make: Any, text: str, key: str, heeded: str) -> None:
    with pytest.raises(UserError, match=rf"^--synthetic {key} does not apply to .* data, only {heeded}: leave it out$"):
        make(asked(text))


def test_the_option_sets_every_field() -> None:
    made = parse_synthetic(" classes=100, vocabulary=5000,zipf=1.2 ,length-mean=0.5,length-spread = 0.1")
    assert made == Synthetic(num_classes=100, num_words=5_000, zipf_exponent=1.2, length_mean_frac=0.5,
                             length_spread_frac=0.1)
    assert parse_synthetic("zipf=0") == Synthetic(zipf_exponent=0)
    assert set(KEYS.values()) == set(vars(Synthetic()))


@pytest.mark.parametrize(("text", "said"), [
    ("", "--synthetic is empty: give at least one value"),
    ("classes=3,", "--synthetic 'classes=3,' has an empty item between commas: remove it"),
    ("words=3", "--synthetic: 'words' is not one of classes, vocabulary, zipf, length-mean, length-spread"),
    ("classes", "--synthetic classes: '' is not a whole number (as in classes=1)"),
    ("classes=", "--synthetic classes: '' is not a whole number (as in classes=1)"),
    ("classes=ten", "--synthetic classes: 'ten' is not a whole number (as in classes=1)"),
    ("classes=1.5", "--synthetic classes: '1.5' is not a whole number (as in classes=1)"),
    ("classes=3,classes=4", "--synthetic: classes is given twice: remove one"),
    ("classes=0", "--synthetic classes: 0 is not from 1 to 10,000,000"),
    ("vocabulary=3", "--synthetic vocabulary: 3 is not from 4 to 10,000,000"),
    ("vocabulary=10000001", "--synthetic vocabulary: 10000001 is not from 4 to 10,000,000"),
    ("zipf=-1", "--synthetic zipf: -1 is not from 0.0 to 100.0"),
    ("zipf=nan", "--synthetic zipf: nan is not from 0.0 to 100.0"),
    ("zipf=inf", "--synthetic zipf: inf is not from 0.0 to 100.0"),
    ("zipf=x", "--synthetic zipf: 'x' is not a number (as in zipf=0.0)"),
    ("length-mean=0", "--synthetic length-mean: 0 is not from 0.001 to 1.0"),
    ("length-mean=1.1", "--synthetic length-mean: 1.1 is not from 0.001 to 1.0"),
    ("length-spread=-0.1", "--synthetic length-spread: -0.1 is not from 0.0 to 1.0"),
])
def test_another_option_is_refused_in_one_line(text: str, said: str) -> None:
    with pytest.raises(UserError) as refusal:
        parse_synthetic(text)
    assert str(refusal.value) == said


@given(st.text(max_size=20)
       | st.builds("{}={}".format, st.sampled_from(list(KEYS)), st.text("0123456789.e-+_ ", max_size=9)))
def test_any_text_is_taken_or_refused(text: str) -> None:
    try:
        made = parse_synthetic(text)
    except UserError as error:
        assert str(error).startswith("--synthetic")  # noqa: PT017  (either outcome is right)
        return
    assert made != Synthetic() or "zipf" in text
