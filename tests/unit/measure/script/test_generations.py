"""Which forwards of a program that only infers read prompts, and which decode."""

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.records import run_of
from support.watched import cases, watched
from torch import Tensor, nn
from torch.utils.data import DataLoader

from charact.analysis.findings import findings
from charact.analysis.profile.generation import generations, is_generation, token_times
from charact.core.timeline import Interval, Iteration, Mode
from charact.measure.script.hooks.optimizer_patches import OptimizerPatches
from charact.measure.script.program.events import ProgramEvents, TokenInput
from charact.measure.script.spans import generations as detection
from charact.measure.script.spans.generations import step_groups, with_generations

MODEL, HEAD, OTHER = 1, 2, 3
FORWARD_NS, GAP_NS = 10, 5


@pytest.fixture(autouse=True)
def no_optimizer_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the optimizers of earlier tests in this process: a program that has one might train."""
    monkeypatch.setattr(OptimizerPatches, "_patch_existing_optimizers", lambda self, base: None)


def call(length: int, rows: int = 2, *, keeps: bool = False, reach: int | None = None, owner: int = MODEL
         ) -> tuple[int, TokenInput]:
    return owner, TokenInput(rows, length, keeps, length if reach is None else reach)


def decoded(number: int, **facts: Any) -> list[tuple[int, TokenInput]]:
    return [call(1, keeps=True, **facts) for _ in range(number)]


def grown(first: int, last: int) -> list[tuple[int, TokenInput]]:
    return [call(length) for length in range(first, last + 1)]


def logged(calls: list[tuple[int, TokenInput]], *, one_iteration: bool = False
           ) -> tuple[list[Iteration], list[Any]]:
    """Iterations of one call each, or one with a fetch before all calls; and the rows of changed inputs."""
    intervals, rows, last = [], [], dict[int, TokenInput]()
    for number, (owner, tokens) in enumerate(calls):
        start_ns = 100 + number * (FORWARD_NS + GAP_NS)
        intervals.append(Interval("forward", start_ns, start_ns + FORWARD_NS, owner, mode=Mode.NO_GRADIENTS))
        if last.get(owner) != tokens:
            rows.append((start_ns - 1, owner, *tokens))
            last[owner] = tokens
    if one_iteration:
        fetch = Interval("data", 90, 95, -1)
        return [Iteration(90, intervals[-1].end_ns + 1000, [fetch, *intervals], training=False)], rows
    ends = [*(each.start_ns for each in intervals[1:]), intervals[-1].end_ns + 1000]
    return [Iteration(each.start_ns, end, [each], training=False)
            for each, end in zip(intervals, ends, strict=True)], rows


def modes(iterations: list[Iteration]) -> str:
    """P for a prefill, d for a decoding, i for other inference."""
    return "".join("i" if each.step is None else "P" if each.step.mode == "prefill" else "d" for each in iterations)


def contexts(iterations: list[Iteration]) -> list[int | None]:
    return [each.step and each.step.context for each in iterations]


@pytest.mark.parametrize("one_iteration", [False, True])
def test_a_prompt_and_single_tokens_with_a_state_are_a_generation(one_iteration: bool) -> None:
    calls = [call(8, keeps=True), *decoded(4), call(6, keeps=True), *decoded(5)]
    found = with_generations(*logged(calls, one_iteration=one_iteration))
    assert modes(found) == "PddddPddddd"
    assert contexts(found) == [8, 9, 10, 11, 12, 6, 7, 8, 9, 10, 11]
    walls = [each.host_ns for each in found]
    assert walls[0] == FORWARD_NS + GAP_NS + (10 if one_iteration else 0)  # with the fetch before it
    # What follows the last token of a generation is no part of it.
    assert walls[1:] == [15, 15, 15, 10, 15, 15, 15, 15, 15, 10]
    steps = [each.step for each in found if each.step]
    assert {(step.number, step.prompt_size, step.output_size) for step in steps} == {(0, 8, 5), (1, 6, 6)}
    assert all(step.has_cache and step.num_requests == 2 for step in steps)


def test_one_token_more_in_each_call_is_a_generation_without_a_cache() -> None:
    found = with_generations(*logged([*grown(4, 20), *grown(4, 20)]))
    assert modes(found) == 2 * ("P" + 16 * "d")
    assert contexts(found) == 2 * list(range(4, 21))
    assert not any(each.step.has_cache for each in found if each.step)
    assert modes(with_generations(*logged(grown(4, 12)))) == "P" + 8 * "d"
    assert modes(with_generations(*logged(grown(4, 11)))) == 8 * "i"  # may be inputs in order of their length


def test_a_full_window_still_decodes() -> None:
    found = with_generations(*logged([*grown(1, 12), *(call(12) for _ in range(5)), *grown(1, 12)]))
    assert modes(found) == "P" + 16 * "d" + "P" + 11 * "d"


def lengths(seed: int, most: int = 6) -> list[int]:
    draw = random.Random(seed)
    return [draw.randint(1, most) for _ in range(200)]


@pytest.mark.parametrize("calls", [
    [call(length) for length in lengths(0)], [call(length, keeps=True) for length in lengths(1, 12)],
    [call(1, keeps=True)] * 50, [call(1)] * 50, [call(8)] * 50,
    [call(length) for length in sorted(lengths(2), reverse=True)], [call(length) for length in sorted(lengths(3))],
    [call(8), *[call(1)] * 50],  # nothing that could be a state
    [each for _ in range(20) for each in (call(8, keeps=True), call(1, keeps=True))],  # one token is no generation
    [call(8, keeps=True), *decoded(3)], [call(8, rows=3, keeps=True), *decoded(9)],  # other rows
    [*(call(8, keeps=True) for _ in range(20)), *decoded(9)],  # most calls score texts
], ids=["mixed", "mixed with state", "ones with state", "ones", "equal", "falling", "rising", "without state",
        "pairs", "short", "other rows", "few"])
def test_other_inference_is_left_alone(calls: list[tuple[int, TokenInput]]) -> None:
    iterations, rows = logged(calls)
    assert with_generations(iterations, rows) == iterations
    assert step_groups(iterations) == []


def trained(iteration: Iteration) -> Iteration:
    return replace(iteration, training=True)


def test_a_generation_between_iterations_of_training_is_one() -> None:
    generation = [call(8, keeps=True), *decoded(9)]
    iterations, rows = logged([call(8), *generation, call(8), *generation, call(8)])
    iterations = [trained(each) if number % 11 == 0 else each for number, each in enumerate(iterations)]
    found = with_generations(iterations, rows)
    assert modes(found) == 2 * ("i" + "P" + 9 * "d") + "i"
    assert [each for each in found if each.training] == iterations[::11]
    assert [each.host_ns for each in found[1:11]] == [*9 * [15], 10]


def test_a_generation_in_an_iteration_of_training_is_left_alone() -> None:
    iterations, rows = logged([call(8, keeps=True), *decoded(9)], one_iteration=True)
    iterations = [trained(each) for each in iterations]
    assert with_generations(iterations, rows) == iterations


@pytest.mark.parametrize("owner", [MODEL, OTHER])
def test_tokens_between_which_a_model_trains_are_no_generation(owner: int) -> None:
    iterations, rows = logged([call(8, keeps=True), *decoded(4), call(8, owner=owner), *decoded(4)])
    iterations[5] = trained(iterations[5])
    assert with_generations(iterations, rows) == iterations


def test_batches_of_a_validation_do_not_hide_a_generation() -> None:
    iterations, rows = logged([*(call(8) for _ in range(30)), call(8, keeps=True), *decoded(9)])

    def fetched(each: Iteration) -> Iteration:
        return replace(each, intervals=[Interval("data", each.start_ns - 3, each.start_ns - 1, -1), *each.intervals])

    validation = [fetched(each) for each in iterations[:30]]
    assert modes(with_generations([*validation, *iterations[30:]], rows)) == 40 * "i"  # a classifier's, perhaps
    validation[0] = trained(validation[0])
    assert modes(with_generations([*validation, *iterations[30:]], rows)) == 30 * "i" + "P" + 9 * "d"


def test_chunks_of_a_prompt_are_one_prefill_and_calls_before_it_are_none() -> None:
    chunks = [call(4, reach=4), call(4, keeps=True, reach=8), call(2, keeps=True, reach=10)]
    found = with_generations(*logged([*chunks, *decoded(6)]))
    assert (modes(found), contexts(found)) == ("Pdddddd", list(range(10, 17)))
    assert found[0].host_ns == 3 * 15
    assert [each.phase for each in found[0].intervals] == 3 * ["forward"]
    assert with_generations(*logged([*chunks, *decoded(6)], one_iteration=True))[0].host_ns == 3 * 15 + 10
    chunks[0] = call(4, keeps=True, reach=4)
    alone = with_generations(*logged([*chunks, *decoded(6), *chunks, call(9, owner=OTHER)]))
    assert (modes(alone), alone[-2].host_ns) == ("PddddddPi", 3 * 15 - GAP_NS)
    scored = [call(4, reach=4), call(4, keeps=True, reach=4), *decoded(6)]
    assert modes(with_generations(*logged(scored))) == "iPdddddd"
    assert modes(with_generations(*logged(scored, one_iteration=True))) == "iPdddddd"


@pytest.mark.parametrize("one_iteration", [False, True])
def test_generations_of_one_token_are_prefills(one_iteration: bool) -> None:
    """By these the time to the first token is measured often. They end with their forward."""
    prompt = call(8, keeps=True)
    found = with_generations(*logged([prompt, prompt, *decoded(4), prompt, prompt, prompt, *decoded(4), prompt],
                                     one_iteration=one_iteration))
    assert modes(found) == "PPddddPPPddddP"
    assert [each.host_ns for each in found if each.step and each.step.mode == "prefill"][1:] == [15, 10, 10, 15, 10]
    assert {(group.mode, group.output_size, len(group.iterations)) for group in step_groups(found)} == {
        ("prefill", 5, 6), ("decode", 5, 8)}
    without_state = call(8)
    scored = [without_state, prompt, *decoded(4), without_state, prompt, *decoded(4)]
    assert modes(with_generations(*logged(scored, one_iteration=one_iteration))) == "iPddddiPdddd"
    assert modes(with_generations(*logged([prompt] * 9, one_iteration=one_iteration))) == "i" * (
        1 if one_iteration else 9)


def test_beams_and_requests_that_end_leave_a_generation_one() -> None:
    beams = [call(8, rows=1, keeps=True), *decoded(4, rows=4), *decoded(4, rows=2)]
    found = with_generations(*logged(beams))
    assert modes(found) == "P" + 8 * "d"
    assert found[1].step is not None
    assert found[1].step.num_requests == 1


@pytest.mark.parametrize("one_iteration", [False, True])
def test_models_after_each_forward_belong_to_it_and_others_do_not(one_iteration: bool) -> None:
    def floats(owner: int) -> tuple[int, TokenInput]:
        return owner, TokenInput(0, 0, False, 0)

    calls = [each for one in (call(8, keeps=True), *decoded(5)) for each in (one, floats(HEAD))] + [floats(OTHER)]
    iterations, rows = logged(calls, one_iteration=one_iteration)
    rows = [row for row in rows if row[1] == MODEL]
    if not one_iteration:  # an iteration has a forward of the model, the head's, and what follows
        joined = [replace(first, intervals=first.intervals + second.intervals, end_ns=second.end_ns)
                  for first, second in zip(iterations[:-1:2], iterations[1::2], strict=True)]
        iterations = [*joined[:-1], replace(joined[-1], end_ns=iterations[-1].end_ns,
                                            intervals=joined[-1].intervals + iterations[-1].intervals)]
    found = with_generations(iterations, rows)
    assert modes(found) == "Pdddddi"
    owners = [[each.owner for each in one.intervals if each.owner > 0] for one in found]
    assert owners == [*6 * [[MODEL, HEAD]], [OTHER]]


def encoded(number: int, *, rows: int = 2, length: int = 8) -> list[tuple[int, TokenInput]]:
    """Calls of an encoder with tokens, and of its decoder."""
    return [call(length, owner=OTHER), *decoded(number, rows=rows)]


@pytest.mark.parametrize("one_iteration", [False, True])
@pytest.mark.parametrize("num_encoders", [1, 2])
def test_an_encoder_and_the_first_token_of_its_decoder_are_a_prefill(one_iteration: bool, num_encoders: int) -> None:
    image = [(HEAD, TokenInput(0, 0, False, 0))] * (num_encoders - 1)
    iterations, rows = logged([*image, *encoded(5), *image, *encoded(7), *image, *encoded(1)],
                              one_iteration=one_iteration)
    found = with_generations(iterations, [row for row in rows if row[1] != HEAD])
    assert modes(found) == "Pdddd" + "Pdddddd" + "P"
    assert contexts(found) == [8, 9, 10, 11, 12, 8, 9, 10, 11, 12, 13, 14, 8]
    assert {each.step.output_size for each in found if each.step} == {5, 7, 1}
    prefills = [each for each in found if each.step and each.step.mode == "prefill"]
    assert [len([one for one in each.intervals if one.phase == "forward"]) for each in prefills] == (
        3 * [1 + num_encoders])
    until_next_ns = (1 + num_encoders) * (FORWARD_NS + GAP_NS)
    # A single token ends with its forward.
    assert [each.host_ns for each in prefills] == [
        until_next_ns + (10 if one_iteration else 0), until_next_ns, until_next_ns - GAP_NS]
    assert [each.host_ns for each in found[1:5]] == [15, 15, 15, 10]


def test_requests_of_an_encoder_are_those_before_beams() -> None:
    found = with_generations(*logged([*encoded(5, rows=6), *encoded(5, rows=6)]))
    assert modes(found) == 2 * "Pdddd"
    assert {each.step.num_requests for each in found if each.step} == {2}


def test_calls_of_an_encoder_that_precede_a_prompt_belong_to_it_as_many_as_usual() -> None:
    part = call(8, owner=OTHER)
    found = with_generations(*logged([part, part, part, *decoded(5), part, part, *decoded(5), part, part, *decoded(5)]))
    assert modes(found) == "i" + 3 * "Pdddd"  # such as a call to warm up
    assert contexts(found)[:3] == [None, 16, 17]


def test_other_calls_of_a_decoder_are_none_of_its_generations() -> None:
    whole = call(8, keeps=True)
    found = with_generations(*logged([whole, *encoded(6), whole, *encoded(6), *decoded(2), whole, *decoded(6)]))
    assert modes(found) == "i" + "Pddddd" + "i" + "Pddddddd" + 7 * "i"


def test_a_model_after_a_translation_is_no_encoder() -> None:
    judge = call(9, owner=HEAD)
    found = with_generations(*logged([each for _ in range(3) for each in (*encoded(6), judge)]))
    assert modes(found) == 3 * ("P" + 5 * "d" + "i")


@pytest.mark.parametrize("calls", [
    encoded(5)[:-1], [each for _ in range(20) for each in encoded(1)], [each for _ in range(20) for each in encoded(2)],
    [call(8, owner=OTHER), *[call(1)] * 20],  # nothing that could be a state
    [call(8, owner=OTHER), *decoded(9), *[call(2, keeps=True)] * 20],  # most calls score texts
    [*decoded(9), call(8, owner=OTHER), *decoded(9)],  # the first tokens had none
    [each for _ in range(6) for each in (*encoded(4), call(5, owner=HEAD), *decoded(4))],  # another one verifies
], ids=["short", "one token", "two tokens", "without state", "other lengths", "no encoder", "verified"])
def test_other_single_tokens_are_left_alone(calls: list[tuple[int, TokenInput]]) -> None:
    iterations, rows = logged(calls)
    assert with_generations(iterations, rows) == iterations


def test_a_model_whose_tokens_another_one_verifies_is_left_alone() -> None:
    verify = call(5, owner=OTHER, keeps=True)
    drafts = [each for _ in range(6) for each in (*decoded(4), verify)]
    iterations, rows = logged([call(8, keeps=True), call(8, owner=OTHER), *drafts])
    assert with_generations(iterations, rows) == iterations


def test_generations_whose_inputs_were_not_recorded_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    iterations, rows = logged([each for _ in range(3) for each in (call(8, keeps=True), *decoded(9))])
    assert len(rows) == 6
    monkeypatch.setattr(detection, "MAX_EVENTS", 4)
    assert modes(with_generations(iterations, rows[:4])) == "P" + 9 * "d" + "P" + 19 * "i"  # as of one token


def test_few_sizes_are_groups_of_their_own_and_many_are_one() -> None:
    def groups(sizes: list[tuple[int, int]]) -> list[tuple[str, int | None, int | None, int]]:
        calls = [each for length, rows in sizes
                 for each in (call(length, rows=rows, keeps=True), *decoded(4, rows=rows))]
        return [(one.mode, one.prompt_size, one.num_requests, len(one.iterations))
                for one in step_groups(with_generations(*logged(calls)))]

    assert groups([(8, 2), (16, 2), (8, 2)]) == [
        ("decode", 8, 2, 8), ("prefill", 8, 2, 2), ("decode", 16, 2, 4), ("prefill", 16, 2, 1)]
    assert groups([(length, 1) for length in range(8, 20)]) == [("decode", None, 1, 48), ("prefill", None, 1, 12)]
    assert groups([(8, rows) for rows in range(1, 10)]) == [("decode", None, None, 36), ("prefill", None, None, 9)]


WIDTH, NUM_WORDS = 8, 50


class Model(nn.Module):
    """A language model with a cache, a list of tensors, and a method that generates."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(NUM_WORDS, WIDTH), nn.Linear(WIDTH, NUM_WORDS)

    def forward(self, ids: Tensor, cache: list[Tensor] | None = None) -> Tensor:
        x = self.words(ids)
        if cache is not None:
            cache.append(x)
            x = torch.cat(cache, 1)
        logits: Tensor = self.head(x.mean(1))
        return logits

    @torch.no_grad()
    def generate(self, ids: Tensor, number: int, *, has_cache: bool = True) -> Tensor:
        cache: list[Tensor] | None = [] if has_cache else None
        read = ids
        for _ in range(number):
            new = self(read, cache).argmax(-1, keepdim=True)
            ids = torch.cat([ids, new], 1)
            read = new if has_cache else ids
        return ids

    def read(self, ids: Tensor, cache: list[Tensor] | None) -> Tensor:
        return self(ids, cache).argmax(-1, keepdim=True)

    @torch.no_grad()
    def generate_in_parts(self, ids: Tensor, number: int) -> Tensor:
        """Return the last token; a method of its own reads the prompts, as in transformers."""
        cache: list[Tensor] = []
        new = self.read(ids, cache)
        for _ in range(number - 1):
            new = self(new, cache).argmax(-1, keepdim=True)
        return new


