"""The authors' pickles read by a machine that builds numbers and containers only."""

from collections.abc import Callable, Mapping
from pathlib import Path
from pickletools import genops
from typing import Any

import numpy as np

from hessfig.errors import UserError, plain

_KINDS = {f"{letter}{size}" for letter in "iuf" for size in (1, 2, 4, 8)} - {"f1"} | {"b1"}


class Refused(Exception):
    """Something in a pickle that is neither a number nor a container of numbers, or too much of it."""


class NumberType:
    """Stands in for a numpy dtype, whose own reader would trust the layout a file claims."""

    def __init__(self, kind: Any, *flags: object) -> None:
        if not isinstance(kind, str) or kind not in _KINDS:
            raise Refused(f"numpy.dtype({plain(kind)!r})" if isinstance(kind, str) else "a numpy.dtype")
        self._kind, self._order = kind, "="

    def set_state(self, state: tuple[Any, ...]) -> None:
        """Take the byte order from a pickled state. Raises TypeError if it is none."""
        if not isinstance(state[1], str) or state[1] not in "<>=|":
            raise TypeError("a byte order that is none")
        self._order = state[1]

    def number(self, content: bytes) -> Any:
        """Return the one number `content` spells. Raises ValueError if it is not one."""
        (number,) = np.frombuffer(content, dtype=self._order + self._kind)
        return number


def _scalar(kind: NumberType, content: bytes) -> Any:
    """Stand in for numpy's rebuilder of scalars."""
    return kind.number(content)


def _latin1(text: str, encoding: str) -> bytes:
    """Stand in for _codecs.encode, by which old protocols spell bytes."""
    if encoding != "latin1":
        raise ValueError("bytes in another encoding than latin1")
    return text.encode("latin1")


def _empty_dict(default: object = None) -> dict[Any, Any]:
    """Stand in for dicts of every kind; `default` is what a defaultdict would make, and is not made."""
    return {}


def _empty_list() -> list[Any]:
    return []


BUILDERS: Mapping[tuple[str, str], Callable[..., Any]] = {
    ("numpy._core.multiarray", "scalar"): _scalar,
    ("numpy", "dtype"): NumberType,
    ("_codecs", "encode"): _latin1,
    ("collections", "OrderedDict"): _empty_dict,
    ("collections", "defaultdict"): _empty_dict,
    ("builtins", "dict"): _empty_dict,
    ("builtins", "list"): _empty_list,
}


MOST_STEPS = 500_000
LARGEST_INTEGER = 2**63
LONGEST_TEXT = 1000
_RENAMED = {"numpy.core.": "numpy._core.", "__builtin__": "builtins"}


def is_container(thing: Any) -> bool:
    """Return whether a thing from a file holds others: it has no value of its own, and is never a key."""
    return isinstance(thing, list | dict | tuple)


class Machine:
    """The stack and the memo of one pickle.

    Time and memory grow no faster than the file: steps are counted, a memo index is no larger than the steps before
    it, integers and texts are short, no container appears twice, and keys are numbers or texts.
    """

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def run(self, content: bytes) -> Any:
        """Return what the pickle builds. Raises Refused for what it may not hold, and nearly anything if damaged."""
        for step, (opcode, argument, _) in enumerate(genops(content)):
            if step == MOST_STEPS:
                raise Refused(f"more than {MOST_STEPS} steps")
            if opcode.name in _LITERALS:
                self.stack.append(_small(argument))
            elif opcode.name in _PUTS:
                self._put(len(self._memo) if argument is None else argument, step)
            elif opcode.name in _ACTIONS:
                _ACTIONS[opcode.name](self, argument)
            elif opcode.name not in _IGNORED:
                raise Refused(f"the pickle opcode {opcode.name}")
        (result,) = self.stack
        return result

    def take(self, count: int) -> list[Any]:
        """Return the `count` things on top, taken off the stack."""
        place = len(self.stack) - count
        taken = self.stack[place:] if place >= 0 else []
        if not taken or any(isinstance(thing, _Mark) for thing in taken):
            raise ValueError("the stack is too short")
        del self.stack[place:]
        return taken

    def take_to_mark(self) -> list[Any]:
        """Return the things above the last mark, taken off the stack with it."""
        for place in range(len(self.stack) - 1, -1, -1):
            if isinstance(self.stack[place], _Mark):
                taken = self.stack[place + 1 :]
                del self.stack[place:]
                return taken
        raise ValueError("no mark")

    def extend(self, items: list[Any]) -> None:
        """Put items at the end of the list on top."""
        if not isinstance(self.stack[-1], list):
            raise TypeError("items for something that is no list")
        self.stack[-1].extend(items)

    def update(self, items: list[Any]) -> None:
        """Put keys and values, in turns, into the dict on top."""
        keys, values = items[::2], items[1::2]
        if not isinstance(self.stack[-1], dict) or any(map(is_container, keys)):
            raise TypeError("items for something that is no dict, or a container as a key")
        self.stack[-1].update(zip(keys, values, strict=True))

    def recall(self, index: int) -> None:
        """Push what was put under `index`."""
        if is_container(self._memo[index]):
            raise Refused("a container that appears twice")
        self.stack.append(self._memo[index])

    def look_up(self, module: str, name: str) -> None:
        """Push a placeholder for a name."""
        for old, new in _RENAMED.items():
            module = module.replace(old, new)
        if (module, name) not in BUILDERS:
            raise Refused(f"{module}.{name}")
        self.stack.append(BUILDERS[module, name])

    def call(self) -> None:
        """Push what a builder makes of its arguments."""
        builder, arguments = self.take(2)
        if not any(builder is known for known in BUILDERS.values()) or not isinstance(arguments, tuple):
            raise TypeError("a call of something that is no builder")
        self.stack.append(builder(*arguments))

    def set_state(self) -> None:
        """Give the thing on top a state: number types have one."""
        (state,) = self.take(1)
        if not isinstance(self.stack[-1], NumberType) or not isinstance(state, tuple):
            raise TypeError("a state for something that has none")
        self.stack[-1].set_state(state)

    def _put(self, index: int, step: int) -> None:
        if not 0 <= index <= step:
            raise Refused(f"a memo index of {plain(index)} at step {step}")
        self._memo[index] = self.stack[-1]


