"""A machine that follows the opcodes of a pickle, as far as numbers and containers need them, within bounds."""

from __future__ import annotations

from collections.abc import Callable
from pickletools import genops
from typing import Any

from hessfig.analysis.comparison.references.builders import BUILDERS, NumberType, Refused
from hessfig.errors import plain

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
        """Push what stands in for a name."""
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