def prompts(length: int = 12) -> Tensor:
    return torch.randint(0, NUM_WORDS, (3, length))


def by_hand(model: Model) -> None:
    with torch.no_grad():
        for _ in range(5):
            cache: list[Tensor] = []
            read = prompts()
            for _ in range(10):
                read = model(read, cache).argmax(-1, keepdim=True)


class Server:
    """Calls the forward of its model, which is a module, by itself."""

    def __init__(self, model: Model) -> None:
        self.model = model

    @torch.inference_mode()
    def generate(self, ids: Tensor, number: int) -> None:
        cache: list[Tensor] = []
        for _ in range(number):
            ids = self.model.forward(ids, cache).argmax(-1, keepdim=True)


PROGRAMS: dict[str, Callable[[Model], Any]] = {
    "by hand": by_hand, "by a method": lambda model: [model.generate(prompts(), 10) for _ in range(5)],
    "without a cache": lambda model: [model.generate(prompts(), 10, has_cache=False) for _ in range(5)],
    "by its forward": lambda model: [Server(model).generate(prompts(), 10) for _ in range(5)],
}


def program(body: Callable[[Model], Any]) -> Callable[[], Any]:
    def run() -> Any:
        model = Model().eval()
        body(model)
        return model

    return run


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_that_generate_have_cases_of_prefill_and_decode(tmp_path: Path, name: str) -> None:
    found = cases(watched(tmp_path / "log", program(PROGRAMS[name])))
    entries = {entry.mode: entry for entry, _ in found}
    assert [entry.case for entry, _ in found] == ["mine-decode", "mine-prefill"]
    assert [entries[mode].passes.timing.num_iterations for mode in ("decode", "prefill")] == [45, 5]
    for entry in entries.values():
        assert (entry.input_size, entry.output_size, entry.batch_size) == (12, 10, 3)
        assert entry.cache == ("none" if name == "without a cache" else "as written")
    assert entries["decode"].passes.timing.program is not None
    run = run_of(tmp_path / "run", *found, options={"script": "mine.py"})
    assert is_generation(run)
    row = generations(run).iloc[0]
    assert (row["num_prompts"], row["num_tokens"], row["input_low"], row["input_high"]) == (5, 45, 12, 12)
    decode, prefill = (run.iterations[run.iterations["case"] == f"mine-{mode}"].groupby("iteration")["host_s"].sum()
                       for mode in ("decode", "prefill"))
    assert row["first_s"] == pytest.approx(prefill.median())
    assert row["token_s"] == pytest.approx(decode.median())
    assert row["all_tokens_per_s"] == pytest.approx(3 * 10 / (prefill.median() + 9 * decode.mean()))
    assert token_times(run)["context"].tolist() == list(range(12, 21))
    if name == "without a cache":
        assert "repeated_inputs" in set(findings(run)["finding"])
    else:
        assert "repeated_inputs" not in set(findings(run)["finding"])


