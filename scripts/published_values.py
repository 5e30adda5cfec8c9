"""Write the values that the authors published as CSV files for `hessfig compare`, one for each sweep.

    python scripts/published_values.py CHECKOUT published
    hessfig compare outputs/published/sigma published/sigma.csv

CHECKOUT is a checkout of github.com/dalab/transformer-hessian, or its folder `results`.
The files there are pickles, shaped dict[layer][repeat] -> list of norms along sigma.
The unpickler of this script builds numbers, lists, dictionaries and numpy arrays; it
refuses every other global by name. Layers are counted from 1 in the CSV files, repeats
from 0. Exits with 2, and writes nothing, when a file is refused, damaged or shaped
differently.
"""

from __future__ import annotations

import argparse
import io
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from hessfig.errors import UserError, plain
from hessfig.register import publish

LARGEST_FILE = 2**21  # bytes; the largest published file has some 60 000
MOST_ITEMS = 1000  # numbers in an array, repeats of a layer, letters in a name
HEADER = "num_layers,block,part,layer,repeat,sigma,value"
GRIDS = {
    "log": np.logspace(-2, 1, 20),
    "log_short": np.logspace(-1, 0, 20),
    "linear": np.linspace(0.1, 10, 20),
    "linear_short": np.linspace(0.1, 1, 20),
}
_ALLOWED = "numbers, lists, dictionaries and numpy arrays"
_SOFTMAX = "residual_scaling=1.0_linear_attention=False_loss=ce"
_LINEAR = "residual_scaling=0.0_linear_attention=True_loss=mse"
_WEIGHTS = {"W_V": "v", "W_Q": "q"}
_PARTS = {"H_o": "_outer", "H_f": "_func", "H": ""}
Row = tuple[int, str, str, int, int, float, float]


@dataclass(frozen=True)
class PublishedSweep:
    """The files of a sweep: their names up to the quantity, their grid of sigma, and the depths of the networks.

    The authors' `scale` names the grid; the files of the linear MLP, which do not name
    theirs, are on the grid `log`.
    """

    stem: str
    depths: range
    grid: str = "log"

    def files(self) -> Iterator[tuple[int, str, str, str]]:
        """Yield (number of layers, block, part, name) of every file that the authors may have published."""
        for depth in self.depths:
            stem = self.stem.format(depth)
            if stem.startswith("mlp"):
                yield depth, "W", "H", f"{stem}_frob_mlp.pickle"
                continue
            for block, letter in _WEIGHTS.items():
                for part, suffix in _PARTS.items():
                    yield depth, block, part, f"{stem}_frob_{letter}{suffix}.pickle"


_ONE = range(1, 2)
_THREE = range(1, 4)
_FIVE = range(1, 6)
SWEEPS = {
    "sigma": PublishedSweep(f"norm=none_num_layers={{}}_scale=log_{_SOFTMAX}", _ONE),
    "layernorm": PublishedSweep(f"norm=pre_num_layers={{}}_scale=log_{_SOFTMAX}", _ONE),
    "linear_axis_short": PublishedSweep(
        f"norm=none_num_layers={{}}_scale=linear_short_{_SOFTMAX}", _ONE, "linear_short"
    ),
    "linear_axis": PublishedSweep(
        f"norm=none_num_layers={{}}_scale=linear_{_SOFTMAX}", _ONE, "linear"
    ),
    "depth": PublishedSweep(f"norm=none_num_layers={{}}_scale=log_{_SOFTMAX}", _FIVE),
    "softmax": PublishedSweep(
        f"norm=none_num_layers={{}}_scale=log_short_{_LINEAR}", _THREE, "log_short"
    ),
    "mlp": PublishedSweep("mlp_num_layers={}", _FIVE),
}


class RefusedPickle(Exception):
    """Something in a pickle that is neither a number nor a container of numbers."""


_NUMBER_TYPES = {f"{letter}{size}" for letter in "iuf" for size in (2, 4, 8)} | {
    "i1",
    "u1",
    "b1",
}


class NumberType:
    """Stands in for numpy.dtype, whose own reader trusts the layout that a file claims."""

    def __init__(self, kind: Any, *flags: object) -> None:
        if not isinstance(kind, str) or kind not in _NUMBER_TYPES:
            raise RefusedPickle(
                f"numpy.dtype({kind!r})" if isinstance(kind, str) else "a numpy.dtype"
            )
        self._kind = kind
        self._order = "="

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if state[1] not in ("<", ">", "=", "|"):
            raise TypeError("no byte order")
        self._order = state[1]

    def read(self, content: bytes) -> np.ndarray:
        """Return the numbers that some bytes hold. Raises ValueError for a part of a number."""
        return np.frombuffer(content, dtype=self._order + self._kind)


