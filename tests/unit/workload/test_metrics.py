"""Each metric against an independent computation, and which workload has which."""

import importlib.util
import math
from typing import Any

import pytest
import sacrebleu
import torch
from support.published import first_batch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import default_collate

from charact.datasets._common.request import DataRequest
from charact.datasets._common.vocabulary import Vocabulary
from charact.datasets._samples.cloze import Cloze
from charact.execution.case import Case
from charact.workload.metrics import Accuracy, BinaryAccuracy, Bleu, Metric, Perplexity, PixelAccuracy, TokenAccuracy
from charact.workload.registry import all_workloads, find_workload


def one_hot(words: list[list[int]], num_words: int = 9) -> Tensor:
    """Outputs (N, T, words) whose largest are these."""
    return functional.one_hot(torch.tensor(words), num_words).float()


def test_accuracy_counts_samples_of_unequal_batches_alike() -> None:
    metric = Accuracy()
    metric.update(torch.tensor([[0.1, 0.9], [0.8, 0.2], [0.7, 0.3]]), [None, torch.tensor([1, 0, 1])])
    metric.update(torch.tensor([[0.1, 0.9]]), [None, torch.tensor([1])])
    assert metric.value() == 3 / 4


def test_candidate_accuracy_is_told_of_questions() -> None:
    metric = Accuracy("candidate_accuracy")
    nothing = torch.zeros(2, 1)
    metric.update(torch.tensor([[0.0, 0.2, 0.1], [0.3, 0.2, 0.1]]), Cloze(nothing, nothing, nothing,
                                                                          torch.tensor([1, 2])))
    assert (metric.name, metric.value()) == ("candidate_accuracy", 0.5)


@pytest.mark.parametrize(("name", "variant"), [("model_a", "deitsch"), ("model_a", "vo"), ("googlenet", None)])
def test_accuracy_understands_what_models_give_in_training(name: str, variant: str | None) -> None:
    workload = find_workload(name).prepare(variant)
    size = workload.smallest_input_size
    case = Case(workload, size, 2, "train", "fp32", torch.device("cpu"), DataRequest())
    batch: Any = first_batch(case)
    outputs = workload.forward(workload.model(case.dataset()), batch)
    (metric,) = workload.metrics(case.dataset())
    metric.update(outputs, batch)
    assert metric.value() == (outputs.logits.argmax(1) == batch[1]).double().mean().item()


def test_a_defect_is_put_into_the_class_that_its_probability_is_nearest_to() -> None:
    from charact.workloads.images.model_a import DefectOutputs

    levels, probability = torch.linspace(0, 1, 4), torch.tensor([0.05, 0.4, 0.6, 1.2])
    outputs = DefectOutputs(-(probability[:, None] - levels).abs(), probability, levels)
    metric = Accuracy()
    metric.update(outputs, [None, torch.tensor([0, 1, 2, 0])])
    assert metric.value() == 3 / 4


@pytest.mark.parametrize("name", ["rnn_lm", "transformer_lm"])
def test_perplexity_counts_every_word_alike(name: str) -> None:
    variant = "small" if name == "transformer_lm" else None
    workload = find_workload(name).prepare(variant)
    dataset: Any = workload.dataset(4, DataRequest(batch_size=3))
    model = workload.model(dataset).eval()
    (metric,) = workload.metrics(dataset)
    total, num_words = 0.0, 0
    for length in (4, 2):  # as at the end of a text, where the last stretch is shorter
        inputs, targets = dataset.collate([dataset[index] for index in range(3)])
        batch = (inputs[:length], targets[:length])
        with torch.no_grad():
            outputs = workload.forward(model, batch)
        metric.update(outputs, batch)
        ordered = outputs if outputs.dim() == 2 else outputs.transpose(0, 1).flatten(0, 1)
        probabilities = ordered.double().softmax(1)[range(3 * length), batch[1].flatten()]
        total -= probabilities.log().sum().item()
        num_words += 3 * length
    assert metric.value() == pytest.approx(math.exp(total / num_words), rel=1e-5)
    assert not metric.larger_is_better


def test_a_perplexity_beyond_all_numbers_is_infinite() -> None:
    metric = Perplexity(lambda outputs, batch: outputs)
    metric.update(torch.tensor(1000.0), [torch.zeros(3)])
    assert metric.value() == math.inf


def test_pixel_accuracy_counts_pixels_of_all_images() -> None:
    metric = PixelAccuracy()
    logits = torch.zeros(2, 3, 1, 2)
    logits[0, 2, 0, 0] = logits[0, 1, 0, 1] = logits[1, 1, 0, 0] = logits[1, 2, 0, 1] = 1
    metric.update(logits, [None, torch.tensor([[[2, 1]], [[1, 0]]])])
    metric.update(logits[:1], [None, torch.tensor([[[0, 0]]])])
    assert metric.value() == 3 / 6