def test_a_method_that_reads_prompts_is_none_of_a_forward(tmp_path: Path) -> None:
    """Its first calls are all that a program has done, which times its first token alone."""
    def body(model: Model) -> None:
        for _ in range(5):
            for number in (1, 1, 10):
                model.generate_in_parts(prompts(), number)

    found = cases(watched(tmp_path / "log", program(body)))
    assert {entry.case: (entry.passes.timing.num_iterations, entry.output_size) for entry, _ in found} == {
        "mine-decode": (45, 10), "mine-prefill": (14, 10), "mine-infer": (1, None)}


def test_prompts_of_many_lengths_have_a_range(tmp_path: Path) -> None:
    found = cases(watched(tmp_path / "log", program(
        lambda model: [model.generate(prompts(length), 6 + length % 2) for length in range(5, 15)])))
    assert [(entry.case, entry.input_size, entry.output_size) for entry, _ in found] == [
        ("mine-decode", None, 6), ("mine-prefill", None, 6)]
    row = generations(run_of(tmp_path / "run", *found, options={"script": "mine.py"})).iloc[0]
    assert (row["input_low"], row["input_high"]) == (5, 14)


@torch.no_grad()
def initialize(model: Model) -> None:
    time.sleep(0.05)
    model.words.weight.zero_()


