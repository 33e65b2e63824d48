"""Suites and compositions as somebody hostile may make them, through what `charact bricks` does."""

import atexit
import base64
import contextlib
import functools
import hashlib
import io
import json
import os
import random
import shutil
import signal
import tempfile
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from support.brick_runs import brick_run, composition
from support.fuzzing import damaged_bytes, damaged_json, fuzz
from support.hand_made_bricks import (
    a_brick,
    a_gradient_sum,
    a_layer,
    a_suite,
    an_input,
    an_update,
    pointwise,
    product,
    value,
)

from charact.bricks.allowlist import OPERATORS, STRINGS
from charact.bricks.analysis.construction import brick_case
from charact.bricks.commands._construct import construct_into
from charact.bricks.commands._generate import audit_suite, show_suite
from charact.bricks.commands._models import Named, recreated_source
from charact.bricks.suite.brick import brick_from_json, brick_to_json, canonical
from charact.bricks.suite.composition import load_compositions
from charact.bricks.suite.suite import index_bytes, load_suite
from charact.bricks.timing import worker as worker_process
from charact.bricks.timing.suite_run import run_cases
from charact.commands._shared.publish import publish_and_report
from charact.core.bounded_reading import limited_to
from charact.core.errors import UserError
from charact.record.reader import load_run
from charact.record.writer import RunWriter

MOST_BYTES = 2**26
ODD_NUMBERS = [0, 1, -1, 2, 3, 7, -7, 64, 1000, 2**15, 2**31 - 1, 2**31, -(2**31), 2**40, 2**63 - 1, -(2**63), 0.5,
               1e30]


