"""Seq2seq and the AoA Reader: published counts, padding that changes nothing, both modes, and that they learn."""

import contextlib
import math
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.data import DataLoader, Dataset, Subset, default_collate
from torch.utils.flop_counter import FlopCounterMode

from charact.datasets._common.request import DataRequest
from charact.datasets._samples.cloze import Cloze, ClozeQuestions, cloze_dataset
from charact.datasets._samples.translation_pairs import SentencePairs, translation_dataset
from charact.datasets.cbtest import QUERY_LENGTH, make_questions
from charact.datasets.tatoeba import EOS, PADDING, make_pairs
from charact.execution.case import Case
from charact.execution.loop import Loop
from charact.measure.passes.flops import flop_pass
from charact.workload.base import Workload
from charact.workload.registry import find_workload
from charact.workloads import aoa_reader
from charact.workloads.aoa_reader import AoAReader, BidirectionalGRU
from charact.workloads.seq2seq import SteppedEncoder, Translator

CASES = [("seq2seq", "bahdanau"), ("seq2seq", "tutorial2017"), ("aoa_reader", "cbt"), ("aoa_reader", "cnn")]
TATOEBA = Path(__file__).resolve().parents[4] / "shared" / "data" / "tatoeba"


def prepared(name: str, variant: str) -> Workload:
    return find_workload(name).prepare(variant)


def num_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def small_pairs(num_source_words: int = 40, num_target_words: int = 30, length: int = 8) -> SentencePairs:
    return SentencePairs(make_pairs(DataRequest(split="test"), length, num_source_words, num_target_words))


def small_questions(length: int, num_words: int = 60) -> ClozeQuestions:
    questions = make_questions(DataRequest(split="test"), length, num_words)
    return ClozeQuestions(questions, num_words, length, answerable_only=True)


def small_data(name: str) -> Any:
    return small_pairs() if name == "seq2seq" else small_questions(12)


def first_batch(dataset: Any, batch_size: int) -> Any:
    return default_collate([dataset[index] for index in range(batch_size)])


def test_seq2seq_has_the_tutorials_parameters() -> None:
    workload = prepared("seq2seq", "bahdanau")
    model = workload.model(workload.dataset(10, DataRequest()))
    assert isinstance(model, Translator)
    assert num_parameters(model.encoder) == 688_000
    assert num_parameters(model.decoder) == 950_064
    assert num_parameters(model) == 1_638_064


@pytest.mark.parametrize("length", [5, 10])
def test_the_older_form_has_the_parameters_of_its_layers(length: int) -> None:
    workload = prepared("seq2seq", "tutorial2017")
    model = workload.model(workload.dataset(length, DataRequest()))
    gru = 2 * (3 * 256 * 256 + 3 * 256)
    encoder, attention = 4601 * 256 + gru, 512 * length + length + 512 * 256 + 256
    assert num_parameters(model) == encoder + 2991 * 256 + attention + gru + 256 * 2991 + 2991


@pytest.mark.parametrize(("variant", "constant"), [("cnn", 986_112), ("cbt", 1_774_080)])
@pytest.mark.parametrize("num_words", [60, 1_000])
def test_the_reader_has_384_parameters_a_word_and_a_shared_gru(variant: str, constant: int, num_words: int) -> None:
    model = prepared("aoa_reader", variant).model(small_questions(12, num_words))
    assert num_parameters(model) == num_words * 384 + constant


def forward_flop(workload: Workload, dataset: Any, batch_size: int) -> int:
    batch = first_batch(dataset, batch_size)
    with FakeTensorMode() as mode, FlopCounterMode(display=False) as counter, torch.no_grad():
        fake_batch = [mode.from_tensor(tensor) for tensor in batch]
        workload.forward(workload.model(dataset), fake_batch)
    return int(counter.get_total_flops())


def test_seq2seq_does_the_work_of_its_matrix_products() -> None:
    length, width, words = 6, 128, 30
    encoder = length * 3 * width * (width + width)
    attention = width * width + length * (width * width + width) + length * width
    step = attention + 3 * width * (2 * width + width) + width * words
    flop = forward_flop(prepared("seq2seq", "bahdanau"), small_pairs(length=length), batch_size=4)
    assert flop == 2 * 4 * (encoder + length * step)


