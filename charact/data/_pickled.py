"""Pickles read without unpickling: a machine that knows plain values and arrays of bytes, and calls nothing.

A pickle is a program, and Python's reader runs whatever it asks for. Here it is walked opcode by opcode, and every
opcode or name beyond those that a dictionary of texts, numbers, lists and arrays needs is refused. What is understood
is written by Python 2 (protocol 2) and by Python 3 (protocols 2 to 5) with any NumPy.

Source: the opcodes' description in Python's `pickletools`; `__reduce__` of NumPy's arrays and types.
"""

import pickletools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from charact.errors import UserError


@dataclass
class PickledArray:
    """An array as it was written. Nothing is checked of it, not even whether its parts fit together."""

    shape: Any = None
    dtype: Any = None
    """Code of its type, such as `u1`."""
    content: bytes = b""
    """Elements, row after row."""


def read_pickle(content: bytes, path: Path) -> dict[str, Any]:
    """Dictionary of texts, numbers, lists and `PickledArray`s that a pickle describes; `path` is for messages.

    Keys are texts. Texts of Python 2 are bytes of unknown encoding, here Latin-1.

    Raises:
        UserError: the pickle is damaged, asks for anything else, or is of no dictionary.
    """
    machine = _Machine()
    end = 0
    try:
        # Damaged text may hold escapes that Python warns of.
        with warnings.catch_warnings(action="ignore"):
            for opcode, argument, position in pickletools.genops(content):
                machine.step(opcode.name, argument)
                end = (position or 0) + 1
        result = machine.stack.pop()
    except _Refused as error:
        raise UserError(f"{path} is refused, since its pickle {error}: fetch it again") from error
    except (ValueError, TypeError, LookupError) as error:
        raise UserError(f"{path} is a damaged pickle ({type(error).__name__}): fetch it again") from error
    if end != len(content) or not isinstance(result, dict):
        raise UserError(f"{path} is no pickle of one dictionary: fetch it again")
    return result


class _Refused(Exception):
    """What a pickle does that is not understood, or not allowed."""


@dataclass(frozen=True)
class _Global:
    name: str
    """Module and name, a space between."""


@dataclass(frozen=True)
class _Type:
    code: Any


class _Machine:
    """The stack, the stacks below marks, and the memo, in which a pickle keeps what it repeats."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self._below: list[list[Any]] = []
        self._memo: dict[int, Any] = {}

    def step(self, name: str, argument: Any) -> None:
        """Do what an opcode says."""
        match name:
            case "PROTO" | "FRAME" | "STOP":
                pass
            case ("BININT" | "BININT1" | "BININT2" | "LONG1" | "BINSTRING" | "SHORT_BINSTRING" | "BINUNICODE"
                  | "SHORT_BINUNICODE" | "BINBYTES" | "SHORT_BINBYTES" | "BINBYTES8" | "BYTEARRAY8"):
                self.stack.append(argument)
            case "NONE" | "NEWFALSE" | "NEWTRUE":
                self.stack.append({"NONE": None, "NEWFALSE": False, "NEWTRUE": True}[name])
            case "EMPTY_DICT" | "EMPTY_LIST":
                self.stack.append({} if name == "EMPTY_DICT" else [])
            case "MARK":
                self._below.append(self.stack)
                self.stack = []
            case "TUPLE":
                values = self._pop_to_mark()
                self.stack.append(tuple(values))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                self.stack.append(tuple(self._pop(int(name[-1]))))
            case "APPEND" | "APPENDS":
                self._append(self._pop(1) if name == "APPEND" else self._pop_to_mark())
            case "SETITEM" | "SETITEMS":
                self._set(self._pop(2) if name == "SETITEM" else self._pop_to_mark())
            case "BINPUT" | "LONG_BINPUT" | "MEMOIZE":
                self._memo[len(self._memo) if name == "MEMOIZE" else argument] = self.stack[-1]
            case "BINGET" | "LONG_BINGET":
                self.stack.append(self._memo[argument])
            case "GLOBAL" | "STACK_GLOBAL":
                self._name(argument if name == "GLOBAL" else " ".join(self._pop(2)))
            case "REDUCE":
                self.stack.append(_call(*self._pop(2)))
            case "BUILD":
                (state,) = self._pop(1)
                _build(self.stack[-1], state)
            case _:
                raise _Refused(f"has the opcode {name}")

    def _pop(self, num_values: int) -> list[Any]:
        if len(self.stack) < num_values:
            raise IndexError
        values = self.stack[-num_values:]
        del self.stack[-num_values:]
        return values

    def _pop_to_mark(self) -> list[Any]:
        values, self.stack = self.stack, self._below.pop()
        return values

    def _append(self, values: list[Any]) -> None:
        if not isinstance(self.stack[-1], list):
            raise TypeError
        self.stack[-1].extend(values)

    def _set(self, pairs: list[Any]) -> None:
        if not isinstance(self.stack[-1], dict):
            raise TypeError
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            self.stack[-1][str(key, "latin-1") if isinstance(key, bytes) else _text(key)] = value

    def _name(self, name: str) -> None:
        if name not in _NAMES:
            raise _Refused(f"names {name[:60]!r}")
        self.stack.append(_Global(name))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _bytes(value: Any) -> bytes:
    """Bytes, which Python 2 wrote as text."""
    return value.encode("latin-1") if isinstance(value, str) else bytes(memoryview(value))


def _call(function: Any, arguments: Any) -> Any:
    if not isinstance(function, _Global) or function.name not in _CALLS:
        raise _Refused("calls what is no function")
    return _CALLS[function.name](*arguments)


def _build(made: Any, state: Any) -> None:
    """Give an array what it holds; of a type, the byte order and the like mean nothing to single bytes."""
    if isinstance(made, PickledArray):
        _, made.shape, dtype, columns_first, content = state
        made.dtype, made.content = _code(dtype, columns_first), _bytes(content)
    elif not isinstance(made, _Type):
        raise _Refused("gives a state to what is no array")


def _code(dtype: Any, columns_first: bool) -> Any:
    if not isinstance(dtype, _Type) or columns_first:
        raise _Refused("holds an array of another form")
    return dtype.code


def _encode(text: str, encoding: str) -> bytes:
    """How protocol 2 of Python 3 writes bytes."""
    if encoding != "latin1":
        raise _Refused("holds bytes of another form")
    return _bytes(text)


def _from_buffer(content: Any, dtype: Any, shape: Any, order: Any) -> PickledArray:
    """How protocol 5 writes arrays."""
    return PickledArray(shape, _code(dtype, order != "C"), _bytes(content))


_CALLS: dict[str, Callable[..., Any]] = {
    "_codecs encode": _encode,
    "numpy dtype": lambda code, align, copy: _Type(code),
    # The second names are those of NumPy 2.
    **{f"numpy.{core}.multiarray _reconstruct": lambda kind, shape, code: PickledArray() for core in ("core", "_core")},
    **{f"numpy.{core}.numeric _frombuffer": _from_buffer for core in ("core", "_core")},
}
_NAMES = {*_CALLS, "numpy ndarray"}