def test_a_first_prefill_begins_after_the_initialization_of_its_model(tmp_path: Path) -> None:
    def body(model: Model) -> None:
        initialize(model)
        model.generate(prompts(), 10)

    log = watched(tmp_path / "log", program(body))
    assert modes(log.iterations) == "P" + 9 * "d"
    assert log.iterations[0].start_ns == log.iterations[0].intervals[0].start_ns


def test_passes_measure_decoding_only(tmp_path: Path) -> None:
    log = watched(tmp_path / "log", program(lambda model: [model.generate(prompts(), 6) for _ in range(12)]),
                  "operators", "inspection")
    (decode, tables), (prefill, _) = cases(log, "operators", "inspection")
    assert decode.passes.operators.status == decode.passes.inspection.status == "ok"
    assert len(decode.passes.operators.iterations) == decode.passes.operators.num_iterations
    embeddings = {row["input_shapes"] for row in tables["operators"] if row["operator"] == "aten::embedding"}
    assert embeddings == {f"[[{NUM_WORDS},{WIDTH}],[3,1]]"}
    assert not prefill.passes.operators.iterations


def test_an_encoder_before_the_prompt_is_part_of_the_prefill(tmp_path: Path) -> None:
    @torch.no_grad()
    def transcribe(model: Model) -> nn.Module:
        encoder = nn.Linear(4, 4)
        for _ in range(12):
            encoder(torch.ones(3, 4))
            cache: list[Tensor] = []
            read = prompts(3)
            for _ in range(6):
                read = model(read, cache).argmax(-1, keepdim=True)
        return encoder

    log = watched(tmp_path / "log", program(transcribe), "operators")
    assert modes(log.iterations) == 12 * "Pddddd"
    assert {sum(each.phase == "forward" for each in one.intervals) for one in log.iterations[::6]} == {2}
    (decode, tables), _ = cases(log, "operators")
    assert decode.passes.operators.status == "ok"
    (calls,) = {row["num_calls"] for row in tables["operators"] if row["operator"] == "aten::embedding"}
    assert calls == 1  # an iteration of the passes decodes one token, too