def test_the_older_form_does_the_work_of_its_matrix_products() -> None:
    length, width, words = 6, 256, 30
    gru = 3 * width * (width + width)
    step = 2 * width * length + length * width + 2 * width * width + gru + width * words
    flop = forward_flop(prepared("seq2seq", "tutorial2017"), small_pairs(length=length), batch_size=4)
    assert flop == 2 * 4 * length * (gru + step)


@pytest.mark.slow_variants
@pytest.mark.parametrize(("variant", "width"), [("cbt", 384), ("cnn", 256)])
def test_the_reader_does_the_work_of_its_matrix_products(variant: str, width: int) -> None:
    length = 12
    read = 2 * (length + QUERY_LENGTH) * 3 * width * (384 + width)
    attend = length * QUERY_LENGTH * 2 * width + length * QUERY_LENGTH + 10 * length
    assert forward_flop(prepared("aoa_reader", variant), small_questions(length), 4) == 2 * 4 * (read + attend)


@pytest.mark.slow_variants
@pytest.mark.parametrize(("name", "variant"), [
    *CASES[:3], pytest.param(*CASES[3], marks=pytest.mark.slow)])
@pytest.mark.parametrize("mode", [pytest.param("train", marks=pytest.mark.slow), "infer"])
def test_every_variant_runs_at_its_smallest_size(
    name: str, variant: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aoa_reader, "NUM_SYNTHETIC_WORDS", 500)
    workload = prepared(name, variant)
    case = Case(workload, workload.smallest_input_size, 3, mode, "fp32", torch.device("cpu"), DataRequest())
    loop = Loop(case)
    before = [parameter.detach().clone() for parameter in loop.model.parameters()]
    loop.iteration(lambda phase: contextlib.nullcontext())
    moved = [not torch.equal(old, new) for old, new in zip(before, loop.model.parameters(), strict=True)]
    assert any(moved) == (mode == "train")
    rows, facts = flop_pass(case, first_batch(loop.dataset, 3))
    assert facts.uncounted == []
    working = {row["phase"] for row in rows if row["flop"]}
    assert working == ({"forward", "backward"} if mode == "train" else {"forward"})


@pytest.mark.slow
@pytest.mark.parametrize(("name", "variant"), CASES)
def test_every_parameter_learns(name: str, variant: str) -> None:
    workload, dataset = prepared(name, variant), small_data(name)
    model, batch = workload.model(dataset), first_batch(dataset, 8)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    workload.loss(workload.forward(model, batch), batch).backward()
    workload.clip_gradients(model)
    for optimizer in workload.optimizers(model):
        optimizer.step()
    still = {name for name, parameter in model.named_parameters() if torch.equal(parameter, before[name])}
    # A softmax is blind to a constant, so this bias has no effect beyond rounding.
    assert still <= {"decoder.attention.score.bias"}


def test_the_translators_first_loss_is_that_of_guessing() -> None:
    workload, dataset = prepared("seq2seq", "bahdanau"), small_pairs()
    batch = first_batch(dataset, 64)
    with torch.no_grad():
        loss = workload.loss(workload.forward(workload.model(dataset), batch), batch)
    assert float(loss) == pytest.approx(math.log(30), rel=0.1)


@pytest.mark.parametrize("variant", ["cbt", "cnn"])
def test_the_readers_first_loss_is_that_of_pointing_anywhere(variant: str) -> None:
    workload, dataset = prepared("aoa_reader", variant), small_questions(12)
    batch = first_batch(dataset, 64)
    answers = batch.candidates.gather(1, batch.answer[:, None])
    share = (batch.document == answers).sum(1) / (batch.document != 0).sum(1)
    with torch.no_grad():
        loss = workload.loss(workload.forward(workload.model(dataset), batch), batch)
    assert float(loss) == pytest.approx(float(-share.log().mean()), rel=0.1)


