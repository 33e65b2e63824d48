"""Restricted reading of pickles: plain values only, and no calls except those that a subclass implements.

A pickle is a program that Python's reader executes. `Machine` interprets it opcode by opcode. Subclasses define names,
calls and states; all other opcodes are rejected. Values are limited by a budget in bytes, and opcodes are counted.

Source: the opcodes' description in Python's `pickletools`.
"""

import io
import pickletools
import warnings
from typing import Any

MOST_OPCODES = 1_000_000
_CONSTANTS = {"NONE": None, "NEWFALSE": False, "NEWTRUE": True, "EMPTY_TUPLE": ()}


class Refused(Exception):
    """A pickle uses something unknown or forbidden; the message continues a sentence that begins "its pickle"."""


class DamagedPickle(Exception):
    """A pickle that is malformed."""


class Machine:
    """Interpreter of a pickle: its stack, the stacks below marks, and the memo of repeated values."""

    def __init__(self, budget_bytes: int) -> None:
        self._stack: list[Any] = []
        self._below: list[list[Any]] = []
        self._memo: dict[int, Any] = {}
        self._num_opcodes = 0
        self._left_bytes = budget_bytes

    def read(self, stream: io.BytesIO) -> Any:
        """Return the value of the pickle at the stream's position, and move the stream behind it.

        Raises:
            Refused: the pickle uses anything unknown or forbidden.
            DamagedPickle: it is malformed.
        """
        self._stack, self._below, self._memo = [], [], {}
        try:
            # Damaged text may have escapes for which Python warns.
            with warnings.catch_warnings(action="ignore"):
                for opcode, argument, _ in pickletools.genops(stream):
                    self._num_opcodes += 1
                    if self._num_opcodes > MOST_OPCODES:
                        raise Refused(f"has more than {MOST_OPCODES:,} opcodes")
                    self._step(opcode.name, argument)
            return self._stack.pop()
        except (ValueError, TypeError, LookupError, OverflowError) as error:
            raise DamagedPickle(type(error).__name__) from error

    def spend(self, num_bytes: int) -> None:
        """Subtract the size of a value that a call creates from the budget.

        Raises:
            Refused: the budget is exhausted.
        """
        self._left_bytes -= num_bytes
        if self._left_bytes < 0:
            raise Refused("makes values that are much larger than itself")

    def find(self, name: str) -> Any:
        """Return the value of a name, given as module and name with a space between.

        Raises:
            Refused: the name is not allowed.
        """
        raise Refused(f"names {name[:60]!r}")

    def call(self, function: Any, arguments: Any) -> Any:
        """Return the value of a call.

        Raises:
            Refused: the call is not allowed.
        """
        raise Refused("calls what is no function")

    def build(self, made: Any, state: Any) -> None:
        """Restore the state of an object, for the opcode BUILD.

        Raises:
            Refused: the object has no state.
        """
        raise Refused("gives a state to what can have none")

    def persistent(self, identifier: Any) -> Any:
        """Return the value of an object that the pickle references and that is stored elsewhere.

        Raises:
            Refused: there is none.
        """
        raise Refused("names an object that is stored elsewhere")

    def key(self, key: Any) -> Any:
        """Return the key of a dictionary.

        Raises:
            TypeError: the key is not allowed; a deeply nested one would end the process when it is hashed.
        """
        if type(key) not in (str, int, float, bool, bytes, type(None)):
            raise TypeError
        return key

    def _step(self, name: str, argument: Any) -> None:
        match name:
            case "PROTO" | "FRAME" | "STOP":
                pass
            case ("BININT" | "BININT1" | "BININT2" | "LONG1" | "BINFLOAT" | "BINSTRING" | "SHORT_BINSTRING"
                  | "BINUNICODE" | "SHORT_BINUNICODE" | "BINBYTES" | "SHORT_BINBYTES" | "BINBYTES8" | "BYTEARRAY8"):
                self._stack.append(argument)
            case "NONE" | "NEWFALSE" | "NEWTRUE" | "EMPTY_TUPLE":
                self._stack.append(_CONSTANTS[name])
            case "EMPTY_DICT" | "EMPTY_LIST":
                self._stack.append({} if name == "EMPTY_DICT" else [])
            case "MARK":
                self._below.append(self._stack)
                self._stack = []
            case "TUPLE":
                values = self._pop_to_mark()
                self._stack.append(tuple(values))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                self._stack.append(tuple(self._pop(int(name[-1]))))
            case "APPEND" | "APPENDS":
                values = self._pop(1) if name == "APPEND" else self._pop_to_mark()
                self._top(list).extend(values)
            case "SETITEM" | "SETITEMS":
                pairs = self._pop(2) if name == "SETITEM" else self._pop_to_mark()
                target = self._top(dict)
                for key, value in zip(pairs[::2], pairs[1::2], strict=True):
                    target[self.key(key)] = value
            case "BINPUT" | "LONG_BINPUT" | "MEMOIZE":
                self._memo[len(self._memo) if name == "MEMOIZE" else argument] = self._stack[-1]
            case "BINGET" | "LONG_BINGET":
                self._stack.append(self._memo[argument])
            case "GLOBAL" | "STACK_GLOBAL":
                self._stack.append(self.find(argument if name == "GLOBAL" else " ".join(self._pop(2))))
            case "REDUCE":
                self._stack.append(self.call(*self._pop(2)))
            case "BUILD":
                (state,) = self._pop(1)
                self.build(self._stack[-1], state)
            case "BINPERSID":
                self._stack.append(self.persistent(*self._pop(1)))
            case _:
                raise Refused(f"has the opcode {name}")

    def _top(self, kind: type) -> Any:
        if not isinstance(self._stack[-1], kind):
            raise TypeError
        return self._stack[-1]

    def _pop(self, num_values: int) -> list[Any]:
        if len(self._stack) < num_values:
            raise IndexError
        values = self._stack[-num_values:]
        del self._stack[-num_values:]
        return values

    def _pop_to_mark(self) -> list[Any]:
        values, self._stack = self._stack, self._below.pop()
        return values