class Decoder(nn.Module):
    """A decoder with a state that its encoder begins."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.state = nn.Embedding(NUM_WORDS, WIDTH), nn.GRU(WIDTH, WIDTH, batch_first=True)

    def forward(self, ids: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        outputs, state = self.state(self.words(ids), state)
        return outputs[:, -1] @ self.words.weight.T, state


class Translator(nn.Module):
    """An encoder and a decoder, and a method that translates."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = Model(), Decoder()

    @torch.no_grad()
    def translate(self, ids: Tensor, number: int) -> Tensor:
        state = self.encoder(ids)[None, :, :WIDTH].contiguous()
        read = torch.zeros(len(ids), 1, dtype=torch.int64)
        for _ in range(number):
            logits, state = self.decoder(read, state)
            read = logits.argmax(-1, keepdim=True)
        return read


@pytest.mark.parametrize("times_first_token", [False, True])
def test_a_translator_generates(tmp_path: Path, times_first_token: bool) -> None:
    def translate() -> nn.Module:
        model = Translator().eval()
        for _ in range(12):
            for number in (1, 10) if times_first_token else (10,):
                model.translate(prompts(), number)
        return model

    log = watched(tmp_path / "log", translate, "operators")
    assert modes(log.iterations) == 12 * (times_first_token * "P" + "P" + 9 * "d")
    (decode, tables), _ = cases(log, "operators")
    assert (decode.mode, decode.input_size, decode.output_size, decode.batch_size) == ("decode", 12, 10, 3)
    assert decode.passes.operators.status == "ok"
    embeddings = {(row["input_shapes"], row["num_calls"]) for row in tables["operators"]
                  if row["operator"] == "aten::embedding"}
    assert embeddings == {(f"[[{NUM_WORDS},{WIDTH}],[3,1]]", 1)}  # passes measure no encoder


