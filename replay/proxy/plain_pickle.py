"""Reading pickle files as data: no class is imported, nothing is called, whatever the file says.

A pickle is a program for a small stack machine. This one knows the same instructions, but where Python would
import a class it keeps the class's name, and where Python would call something it keeps what would have been
called and with what (`Made`).
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ...schemas.errors import BadInput

MOST_BYTES = 1 << 30
"""Largest file read."""
MOST_INSTRUCTIONS = 200_000_000
_FIX = "give a file that SGLang dumped (--dump-requests-folder, --crash-dump-folder)"


@dataclass(frozen=True)
class Named:
    """A class or function that the file names."""

    name: str
    """Module and name: `sglang.srt.managers.io_struct.GenerateReqInput`."""


@dataclass
class UncalledObject:
    """An object that Python would have made by calling something. It was not called."""

    maker: str
    args: Any
    state: Any = None
    """What the object's attributes would have been set from."""
    items: list[Any] = field(default_factory=list)
    """What would have been put into it, for kinds of lists and tables."""

    def fields(self) -> dict[str, Any]:
        """Attributes by name, as far as the state has them."""
        parts = self.state if isinstance(self.state, tuple) else (self.state,)
        return {
            name: value
            for part in parts
            if isinstance(part, dict)
            for name, value in part.items()
            if isinstance(name, str)
        }


class _Mark:
    """The stack's mark."""


_MARK = _Mark()
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: dict[str, Callable[[], Any]] = {
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "EMPTY_TUPLE": tuple,
    "EMPTY_SET": list,
}
_PLAIN = frozenset(
    {"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING"}
    | {"BINSTRING", "SHORT_BINSTRING", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"}
    | {"BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"}
)
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def read_pickle(content: bytes, where: str) -> Any:
    """The value that a pickle describes: plain values, lists, tables with plain keys, `Named` and `Made`.

    Raises:
        BadInput: No pickle, a broken one, or one that uses what only live programs can resolve.
    """
    machine = _Machine()
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(content)):
            if opcode.name == "STOP":
                return machine.pop()
            if count > MOST_INSTRUCTIONS:
                raise BadInput(f"{where}: a pickle of more than {MOST_INSTRUCTIONS} instructions", _FIX)
            machine.step(opcode.name, argument)
    except _Unknown as unknown:
        raise BadInput(f"{where}: the pickle uses {unknown}, which request dumps do not", _FIX) from None
    except (ValueError, IndexError, KeyError, TypeError, UnicodeDecodeError, OverflowError):
        raise BadInput(f"{where}: not a whole pickle", _FIX) from None
    raise BadInput(f"{where}: the pickle has no end", _FIX)


class _Unknown(Exception):
    """An instruction that only a live program can follow."""


class _Machine:
    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def pop(self) -> Any:
        value = self._stack.pop()
        if value is _MARK:
            raise ValueError("a mark in place of a value")
        return value

    def step(self, name: str, argument: Any) -> None:
        if name in _PLAIN:
            self._stack.append(bytes(argument) if isinstance(argument, bytearray) else argument)
        elif name in _CONSTANTS:
            self._stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            self._stack.append(_EMPTY[name]())
        elif name in _TUPLES:
            items = [self.pop() for _ in range(_TUPLES[name])]
            self._stack.append(tuple(reversed(items)))
        elif name in ("PROTO", "FRAME"):
            return
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            self._stack.append(self._memo[int(argument)])
        elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
            self._memo[int(argument)] = self._stack[-1]
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = self._stack[-1]
        else:
            self._build(name, argument)

    def _build(self, name: str, argument: Any) -> None:
        if name == "MARK":
            self._stack.append(_MARK)
        elif name == "POP":
            self._stack.pop()
        elif name == "POP_MARK":
            self._marked()
        elif name == "DUP":
            self._stack.append(self._stack[-1])
        elif name == "APPEND":
            item = self.pop()
            _extend(self._stack[-1], [item])
        elif name in ("APPENDS", "ADDITEMS"):
            items = self._marked()
            _extend(self._stack[-1], items)
        elif name in ("LIST", "FROZENSET"):
            self._stack.append(self._marked())
        elif name == "TUPLE":
            self._stack.append(tuple(self._marked()))
        elif name == "DICT":
            self._stack.append(_table({}, self._marked()))
        elif name == "SETITEM":
            value, key = self.pop(), self.pop()
            _table(self._stack[-1], [key, value])
        elif name == "SETITEMS":
            items = self._marked()
            _table(self._stack[-1], items)
        else:
            self._make(name, argument)

    def _make(self, name: str, argument: Any) -> None:
        if name == "GLOBAL":
            self._stack.append(Named(str(argument).replace(" ", ".", 1)))
        elif name == "STACK_GLOBAL":
            last, first = self.pop(), self.pop()
            self._stack.append(Named(f"{first}.{last}"))
        elif name in ("REDUCE", "NEWOBJ"):
            args, maker = self.pop(), self.pop()
            self._stack.append(_made(maker, args))
        elif name == "NEWOBJ_EX":
            keywords, args, maker = self.pop(), self.pop(), self.pop()
            self._stack.append(_made(maker, (args, keywords)))
        elif name == "INST":
            self._stack.append(UncalledObject(str(argument).replace(" ", ".", 1), tuple(self._marked())))
        elif name == "OBJ":
            maker, *args = self._marked()
            self._stack.append(_made(maker, tuple(args)))
        elif name == "BUILD":
            state = self.pop()
            if not isinstance(self._stack[-1], UncalledObject):
                raise TypeError("state for a plain value")
            self._stack[-1].state = state
        else:
            raise _Unknown(name)

    def _marked(self) -> list[Any]:
        """What was put on the stack since the last mark."""
        for index in range(len(self._stack) - 1, -1, -1):
            if self._stack[index] is _MARK:
                items = self._stack[index + 1 :]
                del self._stack[index:]
                return items
        raise ValueError("no mark")


def _made(maker: Any, args: Any) -> UncalledObject:
    # copyreg's helpers make an object of the class that is their first argument.
    helps = isinstance(maker, Named) and maker.name.partition(".")[0] in ("copyreg", "copy_reg")
    if helps and isinstance(args, tuple) and args:
        maker = args[0]
    return UncalledObject(maker.name if isinstance(maker, Named) else type(maker).__name__, args)


def _extend(holder: Any, items: list[Any]) -> None:
    target = holder.items if isinstance(holder, UncalledObject) else holder
    if not isinstance(target, list):
        raise TypeError("items for something that is no list")
    target += items


def _table(holder: Any, items: list[Any]) -> Any:
    pairs = list(zip(items[::2], items[1::2], strict=True))
    if isinstance(holder, UncalledObject):
        holder.items += pairs
    elif isinstance(holder, dict):
        for key, value in pairs:
            if not isinstance(key, str | int | float | bytes | bool | None):
                raise TypeError("a key that is no plain value")
            holder[key] = value
    else:
        raise TypeError("entries for something that is no table")
    return holder
