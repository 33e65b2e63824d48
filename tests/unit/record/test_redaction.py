import gzip
import json
import os
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.records import MACHINE, case_entry

from charact.record import presentable
from charact.record.in_progress import begin_run, write_manifest
from charact.record.manifest import typed_entry
from charact.record.reader import load_run
from charact.record.redaction import (
    REDACTED,
    SPEED_VARIABLES,
    anonymous,
    expanded_path,
    is_secret_name,
    names_user,
    redact_chunks,
    redacted,
    redacted_arguments,
    redacted_text,
)
from charact.record.writer import RunWriter
from charact.views.html.report import report

TOKENS = [
    "hf_aBcDeFgHiJkLmNoPqRsTuVwXyZ01234567", "ghp_aBcDeFgHiJkLmNoPqRsTuVwXyZ0123456789",
    "github_pat_11ABCDEFG0aBcDeFgHiJkL_mNoPqRsTuVw", "glpat-aBcDeFgHiJkLmNoPqRsT", "sk-proj-aBcDeFgHiJkLmNoPqRsTuVwX",
    "sk-ant-api03-aBcDeFgHiJkLmNoPqRsT", "AKIAIOSFODNN7EXAMPLE", "xoxb-123456789012-abcdefghijkl",
    "0123456789abcdef0123456789abcdef01234567", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.dozjgNryP4J3jVmN",
    "AIzaSyA1234567890abcdefghijklmnopqrstuvw", "npm_aBcDeFgHiJkLmNoPqRsTuVwXyZ0123456789",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nIBAAKC\n-----END RSA PRIVATE KEY-----",
]  # fmt: skip