class NumberArray(list[Any]):
    """Stands in for numpy.ndarray: a list of its numbers. Arrays of several axes are refused."""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, _, content = state
        self[:] = _frombuffer(content, kind, shape)


def _frombuffer(
    content: bytes, kind: NumberType, shape: tuple[int, ...], *order: object
) -> NumberArray:
    """Return an array as protocol 5 stores it."""
    numbers = kind.read(content)
    if shape != numbers.shape or len(numbers) > MOST_ITEMS:
        raise RefusedPickle(
            f"a numpy.ndarray with another shape than one axis of at most {MOST_ITEMS} numbers"
        )
    return NumberArray(numbers)


def _scalar(kind: NumberType, content: bytes) -> Any:
    (number,) = kind.read(content)
    return number


def _latin1(text: str, encoding: str) -> bytes:
    """Stand in for _codecs.encode, by which old protocols spell bytes."""
    if encoding != "latin1" or len(text) > 8 * MOST_ITEMS:
        raise RefusedPickle(
            "bytes in another encoding than latin1, or too many of them"
        )
    return text.encode("latin1")


def _empty_dict(default: object = None) -> dict[Any, Any]:
    """Stand in for dictionaries of every kind; the default of a defaultdict is not used."""
    return {}


def _empty_list() -> list[Any]:
    return []


_GLOBALS: dict[str, Any] = {
    "numpy._core.multiarray.scalar": _scalar,
    "numpy._core.multiarray._reconstruct": lambda kind, shape, letter: NumberArray(),
    "numpy._core.numeric._frombuffer": _frombuffer,
    "numpy.ndarray": None,  # an argument of _reconstruct
    "numpy.dtype": NumberType,
    "_codecs.encode": _latin1,
    **dict.fromkeys(
        ("collections.OrderedDict", "collections.defaultdict", "builtins.dict"),
        _empty_dict,
    ),
    "builtins.list": _empty_list,
}
_RENAMED = {"numpy.core.": "numpy._core.", "__builtin__": "builtins"}
# Opcodes that hash what a file nests, or make instances in other ways than a call of a
# global.
_REFUSED = (
    *(
        pickle.EMPTY_SET,
        pickle.ADDITEMS,
        pickle.FROZENSET,
        pickle.PERSID,
        pickle.BINPERSID,
    ),
    *(
        pickle.INST,
        pickle.OBJ,
        pickle.NEWOBJ,
        pickle.NEWOBJ_EX,
        pickle.EXT1,
        pickle.EXT2,
        pickle.EXT4,
    ),
)


class NumbersUnpickler(pickle._Unpickler):
    """An unpickler of numbers, lists, dictionaries and numpy arrays.

    Python's own unpickler in Python is used: its memo is a dictionary, so a file cannot
    claim memory by a large index. Keys of dictionaries are small numbers, because the
    hash of nested tuples can take forever.
    """

    stack: list[Any]
    read: Callable[[int], bytes]
    pop_mark: Callable[[], list[Any]]

    def find_class(self, module: str, name: str) -> Any:
        """Return the stand-in for a global. Raises RefusedPickle for every global that needs none."""
        path = f"{module}.{name}"
        for old, new in _RENAMED.items():
            path = path.replace(old, new)
        if path not in _GLOBALS:
            raise RefusedPickle(path)
        return _GLOBALS[path]

    def refuse(self) -> None:
        """Refuse an opcode."""
        raise RefusedPickle(
            "an instance, a set or a name that only another program knows"
        )

    def make_bytearray(self) -> None:
        """Make an array of bytes, of which no more are reserved than the file has."""
        size = int.from_bytes(self.read(8), "little")
        self.stack.append(bytearray(self.read(min(size, LARGEST_FILE))))

    def make_dict(self) -> None:
        """Make a dictionary of the keys and values above the mark."""
        items = self.pop_mark()
        self.stack.append({})
        self._update(items)

    def set_item(self) -> None:
        """Put a key and a value into the dictionary on top of the stack."""
        value = self.stack.pop()
        key = self.stack.pop()
        self._update([key, value])

    def set_items(self) -> None:
        """Put the keys and values above the mark into the dictionary below it."""
        self._update(self.pop_mark())

    def _update(self, items: list[Any]) -> None:
        if not isinstance(self.stack[-1], dict) or not all(
            _is_number_of_an_item(key) for key in items[::2]
        ):
            raise RefusedPickle(
                "a dictionary whose keys are not numbers of layers or repeats"
            )
        self.stack[-1].update(zip(items[::2], items[1::2], strict=True))

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **pickle._Unpickler.dispatch,
        **dict.fromkeys((code[0] for code in _REFUSED), refuse),
        pickle.BYTEARRAY8[0]: make_bytearray,
        pickle.DICT[0]: make_dict,
        pickle.SETITEM[0]: set_item,
        pickle.SETITEMS[0]: set_items,
    }


