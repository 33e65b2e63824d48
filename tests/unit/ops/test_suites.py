"""Published lists of problems: how many there are, and what work they and their publishers count."""

import tomllib
from collections import Counter
from pathlib import Path

import pytest

from charact.ops import Problem, all_kinds, all_suites, parse_problem

KINDS, SUITES = all_kinds(), all_suites()
DEEPBENCH = SUITES["deepbench"].problems()


def flop(problem: Problem, direction: str = "forward") -> float:
    counted = KINDS[problem.operation].flop(problem, direction)
    assert counted is not None
    return counted


def published(problem: Problem) -> tuple[float, str] | None:
    return KINDS[problem.operation].published_flop(problem, "forward")


def listed(text: str, part: str = "training") -> Problem:
    return next(problem for problem in DEEPBENCH if (problem.text, problem.set) == (text, part))


@pytest.mark.parametrize("name", SUITES)
def test_a_suites_problems_parse_back_and_say_where_they_are_listed(name: str) -> None:
    suite = SUITES[name]
    assert suite.source
    problems = suite.problems()
    for problem in problems:
        again = parse_problem(problem.text)
        assert (again.text, again.sizes) == (problem.text, problem.sizes)
        assert problem.suite == name
    assert list(dict.fromkeys(problem.set for problem in problems if problem.set)) == list(suite.sets)


@pytest.mark.parametrize(("operation", "counts"), [
    ("gemm", (160, 75, 13)), ("convolution", (94, 107, 17)), ("rnn", (53, 69, 3)), ("sparse_gemm", (0, 24, 8)),
])
def test_deepbench_has_as_many_problems_as_were_published(operation: str, counts: tuple[int, ...]) -> None:
    found = Counter(problem.set for problem in DEEPBENCH if problem.operation == operation)
    assert tuple(found[part] for part in ("training", "inference_server", "inference_device")) == counts


def test_deepbench_computes_gradients_in_training_only() -> None:
    assert {problem.set for problem in DEEPBENCH if not problem.forward_only} == {"training"}


def test_figures_are_installed_with_the_package() -> None:
    settings = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))
    assert settings["tool"]["setuptools"]["package-data"]["charact.ops.suites"] == ["figures/*.csv"]


@pytest.mark.parametrize(("text", "published_ms", "published_tflop_per_s"), [
    ("gemm:1760x128x1760", 0.112, 7.080), ("rnn:lstm:512x16x25", 1.478, 0.5676),
    ("rnn:gru:2816x32x1500", 691.191, 3.304),
])
def test_published_times_and_rates_hold_together(text: str, published_ms: float, published_tflop_per_s: float) -> None:
    problem = listed(text)
    counted, _ = published(problem) or (flop(problem), "")
    assert counted / (published_ms * 1e-3) / 1e12 == pytest.approx(published_tflop_per_s, rel=1e-4)


def test_deepbench_does_not_round_the_sizes_of_convolutions() -> None:
    problem = listed("convolution:4x1x161x700:32x5x20:s2")
    assert flop(problem) == 2 * 4 * 32 * 79 * 341 * 5 * 20
    assert published(problem) == (2 * 4 * 32 * 78.5 * 340.5 * 5 * 20,
                                  "DeepBench: P = (H - R + 1 + 2 pad) / stride, not rounded")
    assert published(listed("convolution:8x64x54x54:64x3x3:p1")) is None
    assert published(parse_problem("convolution:4x1x161x700:32x5x20:s2")) is None


@pytest.mark.parametrize(("part", "factor"), [("inference_server", 2), ("inference_device", 1)])
def test_deepbench_counts_zeros_of_sparse_products(part: str, factor: int) -> None:
    problem = listed("sparse_gemm:7680x1x2560:s0.95", part)
    assert flop(problem) == 2 * 983_040  # of 7680 × 2560 numbers a twentieth
    counted, convention = published(problem) or (0.0, "")
    assert counted == pytest.approx(factor * 7680 * 2560 * 0.95)
    assert convention.startswith("DeepBench: ")


def of_vo(part: str) -> list[Problem]:
    return [problem for problem in SUITES["vo"].problems() if problem.set == part]


def test_vos_dense_products_have_the_published_total() -> None:
    assert sum(map(flop, of_vo("dmm"))) == 244_379_762_688


def test_vos_inner_dimension_is_his_second() -> None:
    first = of_vo("dmm")[0]
    assert first.text == "gemm:3072x1024x128"
    assert first.convention == "(M, N, K) = (3072, 128, 1024), of which N is the inner dimension"


def test_vos_sparse_products_are_told_by_their_density() -> None:
    total = 0
    for m, n, k, tenths in ((10752, 1, 3584, 90), (7680, 1500, 2560, 95), (7680, 2, 2560, 95), (7680, 1, 2560, 95)):
        total += 2 * (m * n * tenths // 100) * k
    problems = of_vo("smm")
    assert sum(map(flop, problems)) == pytest.approx(total, rel=1e-6)
    assert [problem.text for problem in problems][1] == "sparse_gemm:7680x2560x1500:s0.05"
    assert all("share of non-zeros" in str(problem.convention) for problem in problems)


def test_vos_network_has_the_published_work() -> None:
    macs = 16 * 16 * 2048 * 9 * 3 + 4 * 4 * 128 * 9 * 2048 + 64 * 9 * 128 + 64 * 10  # of a picture
    problems = of_vo("convolve2d")
    assert sum(map(flop, problems)) == 2 * 64 * macs
    weights = sum(problem.sizes["k"] * problem.sizes["c"] * 9 for problem in problems[:3]) + 64 * 10  # type: ignore[operator]
    assert weights + 2048 + 128 + 64 + 10 == 2_491_210


def test_a_layer_of_gpt2s_smallest_has_its_published_weights() -> None:
    problems = {problem.text for problem in SUITES["modern"].problems() if problem.set == "gpt2-small"}
    assert "optimizer:adamw:7077888x4:fused" in problems  # 12 × 768²
    assert {"gemm:2048x2304x768", "gemm:2048x768x768", "gemm:2048x3072x768", "gemm:2048x768x3072"} <= problems