@pytest.fixture(autouse=True)
def alice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", "/home/alice")
    monkeypatch.setenv("USER", "alice")
    monkeypatch.setattr(sys, "argv", ["charact"])
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", [
    "--api-key", "api_key", "apiKey", "APIKEY", "HF_TOKEN", "hfToken", "--auth", "--oauth2", "authToken",
    "TORCH_HUB_AUTH", "NVIDIA_PASSWD", "MKL_CREDS", "--password", "dbPassword", "passphrase", "client-secret",
    "AWS_SECRET_ACCESS_KEY", "api_key_value", "access_key_values", "keys", "key",
    "credentials", "session-cookie", "X-Amz-Signature", "sig", "trainer.logger.token", "--pass", "mysql_pwd",
    "webhook_url",
])
def test_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize("name", [
    "--tokenizer", "tokenizer_path", "--author", "--keypoints", "--passes", "--data", "--design", "lr", "--batch-size",
    "KeyboardInterrupt", "compass", "--signal", "", "past_key_values", "key_padding_mask", "OMP_NUM_THREADS",
    *sorted(SPEED_VARIABLES),
])
def test_names_of_no_secrets(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize(("given", "expected"), [
    ("--api-key X", "--api-key <redacted>"), ("--api-key=X", "--api-key=<redacted>"),
    ("api_key=X", "api_key=<redacted>"),
    ("+logger.token=X", "+logger.token=<redacted>"), ("FOO_TOKEN=x", "FOO_TOKEN=<redacted>"),
    ("--api-keys a b --lr 1", "--api-keys <redacted> <redacted> --lr 1"), ("--token -Xyz", "--token <redacted>"),
    ("--use-auth --epochs 3", "--use-auth --epochs 3"), ("--max-tokens 512", "--max-tokens 512"),
    ("--num-key-value-heads=8", "--num-key-value-heads=8"), ("--password 12345678", "--password <redacted>"),
    ("--data https://u:pw@host/a?token=abc&part=1", "--data https://<redacted>@host/a?token=<redacted>&part=1"),
    ("--data https://u:p@ss@host/a", "--data https://<redacted>@host/a"), ("ssh://me@host", "ssh://<redacted>@host"),
    ("--x {logger:{token:abc}}", "--x {logger:{token:<redacted>}}"), ("/home/alice/data", "~/data"),
    ("/home/alice2/data", "/home/alice2/data"), ("/scratch/alice/data", "/scratch/<user>/data"),
    ("--tokenizer bert --lr 0.1", "--tokenizer bert --lr 0.1"), ("hf_Longformer", "hf_Longformer"),
])
def test_arguments(given: str, expected: str) -> None:
    found = redacted_arguments(given.split())
    assert " ".join(found) == expected
    assert redacted_arguments(found) == found


@pytest.mark.parametrize("argument", ["password=a b c", "Authorization: Bearer a.b.c", '{"password": "a b c"}',
                                      "curl -H 'X-Api-Key: a b c'", "{'token': 'a b c'}", "--token=a b c"])
def test_no_part_of_an_argument_with_spaces_is_left(argument: str) -> None:
    (found,) = redacted_arguments([argument])
    assert REDACTED in found
    assert "b c" not in found.replace("Bearer", "")


@pytest.mark.parametrize("token", TOKENS)
def test_shapes_of_secrets(token: str) -> None:
    assert redacted_text(f"got {token} there") == f"got {REDACTED} there"
    assert redacted_text(token) == REDACTED


@pytest.mark.parametrize("text", [
    "KeyError: 'layer1.weight'", "missing key: conv1.weight", "aten::_scaled_dot_product_attention",
    "void at::native::kernel<Key=3>(int)", "2.3 tokens/s", "a == b: no", "resnet50-224-b8-train-fp32-cpu", "sklearn",
    "/usr/lib/python3/site.py", "CUDA out of memory. Tried to allocate 2.00 GiB", "f" * 64, "hf_transformers",
])
def test_ordinary_texts_stay(text: str) -> None:
    assert redacted_text(text) == text


def test_a_secret_that_was_given_is_found_wherever_it_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICE_PASSWORD", "correcthorse")
    monkeypatch.setattr(sys, "argv", ["x", "--api-key", "abc123def", "https://u:hunter2@host"])
    found = redacted_text("denied: abc123def, correcthorse and hunter2")
    assert found == f"denied: {REDACTED}, {REDACTED} and {REDACTED}"


@given(st.text(max_size=80))
def test_a_second_pass_changes_nothing(text: str) -> None:
    found = redacted_text(text)
    assert redacted_text(found) == found


@given(st.lists(st.sampled_from(["--api-key", "--api-key=", "a", "token=", "=", "https://u:p@h", "-k", "--", "", " "]),
                max_size=6))
def test_arguments_keep_their_number(arguments: list[str]) -> None:
    assert len(redacted_arguments(arguments)) == len(arguments)


def test_paths_of_a_record_can_be_followed_again() -> None:
    for path in ("/home/alice/suite", "/scratch/alice/suite", "/home/alice/alice/x", "/data/suite", "suite"):
        assert str(expanded_path(redacted_text(path))) == path
    assert names_user(Path("/home/alice"))
    assert names_user(Path("/scratch/alice"))
    assert not names_user(Path("/scratch/traces"))


def test_a_path_below_the_working_directory_becomes_relative(tmp_path: Path) -> None:
    assert redacted_arguments([f"{tmp_path}/a/b.py", f"--config={tmp_path}/c"]) == ["a/b.py", "--config=c"]


def test_every_manifest_is_written_without_secrets(tmp_path: Path) -> None:
    secret = TOKENS[0]
    begun = begin_run(tmp_path, f"name {secret}", {
        "command_line": ["charact", "--token", "abc"],
        "options": {"data_dir": "/home/alice/data", "url": f"x?{secret}"},
        "software": {"environment": {"TORCH_HUB_AUTH": "abc", "OMP_NUM_THREADS": "2"}, "git": {"commit": "0" * 40}}})
    os.close(begun.lock)
    assert secret not in begun.directory.name
    first = json.loads((begun.directory / "run.json").read_text())
    assert first == first | begun.manifest  # and its checksums
    assert first["command_line"] == ["charact", "--token", REDACTED]
    assert first["options"] == {"data_dir": "~/data", "url": f"x?{REDACTED}"}
    assert first["software"] == {"environment": {"OMP_NUM_THREADS": "2"}, "git": {"commit": "0" * 40}}
    reason = f"RuntimeError: {secret} is denied in /home/alice/x.py"
    write_manifest(begun.directory, first | {"cases": [{"case": "a", "status": "error", "reason": reason}]})
    (case,) = json.loads((begun.directory / "run.json").read_text())["cases"]
    assert case["reason"] == f"RuntimeError: {REDACTED} is denied in ~/x.py"


def test_arguments_are_kept_only_where_the_manifest_says_so() -> None:
    manifest = {"command_line": ["--token", "abc"], "options": {"arguments": ["--token", "abc"]}}
    assert redacted(manifest | {"arguments_kept": True}) == manifest | {"arguments_kept": True}
    assert redacted(manifest)["options"]["arguments"] == ["--token", REDACTED]


def test_texts_of_tables_hold_no_secrets(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, "x", {"machine": {}, "software": {}, "options": {}})
    reasons = [f"token={TOKENS[0]}", None, "too few", "no /home/alice/fc"]
    writer.add_case(typed_entry({"case": "a", "status": "ok"}), {"metrics": [
        {"stage": "training", "number": 1 + number, "metric": "loss", "reason": reason}
        for number, reason in enumerate(reasons)]})  # fmt: skip
    run = load_run(writer.close("complete"))
    assert run.metrics["reason"].fillna("none").tolist() == [f"token={REDACTED}", "none", "too few", "no ~/fc"]


def test_traces_hold_no_secrets_and_no_host() -> None:
    names = [f"at {TOKENS[0]}", "/home/alice/x.py(3)", 'a "quoted" token=abc', "aten::add"]
    whole = {"host_name": "node7", "traceEvents": [{"name": name} for name in names]}
    trace = json.dumps(whole, indent=1).encode().splitlines(keepends=True)
    for chunks in (trace, [b"".join(trace)]):
        told = json.loads(b"".join(redact_chunks(chunks)))
        assert told == {"host_name": "<host>", "traceEvents": [
            {"name": f"at {REDACTED}"}, {"name": "~/x.py(3)"}, {"name": f'a "quoted" token={REDACTED}'},
            {"name": "aten::add"}]}  # fmt: skip


def test_an_anonymous_report_names_no_owner(tmp_path: Path) -> None:
    gpu = {"index": 0, "name": "NVIDIA H100", "uuid": "GPU-12345678-1234-1234-1234-123456789012", "memory_bytes": 1}
    writer = RunWriter(tmp_path, "x", {
        "hostname": "node7.acme.example", "started": "2026-01-01T00:00:00+0000",
        "machine": MACHINE | {"hostname": "node7.acme.example", "gpus": [gpu]},
        "software": {"git": {"commit": "abcdef" * 6 + "abcd", "dirty": True},
                     "environment": {"CUDA_VISIBLE_DEVICES": "GPU-12345678-1234-1234-1234-123456789012"}},
        "options": {"script": "/scratch/acme/bob/train.py", "arguments": ["--data", "planted"], "skip": None,
                    "out": "/home/bob/runs", "mail": "bob@acme.example", "where": "on node7"},
        "command_line": ["charact", "run", "planted"]})
    writer.add_case(typed_entry(case_entry("resnet", 32, "infer", status="error", reason="no /home/bob/x on node7")),
                    {"layers": [{"layer": "node7"}]})
    run = load_run(writer.close("complete"))
    page = report([presentable.redacted(run)])
    assert "node7.acme.example" in page
    assert "planted" not in page
    sent = report([presentable.redacted(run, anonymous=True)])
    for word in ("node7", "acme", "bob", "12345678-", "abcdef", "planted", "/scratch"):
        assert word not in sent, word
    assert "train.py" in sent
    assert "NVIDIA H100" in sent
    assert "are left out" in sent
    assert anonymous(run.manifest)["machine"]["fingerprint"] == run.manifest["machine"]["fingerprint"]
    assert list(presentable.redacted(run, anonymous=True).layers["layer"]) == ["<host>"]


def test_a_large_trace_is_gone_through_in_pieces() -> None:
    line = b'{"ph": "X", "cat": "cpu_op", "name": "aten::add", "ts": 1.5},\n'
    chunks = [line * 1000] * 20
    assert b"".join(redact_chunks(chunks)) == b"".join(chunks)
    assert gzip.decompress(gzip.compress(b"".join(redact_chunks(chunks)))) == line * 20_000


@pytest.mark.parametrize("text", [
    "x://" + "a" * 20_000, "a" * 20_000 + "=", "a." * 10_000, "a-" * 10_000, "a:" * 10_000, "a=" * 10_000,
    "a@" * 10_000, "key=" * 5_000, "--a " * 5_000, '=\\"' * 5_000, "/a" * 10_000, "Bearer " * 5_000,
    "cookie=a" * 3_000, "eyJ" + "a." * 10_000, "-----BEGIN " + "A " * 10_000,
])  # fmt: skip
def test_a_long_text_is_read_in_linear_time(text: str) -> None:
    began = time.process_time()
    redacted_text(text)
    redacted_arguments([text])
    assert time.process_time() - began < 2  # quadratic: 9 s


@pytest.mark.parametrize("text", [
    # A bare hexadecimal number is looked for in texts only.
    *(token for token in TOKENS if not token.startswith("0123")),
    "X-Api-Key: abcdef123", '"pwd": "abc123"', "glrt-abcdefghij0123456789", "sig=abc123", "jwt=abc123",
    "--db-password abc123", "Authorization: Bearer abcdef", "https://u:pw@host", '"key": "abc123"', "dsn=abc123",
])  # fmt: skip
def test_what_is_a_secret_in_a_text_is_one_in_a_trace(text: str) -> None:
    assert redacted_text(text) != text
    chunk = json.dumps({"name": text}).encode()
    assert b"".join(redact_chunks([chunk])) != chunk


def test_lines_of_files_are_no_secrets() -> None:
    assert redacted_text("class_token_views.py:36 in extract") == "class_token_views.py:36 in extract"
    assert redacted_text("token_views.py: abc123def") != "token_views.py: abc123def"
