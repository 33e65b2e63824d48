"""Pickles read without unpickling: a machine that knows plain values, and calls nothing that is not its own.

A pickle is a program, and Python's reader runs whatever it asks for. Here it is walked opcode by opcode. What names,
calls and states mean is up to a subclass; every opcode beyond those is refused. A short pickle cannot make large
values: nothing is copied but what a subclass copies within the budget, and opcodes are counted.

Source: the opcodes' description in Python's `pickletools`.
"""

import io
import pickletools
import warnings
from typing import Any

MOST_OPCODES = 1_000_000
_CONSTANTS = {"NONE": None, "NEWFALSE": False, "NEWTRUE": True, "EMPTY_TUPLE": ()}


class Refused(Exception):
    """A pickle does something unknown or not allowed; the message continues a sentence that begins "its pickle"."""


class DamagedPickle(Exception):
    """A pickle that does not hold together."""


class Machine:
    """The stack, the stacks below marks, and the memo, in which a pickle keeps what it repeats."""

    def __init__(self, budget_bytes: int) -> None:
        self._stack: list[Any] = []
        self._below: list[list[Any]] = []
        self._memo: dict[int, Any] = {}
        self._num_opcodes = 0
        self._left_bytes = budget_bytes

    def read(self, stream: io.BytesIO) -> Any:
        """Return the value of the pickle that begins where the stream is; the stream is then behind it.

        Raises:
            Refused: the pickle asks for anything that is not understood or allowed.
            DamagedPickle: it does not hold together.
        """
        self._stack, self._below, self._memo = [], [], {}
        try:
            # Damaged text may hold escapes that Python warns of.
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
        """Take from the budget what a value that is made by a call needs.

        Raises:
            Refused: the budget is spent.
        """
        self._left_bytes -= num_bytes
        if self._left_bytes < 0:
            raise Refused("makes values that are much larger than itself")

    def find(self, name: str) -> Any:
        """Return what stands for a name: its module and its own, a space between.

        Raises:
            Refused: the name is not allowed.
        """
        raise Refused(f"names {name[:60]!r}")

    def call(self, function: Any, arguments: Any) -> Any:
        """Return what stands for the result of a call.

        Raises:
            Refused: the call is not allowed.
        """
        raise Refused("calls what is no function")

    def build(self, made: Any, state: Any) -> None:
        """Restore the state of an object, as the opcode BUILD asks for.

        Raises:
            Refused: it can have none.
        """
        raise Refused("gives a state to what can have none")

    def persistent(self, identifier: Any) -> Any:
        """Return what stands for an object that the pickle names, and that is stored elsewhere.

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