def test_binary_accuracy_compares_signs_with_labels() -> None:
    metric = BinaryAccuracy()
    metric.update(torch.tensor([3.0, -1.0, 0.5, -2.0]), [None, torch.tensor([1.0, 0.0, 0.0, 1.0])])
    metric.update(torch.tensor([-3.0]), [None, torch.tensor([0.0])])
    assert metric.value() == 3 / 5


def test_token_accuracy_leaves_padding_out() -> None:
    metric = TokenAccuracy()
    metric.update(one_hot([[5, 6, 1, 0], [5, 3, 0, 4]]), [None, torch.tensor([[5, 7, 1, 0], [5, 3, 1, 0]])])
    assert metric.value() == 4 / 6


WORDS = Vocabulary(["<sos>", "<eos>", "i", "am", "not", "at", "home", "!", "you"])


def numbers_of(sentence: str, length: int = 8) -> list[int]:
    words = [*WORDS.encode(sentence.split()), 1]
    return [*map(int, words), *[0] * (length - len(words))]


class TestBleu:
    def test_it_is_that_of_sacrebleu_over_all_batches(self) -> None:
        references = ["i am not at home !", "you am at home", "i am at home not you !"]
        written = ["i am at home !", "you am at home", "i am at home you not !"]
        metric = Bleu(WORDS)
        metric.update(one_hot([numbers_of(text) for text in written[:2]]),
                      [None, torch.tensor([numbers_of(text) for text in references[:2]])])
        metric.update(one_hot([numbers_of(written[2])]), [None, torch.tensor([numbers_of(references[2])])])
        truth = sacrebleu.corpus_bleu(written, [references]).score
        assert 30 < truth < 90
        assert metric.value() == pytest.approx(truth)

    def test_what_comes_after_the_end_mark_does_not_count(self) -> None:
        targets = torch.tensor([numbers_of("i am not at home")])
        written = torch.tensor([numbers_of("i am not at home")])
        written[0, 6:] = 8
        metric = Bleu(WORDS)
        metric.update(one_hot(written.tolist()), [None, targets])
        assert metric.value() == pytest.approx(100)

    def test_a_sentence_without_an_end_is_taken_whole(self) -> None:
        targets = torch.tensor([[2, 3, 4, 5, 6, 1]])
        metric = Bleu(WORDS)
        metric.update(one_hot([[2, 3, 4, 5, 6, 7]]), [None, targets])
        truth = sacrebleu.corpus_bleu(["i am not at home !"], [["i am not at home"]]).score
        assert metric.value() == pytest.approx(truth)

    def test_without_sacrebleu_it_says_what_to_install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        assert Bleu(WORDS).unavailable() == "install charact[bleu]"


def test_seq2seq_is_scored_by_what_it_writes() -> None:
    workload = find_workload("seq2seq").prepare()
    dataset: Any = workload.dataset(6, DataRequest())
    batch = default_collate([dataset[index] for index in range(4)])
    model = workload.model(dataset).eval()
    with torch.no_grad():
        outputs = workload.forward(model, batch)
    for metric in workload.metrics(dataset):
        metric.update(outputs, batch)
        value = metric.value()
        assert value is not None
        assert 0 <= value < 50


@pytest.mark.parametrize("metric", [Accuracy(), Perplexity(lambda *_: torch.zeros(())), TokenAccuracy(), Bleu(WORDS)])
def test_before_the_first_batch_there_is_no_value(metric: Metric) -> None:
    assert metric.value() is None


def test_every_workload_has_a_metric_but_diffusion() -> None:
    class Vocabularies:
        target_vocabulary = WORDS

    names = {name: [metric.name for metric in workload.prepare().metrics(Vocabularies())]  # type: ignore[arg-type]
             for name, workload in all_workloads().items()}
    language = {"rnn_lm": ["perplexity"], "transformer_lm": ["perplexity"], "llama": ["perplexity"],
                    "moe": ["perplexity"], "mistral": ["perplexity"], "bert": ["perplexity"],
                "transformer": ["token_accuracy"], "seq2seq": ["token_accuracy", "bleu"],
                "aoa_reader": ["candidate_accuracy"]}
    others = {"dit": [], "unet": ["pixel_accuracy"], "dlrm": ["binary_accuracy"]}
    assert names == {name: ["accuracy"] for name in names} | language | others


def test_the_rate_of_rnn_lm_is_quartered_when_the_validation_does_not_improve() -> None:
    workload = find_workload("rnn_lm").prepare()
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=20)
    (scheduler,) = workload.schedulers([optimizer], 40)
    rates = []
    for loss in (5.0, 4.0, 4.0, 3.9, 3.95):
        scheduler.step(loss)
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates == [20, 20, 5, 5, 1.25]


def test_the_rate_of_resnet_falls_along_a_cosine() -> None:
    workload = find_workload("resnet18").prepare()
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    (scheduler,) = workload.schedulers([optimizer], 4)
    rates = [optimizer.param_groups[0]["lr"]]
    for _ in range(4):
        optimizer.step()
        scheduler.step()
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([0.1 * (1 + math.cos(math.pi * epoch / 4)) / 2 for epoch in range(5)])
