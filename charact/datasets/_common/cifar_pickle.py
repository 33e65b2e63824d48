"""Restricted reading of CIFAR-10's pickles: dictionaries of texts, numbers, lists and arrays of bytes.

Supports pickles of Python 2 (protocol 2) and of Python 3 (protocols 2 to 5) with any NumPy.

Source: `__reduce__` of NumPy's arrays and types.
"""

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from charact.core.errors import UserError
from charact.core.pickles import DamagedPickle, Machine, Refused


@dataclass
class PickledArray:
    """An array as stored in a pickle, not validated."""

    shape: Any = None
    dtype: Any = None
    """Code of its type, such as `u1`."""
    content: bytes = b""
    """Elements in row-major order."""


def read_pickle(content: bytes, path: Path) -> dict[str, Any]:
    """Return the dictionary of texts, numbers, lists and `PickledArray`s in a pickle; `path` is for messages.

    Keys are texts. Texts of Python 2 are bytes of unknown encoding, decoded as Latin-1.
    """
    # Texts and arrays are copied when they are created, by protocol 2 of Python 3 twice.
    machine = _Machine(budget_bytes=4 * len(content) + 2**16)
    stream = io.BytesIO(content)
    try:
        result = machine.read(stream)
    except Refused as error:
        raise UserError(f"{path} is rejected: its pickle {error}: fetch it again") from error
    except DamagedPickle as error:
        raise UserError(f"{path} is a damaged pickle ({error}): fetch it again") from error
    if stream.tell() != len(content) or not isinstance(result, dict):
        raise UserError(f"{path} is not a pickle of one dictionary: fetch it again")
    return result


@dataclass(frozen=True)
class _Global:
    name: str
    """Module and name, with a space between."""


@dataclass(frozen=True)
class _Type:
    code: Any


class _Machine(Machine):
    def find(self, name: str) -> _Global:
        if name not in _NAMES:
            raise Refused(f"names {name[:60]!r}")
        return _Global(name)

    def key(self, key: Any) -> str:
        if isinstance(key, bytes):
            self.spend(len(key))
            return str(key, "latin-1")
        if not isinstance(key, str):
            raise TypeError
        return key

    def call(self, function: Any, arguments: Any) -> Any:
        name = function.name if isinstance(function, _Global) else None
        match name:
            case "_codecs encode":  # how protocol 2 of Python 3 writes bytes
                text, encoding = arguments
                if encoding != "latin1":
                    raise Refused("holds bytes of another form")
                return self._bytes(text)
            case "numpy dtype":
                code, _, _ = arguments
                return _Type(code)
            case "numpy.core.multiarray _reconstruct" | "numpy._core.multiarray _reconstruct":
                return PickledArray()
            case "numpy.core.numeric _frombuffer" | "numpy._core.numeric _frombuffer":  # how protocol 5 writes arrays
                content, dtype, shape, order = arguments
                return PickledArray(shape, _code(dtype, order != "C"), self._bytes(content))
        raise Refused("calls what is no function")

    def build(self, made: Any, state: Any) -> None:
        """Set the content of an array; the state of a type has no meaning for single bytes."""
        if isinstance(made, PickledArray):
            _, made.shape, dtype, columns_first, content = state
            made.dtype, made.content = _code(dtype, columns_first), self._bytes(content)
        elif not isinstance(made, _Type):
            raise Refused("sets the state of an object that is not an array")

    def _bytes(self, value: Any) -> bytes:
        """Return bytes; Python 2 wrote them as text."""
        self.spend(len(value))
        return value.encode("latin-1") if isinstance(value, str) else bytes(memoryview(value))


def _code(dtype: Any, columns_first: bool) -> Any:
    if not isinstance(dtype, _Type) or columns_first:
        raise Refused("holds an array of another form")
    return dtype.code


_NAMES = {"_codecs encode", "numpy dtype", "numpy ndarray",
          # The second names are those of NumPy 2.
          *(f"numpy.{core}.multiarray _reconstruct" for core in ("core", "_core")),
          *(f"numpy.{core}.numeric _frombuffer" for core in ("core", "_core"))}