class State:
    """A cache of its own class."""


def tokens_of(*calls: tuple[tuple[Any, ...], dict[str, Any]]) -> tuple[list[TokenInput], bool]:
    """The sizes of tokens that were recorded, and whether the model generates."""
    events = ProgramEvents()
    events.tensor_class, events.index_types = torch.Tensor, (torch.int64, torch.int32)
    for args, kwargs in calls:
        events.inputs(MODEL, None, args, kwargs)
    rows = [row for note in events.notes() if note["note"] == "token inputs" for row in note["rows"]]
    assert [owner for _, owner, *_ in rows] == len(rows) * [MODEL]
    return [TokenInput(*size) for _, _, *size in rows], MODEL in events.generating


def test_sizes_of_tokens_are_recorded_when_they_change() -> None:
    def named(length: int, reach: int, cache: Any = "state") -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (), {"attention_mask": prompts(reach), "position_ids": prompts(length), "input_ids": prompts(length),
                    "past_key_values": {cache: 1}, "use_cache": True, "logits_to_keep": 1}

    generated = [named(8, 8), *(named(1, 8 + number) for number in range(1, 6)), named(6, 6), named(1, 7)]
    assert tokens_of(*generated) == ([(3, 8, True, 8), (3, 1, True, 9), (3, 6, True, 6), (3, 1, True, 7)], True)
    assert tokens_of(named(8, 8), named(8, 16)) == ([(3, 8, True, 8), (3, 8, True, 16)], False)

    cache, other = State(), State()
    chunks = [((), {"input_ids": prompts(length), "past_key_values": one})
              for one, length in ((cache, 4), (cache, 4), (cache, 2), (cache, 1), (cache, 1), (other, 4), (other, 1))]
    assert tokens_of(*chunks)[0] == [(3, 4, True, 4), (3, 4, True, 8), (3, 2, True, 10), (3, 1, True, 11),
                                     (3, 4, True, 4), (3, 1, True, 5)]
    scored = [((), {"input_ids": prompts(4), "past_key_values": State()}) for _ in range(3)]
    assert tokens_of(*scored)[0] == [(3, 4, True, 4)]

    masked = [((), {"input_ids": prompts(length), "attention_mask": prompts(length)}) for length in (8, 1, 8, 1)]
    assert tokens_of(*masked) == ([(3, 8, False, 8), (3, 1, False, 1)] * 2, False)
    assert tokens_of(*(((prompts(length),), {}) for length in range(2, 11)))[1]
    assert not tokens_of(*(((prompts(length),), {}) for length in range(2, 10)))[1]
    at = [((prompts(4), 0), {}), ((prompts(3), 4), {}), ((prompts(1), 7), {}), ((prompts(1), 8), {})]
    assert tokens_of(*at) == ([(3, 4, True, 4), (3, 3, True, 7), (3, 1, True, 8)], True)
    assert tokens_of(((torch.ones(3, 8),), {}), ((torch.ones(3, 1),), {})) == ([], False)
    of_decoder = [((), {"encoder_outputs": {"states": torch.ones(3, 8, 2)}, "decoder_input_ids": prompts(1),
                        "attention_mask": prompts(8)})] * 2
    assert tokens_of(*of_decoder) == ([(3, 1, True, 8)], True)