@functools.cache
def base() -> Path:
    """Valid suites, and a run of one of them with its compositions."""
    place = Path(tempfile.mkdtemp(prefix="charact-fuzz-base-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    picture = an_input(1, 2, 6, 6, sample={"quantiles": [-1.0, 0.5], "alike": {"channel": 0.5, "neighbours": 0.1}})
    words = an_input(2, 3, dtype="int64", sample={"low": 0, "high": 3})
    whole = base64.b64encode(zlib.compress(bytes(8) + b"\1" + bytes(7))).decode()
    bricks = [
        product(), product(2, 4, mode="train"), pointwise("relu_.default", 2, 3), an_update(3, 2), a_gradient_sum(2, 2),
        a_brick([picture, an_input(3, 2, 3, 3, kind="weight")],
                [a_layer("conv2d.default", [value(0), value(1)], 2), a_layer("relu.default", [value(2)], 3)], [3]),
        a_brick([an_input(5, 4, kind="weight"), words],
                [a_layer("embedding.default", [value(0), value(1)], 2)], [2]),
        a_brick([an_input(4, 3), an_input(2, dtype="int64", sample={"whole": whole})],
                [a_layer("index_select.default", [value(0), 0, value(1)], 2)], [2]),
    ]
    a_suite(place / "suite", *bricks)
    a_suite(place / "other", pointwise("tanh.default"))
    a_suite(place / "small", pointwise("tanh.default"), product(1, 2))
    run = brick_run(place / "runs", {"a": {"forward": 1e-4}, "b": {"forward": 1e-4}})
    run.path.rename(place / "run")
    return place


def random_argument(rng: random.Random, kind: Any, num_values: int) -> Any:
    """An argument of the type that a schema has, mostly."""
    name = kind.kind()
    if rng.random() < 0.03:
        return rng.choice([None, "mean", [], {}, {"value": 0}, {"dtype": "qint8"}, 1e400, {"device": False}, "\ud800"])
    if name == "OptionalType":
        return None if rng.random() < 0.4 else random_argument(rng, kind.getElementType(), num_values)
    if name == "ListType":
        return [random_argument(rng, kind.getElementType(), num_values) for _ in range(rng.randrange(5))]
    if name == "TensorType":
        return value(rng.randrange(max(1, num_values)))
    if name in ("IntType", "SymIntType", "NumberType", "FloatType"):
        return rng.choice(ODD_NUMBERS) if rng.random() < 0.3 else rng.randrange(-1, 5)
    if name == "StringType":
        return rng.choice(sorted(STRINGS))
    others: dict[str, list[Any]] = {
        "BoolType": [True, False], "ScalarTypeType": [{"dtype": "float32"}, {"dtype": "int64"}, {"dtype": "bool"}],
        "MemoryFormatType": [{"memory_format": "channels_last"}], "LayoutType": [{"layout": "strided"}],
        "DeviceObjType": [{"device": True}],
    }
    return rng.choice(others.get(name, [None]))


def random_layer(rng: random.Random, num_values: int) -> dict[str, Any]:
    """A call of any operator that bricks may call."""
    packet = rng.choice(sorted(OPERATORS)) + rng.choice(["", "", "", "_"])
    operator = getattr(torch.ops.aten, packet, None)
    if operator is None:
        return random_layer(rng, num_values)
    overload = rng.choice(operator.overloads())
    schema = getattr(operator, overload)._schema
    args, kwargs = [], {}
    for each in schema.arguments:
        made = random_argument(rng, each.real_type, num_values)
        if each.has_default_value() and rng.random() < 0.3:
            continue
        if each.kwarg_only or len(kwargs):
            kwargs[each.name] = made
        else:
            args.append(made)
    several = len(schema.returns) != 1
    num_results = max(1, len(schema.returns)) if rng.random() < 0.95 else rng.randrange(4)
    return {"operator": f"aten.{packet}.{overload}", "args": args, "kwargs": kwargs, "several": several,
            "outputs": [num_values + number for number in range(num_results)]}


def random_input(rng: random.Random) -> dict[str, Any]:
    """A small input of any type, with values in and out of the ranges of indices."""
    shape = [rng.choice([0, 1, 2, 3, 4, 8]) for _ in range(rng.choice([0, 1, 1, 2, 2, 3, 4, 4, 5]))]
    usual = list(torch.empty(shape).stride())
    stride = usual if rng.random() < 0.8 else [rng.choice([0, 1, 2, 5]) for _ in shape]
    dtype = rng.choice(["float32", "float32", "float32", "int64", "int64", "int32", "bool", "float16", "bfloat16",
                        "float64", "uint8", "complex64", "float8_e4m3fn"])
    low = rng.choice([0, 0, -1, 1, 5, -(2**40), 2**40])
    samples: list[dict[str, Any]] = [{"quantiles": [-1.0, 0.0, 2.5]}, {"constant": rng.choice([0.0, 1.0, -3, 1e30])},
                                     {"weight": "normal"}, {"constant": {"float": "nan"}}]
    sample = {"low": low, "high": low + rng.randrange(4)} if "int" in dtype else rng.choice(samples)
    return {"kind": rng.choice(["activation", "activation", "weight", "buffer", "constant"]), "dtype": dtype,
            "shape": shape, "stride": stride, "requires_grad": rng.random() < 0.3, "sample": sample, "repeated": None}


def random_brick(rng: random.Random) -> dict[str, Any]:
    """A brick of any operators on any inputs."""
    inputs = [random_input(rng) for _ in range(rng.randrange(1, 5))]
    layers: list[dict[str, Any]] = []
    num_values = len(inputs)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        layers.append(random_layer(rng, num_values))
        num_values += len(layers[-1]["outputs"])
    return {"kind": "sequence", "mode": rng.choice(["infer", "infer", "train"]), "precision": "fp32", "inputs": inputs,
            "layers": layers, "outputs": [num_values - 1] if num_values > len(inputs) else [],
            "written": [number for number in range(len(inputs)) if rng.random() < 0.7],
            "context_bytes": 2**40 if rng.random() < 0.02 else rng.choice([0, 1024])}


def write_brick(suite: Path, entry: Any) -> None:
    """Add a brick to a suite whose index then fits."""
    try:
        identifier = brick_from_json(entry).id
    except (ValueError, RecursionError):
        identifier = "0123456789abcdef"
    data = json.dumps(entry).encode()
    (suite / "bricks" / f"{identifier}.json").write_bytes(data)
    index = json.loads((suite / "suite.json").read_text())
    some = next(iter(index["bricks"].values()))
    told = entry if isinstance(entry, dict) else {}
    index["bricks"][identifier] = {**some, "mode": told.get("mode") if told.get("mode") in ("infer", "train") else
                                   "infer", "sha256": hashlib.sha256(data).hexdigest()}
    (suite / "suite.json").write_bytes(index_bytes(index["g"], index["method"], index["torch"], index["bricks"]))


def make_bricks(rng: random.Random, place: Path) -> Path:
    """A suite with one brick of another's making."""
    shutil.copytree(base() / "other", place / "suite")
    suite = load_suite(base() / "suite")
    known = brick_to_json(suite.brick(rng.choice(sorted(suite.bricks))))
    kind = rng.choice(["valid", "random", "random", "random", "damaged", "damaged", "layer", "bytes"])
    if kind == "random":
        write_brick(place / "suite", random_brick(rng))
    elif kind == "layer":
        known["layers"] = [random_layer(rng, len(known["inputs"]))]
        known["outputs"] = []
        write_brick(place / "suite", known)
    elif kind == "damaged":
        with contextlib.suppress(RecursionError):
            write_brick(place / "suite", damaged_json(rng, known, non_finite=False))
    else:
        write_brick(place / "suite", known)
        if kind == "bytes":
            path = rng.choice(sorted((place / "suite").rglob("*.json")))
            path.write_bytes(damaged_bytes(rng, path.read_bytes()))
    return place / "suite"


def make_index(rng: random.Random, place: Path) -> Path:
    """A suite whose index was changed, and mostly has a hash that fits."""
    shutil.copytree(base() / "small", place / "suite")
    path = place / "suite" / "suite.json"
    if rng.random() < 0.2:
        path.write_bytes(damaged_bytes(rng, path.read_bytes()))
        return place / "suite"
    index = damaged_json(rng, json.loads(path.read_text()))
    if isinstance(index, dict) and rng.random() < 0.9:
        index.pop("digest", None)
        with contextlib.suppress(ValueError, TypeError, UnicodeEncodeError):
            index["digest"] = hashlib.sha256(canonical(index).encode()).hexdigest()
    path.write_text(json.dumps(index), encoding="utf-8")
    return place / "suite"


def make_composition(rng: random.Random, place: Path) -> Path:
    """A composition with odd values, and with models that are none of charact's."""
    facts = rng.choice([
        {"asked_as": "mlp", "seed": 0}, {"asked_as": "os:system", "seed": 0, "own": {
            "model_args": f"command='touch {place}/it-ran'", "input_spec": "S", "loss": None, "optimizer": "SGD",
            "learning_rate": 0.1}},
        {},
    ])
    made = json.loads(json.dumps(asdict(composition(rng.choice([["a", "b"], ["a", "c"], []]), facts=facts))))
    text = json.dumps(made if rng.random() < 0.05 else damaged_json(rng, made))
    data = text.encode()
    (place / "one.json").write_bytes(damaged_bytes(rng, data) if rng.random() < 0.15 else data)
    return place


@contextlib.contextmanager
def quiet() -> Iterator[Path]:
    """A place to write to; what is printed is dropped, and nothing takes more memory than it may."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="charact-fuzz-out-") as out, limited_to(MOST_BYTES), \
            contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()), \
            warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield Path(out)


def attempts(*works: Any) -> None:
    """Do one thing after another, each of which may be refused in one line."""
    refused: list[UserError] = []
    for work in works:
        try:
            work()
        except UserError as error:
            refused.append(error)
    if refused:
        raise max(refused, key=lambda error: len(str(error).splitlines()))


def read_suite(path: Path) -> None:
    """Show, audit and run a suite."""
    with quiet() as out:
        attempts(
            lambda: show_suite(path, base() / "suite.private"), lambda: audit_suite(path),
            lambda: run_suite(path, out))


def run_suite(path: Path, out: Path) -> None:
    """Run a suite as `charact bricks run` does, in processes that are forked here."""
    suite = load_suite(path)
    cases = sorted({(entry["mode"], entry["precision"]) for entry in suite.bricks.values()})
    if not all(mode in ("infer", "train") and precision == "fp32" for mode, precision in cases):
        return
    writer = RunWriter(out / "runs", "fuzz", {"machine": {}, "software": {}, "options": {
        "suite": str(path), "suite_digest": suite.digest, "compositions": str(suite.private), "threads": 1,
        "precision_target_frac": 0.0, "max_rounds": 1, "max_seconds": 1.0, "cases": cases, "device": "cpu",
        "batch_sizes": None, "method": "contextual", "precisions": None, "max_bytes": MOST_BYTES, "share_frac": 1.0}})
    events, their_events = os.pipe()
    their_answers, answers = os.pipe()
    os.write(answers, b"." * 4096)
    os.set_blocking(events, False)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGINT, signal.SIGTERM})
    try:
        with patch("charact.bricks.timing.suite_run.release_memory"):  # it walks all that tests import: 0.8 s
            status = worker_process.supervise(run_cases, writer.directory, writer.lock, their_events, their_answers,
                                              os.getppid())
        told = b""
        with contextlib.suppress(BlockingIOError):  # a suite without bricks has no events
            told = os.read(events, 65_536)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for end in (events, their_events, their_answers, answers):
            os.close(end)
    assert status == 0, f"the process that runs bricks ended with {status}: {told!r}"
    if b'["refused"' in told:
        raise UserError("refused")
    writer.reload()
    writer.close("complete")
    run = load_run(writer.directory)
    wanted = {each for each, entry in suite.bricks.items() if (entry["mode"], entry["precision"]) in cases}
    assert set(run.bricks["brick"]) == wanted
    good = set(load_suite(base() / "other").bricks) & wanted
    assert set(run.bricks[run.bricks["brick"].isin(good)]["status"]) <= {"ok"}


def read_composition(path: Path) -> None:
    """Construct what a composition tells, and look for the model that it is of."""
    with quiet() as out:
        run = load_run(base() / "run")
        found = load_compositions(path)

        def construct() -> None:
            cases = {each.case: brick_case(run, each) for each in found}
            writer = RunWriter(out, "constructed", {name: run.manifest[name] for name in ("machine", "software")})
            construct_into(writer, run, cases, found, {}, None, True)
            publish_and_report(writer, False)

        attempts(construct, *(functools.partial(recreated_source, each, Named()) for each in found))


KINDS = {"brick": (make_bricks, read_suite), "index": (make_index, read_suite),
         "composition": (make_composition, read_composition)}


@pytest.mark.slow_variants
@pytest.mark.parametrize("count", [5, pytest.param(3000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_no_input_breaks_a_promise(kind: str, count: int) -> None:
    base()  # once, for all processes
    make, read = KINDS[kind]
    assert fuzz(f"suites-{kind}", make, read, count) == []