def _is_number_of_an_item(key: Any) -> bool:
    return type(key) is int and 0 <= key < MOST_ITEMS


def load(path: Path) -> Any:
    """Return the numbers in a pickle. Raises UserError naming whatever else is in it, before it is built."""
    with path.open("rb") as handle:
        content = handle.read(LARGEST_FILE + 1)
    try:
        if len(content) > LARGEST_FILE:
            raise RefusedPickle(f"more than {LARGEST_FILE} bytes")
        return NumbersUnpickler(io.BytesIO(content)).load()
    except RefusedPickle as error:
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


def read_norms(
    path: Path, num_layers: int, sigma: np.ndarray
) -> Iterator[tuple[int, int, float, float]]:
    """Yield (layer, repeat, sigma, norm) of a published file. Raises UserError for another shape or no norm."""
    try:
        layers = _numbered(load(path), "layers")
        if len(layers) != num_layers:
            raise _OtherShape(f"{len(layers)} layers, not {num_layers}")
        for layer, key in enumerate(sorted(layers), start=1):
            for repeat, norms in sorted(_numbered(layers[key], "repeats").items()):
                if not isinstance(norms, list | tuple) or len(norms) != len(sigma):
                    raise _OtherShape(
                        f"{_kind(norms)} in place of a list of {len(sigma)} norms"
                    )
                yield from (
                    (layer, repeat, s, _norm(value))
                    for s, value in zip(sigma, norms, strict=True)
                )
    except _OtherShape as error:
        raise UserError(
            f"{path} is not shaped as a result file",
            got=plain(error),
            allowed=f"dict[layer][repeat] -> list of {len(sigma)} norms, {num_layers} layers",
            remedy="fetch the file again",
        ) from None


class _OtherShape(Exception):
    """What a file holds in place of dict[layer][repeat] -> list of norms."""


def _numbered(items: Any, what: str) -> Mapping[int, Any]:
    if not isinstance(items, dict) or not items:
        raise _OtherShape(
            f"no {what}"
            if items == {}
            else f"{_kind(items)} in place of a dict of {what}"
        )
    return items


def _norm(value: Any) -> float:
    """Return a norm as float; zeros, infinities and NaN pass, because `hessfig compare` counts them."""
    is_number = isinstance(
        value, int | float | np.integer | np.floating
    ) and not isinstance(value, bool)
    if not is_number or value < 0 or (isinstance(value, int) and value >= 2**63):
        raise _OtherShape(f"{_kind(value)} that is not a norm")
    return float(value)


def _kind(item: Any) -> str:
    """Return the type of an object from a file, which may hold anything, and its length."""
    word = type(item).__name__
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}" + (
        f" of {len(item)}" if isinstance(item, list | tuple | dict | str) else ""
    )


def rows_of(sweep: PublishedSweep, folder: Path) -> list[Row]:
    """Return the published values of a sweep, with a row for each norm; none where no file of it is there."""
    return [
        (depth, block, part, layer, repeat, sigma, norm)
        for depth, block, part, name in sweep.files()
        if (folder / name).is_file()
        for layer, repeat, sigma, norm in read_norms(
            folder / name, depth, GRIDS[sweep.grid]
        )
    ]


def write_values(checkout: Path, into: Path) -> list[Path]:
    """Write `into`/SWEEP.csv for every sweep whose files a checkout has; return the paths.

    Raises UserError for a folder without any of them, for a file that is refused,
    damaged or shaped differently, and for files in the way that this script did not
    write.
    """
    folder = checkout / "results" if (checkout / "results").is_dir() else checkout
    values = {name: rows_of(sweep, folder) for name, sweep in SWEEPS.items()}
    texts = {
        into / f"{name}.csv": _as_csv(rows) for name, rows in values.items() if rows
    }
    if not texts:
        raise UserError(
            "no published file is here",
            got=folder,
            allowed=f"for example {next(SWEEPS['sigma'].files())[-1]}",
            remedy="give a checkout of github.com/dalab/transformer-hessian",
        )
    return publish(texts, "published values")


def _as_csv(rows: list[Row]) -> str:
    lines = (f"{depth},{block},{part},{layer},{repeat},{sigma:.12g},{norm!r}"
             for depth, block, part, layer, repeat, sigma, norm in rows)  # fmt: skip
    return "\n".join([HEADER, *lines, ""])


def main(words: list[str] | None = None) -> int:
    """Write the values that the command line names; print the paths."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path)
    parser.add_argument("folder", type=Path)
    given = parser.parse_args(words)
    try:
        for path in write_values(given.checkout, given.folder):
            print(path)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