class _Mark:
    """Where on the stack a container's items begin."""


def _small(argument: Any) -> Any:
    if isinstance(argument, int) and abs(argument) >= LARGEST_INTEGER:
        raise Refused(f"an integer of {argument.bit_length()} bits")
    if isinstance(argument, str | bytes) and len(argument) > LONGEST_TEXT:
        raise Refused(f"a text of {len(argument)} characters")
    return argument


def _named_on_stack(machine: Machine, _: Any) -> None:
    module, name = machine.take(2)
    if not isinstance(module, str) or not isinstance(name, str):
        raise TypeError("a name that is no text")
    machine.look_up(module, name)


def _dict_to_mark(machine: Machine, _: Any) -> None:
    items = machine.take_to_mark()
    machine.stack.append({})
    machine.update(items)


_IGNORED = {"PROTO", "FRAME", "STOP"}
_PUTS = {"PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"}
_LITERALS = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "FLOAT", "BINFLOAT"),
    *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINBYTES", "SHORT_BINBYTES"),
}
_ACTIONS: dict[str, Callable[[Machine, Any], None]] = {
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), Machine.recall),
    "NONE": lambda machine, _: machine.stack.append(None),
    "NEWTRUE": lambda machine, _: machine.stack.append(True),
    "NEWFALSE": lambda machine, _: machine.stack.append(False),
    "MARK": lambda machine, _: machine.stack.append(_Mark()),
    "EMPTY_LIST": lambda machine, _: machine.stack.append([]),
    "EMPTY_DICT": lambda machine, _: machine.stack.append({}),
    "EMPTY_TUPLE": lambda machine, _: machine.stack.append(()),
    "TUPLE1": lambda machine, _: machine.stack.append(tuple(machine.take(1))),
    "TUPLE2": lambda machine, _: machine.stack.append(tuple(machine.take(2))),
    "TUPLE3": lambda machine, _: machine.stack.append(tuple(machine.take(3))),
    "TUPLE": lambda machine, _: machine.stack.append(tuple(machine.take_to_mark())),
    "LIST": lambda machine, _: machine.stack.append(machine.take_to_mark()),
    "DICT": _dict_to_mark,
    "APPEND": lambda machine, _: machine.extend(machine.take(1)),
    "APPENDS": lambda machine, _: machine.extend(machine.take_to_mark()),
    "SETITEM": lambda machine, _: machine.update(machine.take(2)),
    "SETITEMS": lambda machine, _: machine.update(machine.take_to_mark()),
    "GLOBAL": lambda machine, words: machine.look_up(*words.split(" ", 1)),
    "STACK_GLOBAL": _named_on_stack,
    "REDUCE": lambda machine, _: machine.call(),
    "BUILD": lambda machine, _: machine.set_state(),
}


LARGEST_FILE = 16 * 2**20  # bytes; the authors' largest has some 60 000
DEEPEST = 8
_ALLOWED = "numbers, dicts, lists, tuples and numpy scalars"


def load(path: Path) -> Any:
    """Return the numbers in a pickle. Raises UserError naming whatever else is in it, before it is built."""
    try:
        content = Machine().run(_read(path))
        _check_depth(content)
    except Refused as error:
        raise UserError(
            f"{path}: refused to load {plain(error)}",
            got=plain(error),
            allowed=_ALLOWED,
            remedy="do not use this file; fetch the published one",
        ) from None
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise UserError(
            f"{path} is damaged or cut short",
            got=plain(f"{type(error).__name__}: {error}"),
            allowed=f"a pickle of {_ALLOWED}",
            remedy="fetch the file again",
        ) from None
    return content


def _read(path: Path) -> bytes:
    with path.open("rb") as handle:
        content = handle.read(LARGEST_FILE + 1)
    if len(content) > LARGEST_FILE:
        raise Refused(f"more than {LARGEST_FILE // 2**20} MiB")
    return content


def _check_depth(content: Any) -> None:
    """Go level by level, for nothing that calls itself may meet what a file nests. Raises Refused."""
    level = [content]
    for _ in range(DEEPEST):
        inner = [thing.values() if isinstance(thing, dict) else thing for thing in level if is_container(thing)]
        level = [thing for things in inner for thing in things if is_container(thing)]
    if level:
        raise Refused(f"containers more than {DEEPEST} deep")