@pytest.mark.parametrize("has_loader", [False, True])
@pytest.mark.parametrize("by_method", [False, True])
def test_a_training_generates_apart_from_its_iterations(tmp_path: Path, by_method: bool, has_loader: bool) -> None:
    """After each epoch, or before each step without a batch of a loader."""
    def train(model: Model) -> Any:
        optimizer = torch.optim.SGD(model.parameters())
        loader = DataLoader([row for _ in range(8) for row in prompts()], batch_size=3)
        for _ in range(3):
            for ids in loader if has_loader else [prompts()]:
                model(ids).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            for _ in range(2):
                if by_method:
                    model.generate(prompts(6), 10)
                else:
                    generate(model)
        return optimizer

    @torch.no_grad()
    def generate(model: Model) -> None:
        cache: list[Tensor] = []
        read = prompts(6)
        for _ in range(10):
            read = model(read, cache).argmax(-1, keepdim=True)

    found = cases(watched(tmp_path / "log", program(train)))
    assert [(entry.mode, entry.passes.timing.num_iterations) for entry, _ in found] == [
        ("train", 24 if has_loader else 3), ("decode", 54), ("prefill", 6)]
    assert (found[1][0].input_size, found[1][0].output_size, found[1][0].batch_size) == (6, 10, 3)


