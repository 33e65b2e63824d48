"""Texts from others: nothing in them is obeyed, nothing is lost that can be shown, and what is fine stays as it is."""

import os
import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charact.core.text import did_you_mean, label, labels, printable, spreadsheet_text, valid_text, valid_values

ANY_TEXT = st.text(st.characters(), max_size=30)  # surrogates, too


@given(ANY_TEXT)
def test_no_control_character_is_left(text: str) -> None:
    for shown, allowed in ((printable(text), "\n\t"), (label(text), "")):
        shown.encode()
        assert [one for one in shown if unicodedata.category(one) == "Cc" and one not in allowed] == []
        assert re.search("[\u2028\u2029\u202a-\u202e\u2066-\u2069\u200e\u200f\u061c]", shown) is None
    assert len(label(text).splitlines()) <= 1


@given(st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp", "Cf"])))
def test_what_can_be_printed_stays(text: str) -> None:
    assert printable(text) == label(text) == valid_text(text) == text


def test_each_control_has_a_visible_stand_in() -> None:
    assert label("a\x1b[31m\x07\0b") == "a␛[31m␇␀b"
    assert label("a\nb\tc\r\x7f") == "a␊b␉c␍␡"
    assert printable("a\nb\tc\r") == "a\nb\tc␍"
    assert label("\x9b1m\u202eb\u2028\u2066") == "\ufffd1m\ufffdb\ufffd\ufffd"
    assert label("ein Ärger, 日本語, 🙂 👩‍👩‍👧") == "ein Ärger, 日本語, 🙂 👩‍👩‍👧"


@given(ANY_TEXT)
def test_valid_text_is_utf_8(text: str) -> None:
    assert valid_text(text).encode().decode() == valid_text(text)
    assert valid_text(valid_text(text)) == valid_text(text)


@given(st.binary(max_size=20))
def test_bytes_of_a_name_are_decoded_as_far_as_they_can_be(name: bytes) -> None:
    assert valid_text(os.fsdecode(name)) == name.decode("utf-8", "backslashreplace")


def test_a_name_of_another_locale_is_readable() -> None:
    assert valid_text("café".encode().decode("ascii", "surrogateescape")) == "café"
    assert valid_text(os.fsdecode(b"caf\xe9")) == r"caf\xe9"
    assert valid_text("a\ud800") == r"a\ud800"


def test_texts_within_values_are_changed_and_nothing_else() -> None:
    value = {"a\udce9": ["b\udce9", 1, 2.5, None, True, {"c": ("d\udce9",)}]}
    assert valid_values(value) == {r"a\xe9": [r"b\xe9", 1, 2.5, None, True, {"c": [r"d\xe9"]}]}
    fine = {"a": ["b"]}
    assert valid_values(fine) is fine
    assert valid_values({1j: "a\udce9"}) == {1j: r"a\xe9"}
    assert labels({"a\n": ["\x1b"]}) == {"a␊": ["␛"]}


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "'=1", "''-x", "＝1"])
def test_a_formula_gets_an_apostrophe(text: str) -> None:
    assert spreadsheet_text(text) == f"'{text}"


@pytest.mark.parametrize("text", ["", "a=1", "conv1", "'quoted'", "[[8,3]]", "1-2"])
def test_other_texts_get_none(text: str) -> None:
    assert spreadsheet_text(text) == text


@given(st.text("=+-@'\t\na1"))
def test_an_apostrophe_can_be_taken_away_again(text: str) -> None:
    assert re.sub(r"^'(?='*[=+\-@\t\r\n＝＋－＠])", "", spreadsheet_text(text)) == text


@pytest.mark.parametrize(("name", "expected"), [
    ("RESNET18", "did you mean ResNet18, resnet50, resnet34?"), ("lstm", "did you mean LSTM?"), ("zzz", "see --help")])
def test_similar_names_are_suggested(name: str, expected: str) -> None:
    names = ["ResNet18", "resnet34", "resnet50", "LSTM", "lstm"]
    assert did_you_mean(name, iter(names), "see --help") == expected
