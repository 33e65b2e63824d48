"""Forwards at which iterations of inference begin, in sequences of models that are written by hand."""

from charact.measure.script.spans.recorder import Kind, Slice
from charact.measure.script.spans.segmenter import InferenceStarts


def starts(text: str) -> list[int]:
    """Return the indices of the forwards that begin iterations; a word is a model, in capitals one of its methods."""
    recognizer, begun = InferenceStarts(), []
    for index, word in enumerate(text.split()):
        forward = Slice(Kind.FORWARD, index, index, ord(word.lower()), grad=False, method=word.isupper())
        expected = recognizer.begins(forward.owner, is_method=forward.method)
        found = [one.start_ns for one in recognizer.take(forward)]
        assert (index in found) >= expected
        begun += found
    return begun


def test_the_first_forward_begins_each_iteration() -> None:
    assert starts("a a a") == [0, 1, 2]
    assert starts("e d d d e d d e") == [0, 4, 7]
    assert starts("E e e e E e e e") == [0, 4]


def test_steps_may_be_many_and_their_number_may_vary() -> None:
    assert starts("e" + 200 * " d" + " e" + 3 * " d" + " e" + 1000 * " d" + " e") == [0, 201, 205, 1206]


def test_a_method_takes_the_place_of_a_first_call() -> None:
    assert starts("a A A A") == [0, 1, 2, 3]
    assert starts("a A a A a A") == [0, 1, 3, 5]


def test_what_only_the_first_calls_show_begins_no_iterations() -> None:
    """A method is recorded as one from its third call on; before, the modules that it calls are forwards."""
    before = "s e" + 8 * " m" + " s e" + 8 * " m"
    begun = starts(before + 20 * (" M" + 8 * " m"))
    assert begun == [0, 10, *range(20, 200, 9)]


def test_a_forward_that_never_recurs_is_preparation() -> None:
    assert starts("p" + 300 * " a") == list(range(301))


def test_forwards_that_never_recur_begin_nothing_else() -> None:
    recognizer = InferenceStarts()
    found = [recognizer.take(Slice(Kind.FORWARD, owner, owner, owner)) for owner in range(1000)]
    assert [len(one) for one in found] == [1, *[0] * 999]