def test_a_validation_generates_apart_from_the_training(tmp_path: Path) -> None:
    def train(model: Model) -> Any:
        optimizer = torch.optim.SGD(model.parameters())
        texts, held_out, scored = (DataLoader([row for _ in range(8) for row in prompts()], batch_size=3)
                                   for _ in range(3))
        for _ in range(6):
            for ids in texts:
                model(ids).sum().backward()
                optimizer.step()
            for ids in held_out:
                model.generate(ids, 6)
            with torch.no_grad():
                for ids in scored:
                    model(ids)
        return optimizer

    log = watched(tmp_path / "log", program(train), "operators")
    assert modes([each for each in log.iterations if not each.training]) == 6 * (8 * "Pddddd" + 8 * "i")
    assert sum(each.training for each in log.iterations) == 48
    found = cases(log, "operators")
    assert [entry.mode for entry, _ in found] == ["train", "decode", "prefill", "infer"]
    operators = [entry.passes.operators for entry, _ in found]
    assert (operators[0].status, operators[3].status) == ("ok", "skipped")  # it measured batches of the generations
    assert "generate" in (operators[3].reason or "")


@pytest.mark.parametrize("by_method", [False, True])
def test_a_generation_from_the_batch_of_a_training_is_a_part_of_it(tmp_path: Path, by_method: bool) -> None:
    def train(model: Model) -> Any:
        optimizer = torch.optim.SGD(model.parameters())
        loader = DataLoader([row for _ in range(8) for row in prompts()], batch_size=3)
        for ids in (each for _ in range(2) for each in loader):
            if by_method:
                model.generate(ids, 10)
            else:
                with torch.no_grad():
                    cache: list[Tensor] = []
                    read = ids
                    for _ in range(10):
                        read = model(read, cache).argmax(-1, keepdim=True)
            model(ids).sum().backward()
            optimizer.step()
        return optimizer

    log = watched(tmp_path / "log", program(train))
    assert [(entry.mode, entry.passes.timing.num_iterations) for entry, _ in cases(log)] == [("train", 16)]
    num_forwards = [sum(interval.phase == "forward" for interval in each.intervals) for each in log.iterations]
    assert num_forwards == ([11, 11, *[2] * 14] if by_method else [11] * 16)  # the method is observed first


def classifiers() -> Iterator[Any]:
    draw = random.Random(0)
    mixed = [draw.randint(1, 5) for _ in range(60)]
    yield pytest.param(lambda model: [model(prompts(length)) for length in mixed], id="mixed")
    yield pytest.param(lambda model: [model(prompts(1)) for _ in range(60)], id="single words")
    yield pytest.param(lambda model: [model(prompts(length)) for length in sorted(mixed, reverse=True)], id="falling")


@pytest.mark.parametrize("body", list(classifiers()))
def test_classifiers_do_not_generate(tmp_path: Path, body: Callable[[Model], Any]) -> None:
    ((entry, tables),) = cases(watched(tmp_path / "log", program(torch.no_grad()(body))))
    assert (entry.case, entry.mode, entry.passes.timing.num_iterations) == ("mine-infer", "infer", 60)
    assert {row["context"] for row in tables["program_iterations"]} == {None}