def packed_states(gru: nn.GRU, inputs: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    packed = pack_padded_sequence(inputs, lengths, batch_first=True, enforce_sorted=False)
    states, last = gru(packed)
    return pad_packed_sequence(states, batch_first=True, total_length=inputs.shape[1])[0], last


def test_both_directions_read_a_padded_text_as_if_it_were_packed() -> None:
    ours, theirs = BidirectionalGRU(5, 4), nn.GRU(5, 4, batch_first=True, bidirectional=True)
    directions = [*ours.ahead.parameters(), *ours.back.parameters()]
    for mine, other in zip(directions, theirs.parameters(), strict=True):
        other.data.copy_(mine)
    inputs, lengths = torch.randn(4, 9, 5), torch.tensor([9, 1, 5, 8])
    expected, _ = packed_states(theirs, inputs, lengths)
    inside = (torch.arange(9) < lengths[:, None])[:, :, None]
    torch.testing.assert_close(ours(inputs, lengths) * inside, expected)


def test_the_older_encoder_stops_at_the_end_mark() -> None:
    encoder = SteppedEncoder(40, 16)
    sources = first_batch(small_pairs(), 8)[0]
    states, last = encoder(sources)
    expected, expected_last = packed_states(encoder.gru, encoder.embedding(sources), (sources != PADDING).sum(1))
    torch.testing.assert_close(states, expected)
    torch.testing.assert_close(last, expected_last)


def plain_probabilities(model: AoAReader, question: Cloze) -> list[float]:
    """The paper's equations for one question without padding, sums written out."""
    document = question.document[question.document > 0]
    query = question.query[question.query > 0]
    states = [model.gru(model.embedding(words)[None], torch.tensor([len(words)]))[0] for words in (document, query)]
    scores = states[0] @ states[1].T
    importance = torch.stack([row.exp() / row.exp().sum() for row in scores]).mean(0)
    columns = torch.stack([column.exp() / column.exp().sum() for column in scores.T])
    attention = (importance[:, None] * columns).sum(0)
    return [sum(float(share) for word, share in zip(document, attention, strict=True) if word == candidate)
            for candidate in question.candidates]


def test_the_reader_follows_the_papers_equations() -> None:
    dataset = small_questions(20)
    model = prepared("aoa_reader", "cnn").model(dataset).eval()
    assert isinstance(model, AoAReader)
    model.embedding.weight.data.mul_(20)  # from the initial weights, all words are nearly alike
    batch = first_batch(dataset, 6)
    assert len({int((document > 0).sum()) for document in batch.document}) > 1
    with torch.no_grad():
        outputs = model(*batch[:3])
        expected = torch.tensor([plain_probabilities(model, dataset[index]) for index in range(6)])
    torch.testing.assert_close(outputs, expected, rtol=1e-4, atol=1e-6)
    assert (outputs.std(1) > 0.001).all()


def test_an_answer_that_was_cut_away_has_a_finite_loss() -> None:
    workload = prepared("aoa_reader", "cbt")
    outputs = torch.zeros(2, 10, requires_grad=True)
    loss = workload.loss(outputs, (None, None, None, torch.tensor([0, 9])))
    loss.backward()
    assert 20 < loss < 30
    assert outputs.grad is not None
    assert outputs.grad.isfinite().all()


def test_the_reader_clips_each_value() -> None:
    workload, dataset = prepared("aoa_reader", "cbt"), small_questions(12)
    model = workload.model(dataset)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, -7.0)
    workload.clip_gradients(model)
    assert all((parameter.grad == -5).all() for parameter in model.parameters() if parameter.grad is not None)


def test_the_optimizers_are_the_published_ones() -> None:
    for variant, kind, rate in (("bahdanau", torch.optim.Adam, 0.001), ("tutorial2017", torch.optim.SGD, 0.01)):
        workload = prepared("seq2seq", variant)
        model = workload.model(small_pairs())
        encoder, decoder = workload.optimizers(model)
        assert type(encoder) is type(decoder) is kind
        assert encoder.param_groups[0]["lr"] == decoder.param_groups[0]["lr"] == rate
    for variant, penalties in (("cbt", [1e-4, 1e-4]), ("cnn", [1e-4, 0.0])):
        workload = prepared("aoa_reader", variant)
        (optimizer,) = workload.optimizers(workload.model(small_questions(12)))
        assert [group["weight_decay"] for group in optimizer.param_groups] == penalties
    assert prepared("seq2seq", "tutorial2017").default_batch_size == 1


@pytest.mark.parametrize("variant", ["bahdanau", "tutorial2017"])
def test_inference_never_reads_the_targets(variant: str) -> None:
    workload, dataset = prepared("seq2seq", variant), small_pairs()
    model, (sources, targets) = workload.model(dataset).eval(), first_batch(dataset, 8)
    with torch.no_grad():
        written, other = model(sources, targets), model(sources, targets.flip(0))
    assert torch.equal(written, other)
    torch.testing.assert_close(written.exp().sum(2), torch.ones(8, 8))


def test_the_present_form_is_always_forced_and_the_older_in_half_of_the_batches() -> None:
    for variant, expected in (("bahdanau", {True}), ("tutorial2017", {True, False})):
        workload, dataset = prepared("seq2seq", variant), small_pairs()
        model, (sources, targets) = workload.model(dataset), first_batch(dataset, 8)
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        with torch.no_grad():
            free = model.eval()(sources, targets)
            trained = [model.train()(sources, targets) for _ in range(20)]
        assert {not torch.equal(outputs, free) for outputs in trained} == expected


def test_the_older_loss_leaves_padding_out_and_the_present_does_not() -> None:
    targets = torch.tensor([[5, EOS, PADDING], [6, 7, EOS]])
    outputs = torch.full((2, 3, 9), -2.0)
    outputs[0, 2] = -1000.0
    batch = (targets, targets)
    assert prepared("seq2seq", "tutorial2017").loss(outputs, batch) == pytest.approx(5 * 2 / 2)
    assert prepared("seq2seq", "bahdanau").loss(outputs, batch) == pytest.approx((5 * 2 + 1000) / 6)


def train(workload: Workload, model: nn.Module, dataset: Dataset[Any], batch_size: int, num_epochs: int) -> None:
    loader = DataLoader(dataset, batch_size, shuffle=True, generator=torch.Generator().manual_seed(0))
    optimizers = workload.optimizers(model.train())
    for _ in range(num_epochs):
        for batch in loader:
            workload.loss(workload.forward(model, batch), batch).backward()
            workload.clip_gradients(model)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()


@pytest.mark.slow
@pytest.mark.skipif(not TATOEBA.is_dir(), reason="needs eng-fra.txt in ../shared/data/tatoeba")
@pytest.mark.usefixtures("one_thread")
def test_seq2seq_learns_200_real_pairs_by_heart(tmp_path: Path) -> None:
    torch.manual_seed(0)
    workload = prepared("seq2seq", "bahdanau")
    with ZipFile(tmp_path / "data.zip", "w") as archive:
        archive.write(TATOEBA / "eng-fra.txt", "data/eng-fra.txt")
    dataset = translation_dataset(DataRequest("tatoeba", tmp_path), input_size=10, num_source_words=0,
                                  num_target_words=0)
    # One translation for each French sentence, or the right answer could not be told.
    chosen = list({tuple(dataset[index][0].tolist()): index for index in range(len(dataset))}.values())[:200]
    pairs = Subset(dataset, chosen)
    model = workload.model(dataset)
    train(workload, model, pairs, batch_size=32, num_epochs=150)
    sources, targets = first_batch(pairs, 200)
    with torch.no_grad():
        guesses = model.eval()(sources, targets).argmax(2)
    inside = targets != PADDING
    accuracy = float((guesses == targets)[inside].float().mean())
    print(f"token accuracy {accuracy:.4f}")
    assert accuracy > 0.95


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("variant", ["cbt", "cnn"])
def test_the_reader_learns_50_made_up_questions_by_heart(variant: str) -> None:
    torch.manual_seed(0)
    workload = prepared("aoa_reader", variant)
    dataset = cloze_dataset(DataRequest(), input_size=24, num_synthetic_words=400)
    questions = Subset(dataset, range(50))
    model = workload.model(dataset)
    batch = first_batch(questions, 50)

    def accuracy() -> float:
        with torch.no_grad():
            return float((workload.forward(model.eval(), batch).argmax(1) == batch.answer).float().mean())

    before = accuracy()
    train(workload, model, questions, batch_size=25, num_epochs=35)
    print(f"candidate accuracy {before:.2f} before, {accuracy():.2f} after")
    assert before < 0.5
    assert accuracy() == 1
