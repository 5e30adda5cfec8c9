"""The record: columns of tables and content of manifests, shared by the modules that write and those that read."""

import hashlib
import json
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any

from hessfig.errors import UserError, run_command


class Status(StrEnum):
    """Status of a value: counted in means; recorded but never averaged (nonfinite, not_converged); zero by theorem."""

    ok = "ok"
    nonfinite = "nonfinite"
    structural_zero = "structural_zero"
    not_converged = "not_converged"


TABLE, MANIFEST = "table.csv", "manifest.json"
NETWORK = ["variant", "num_layers"]
# The groups of settings that a manifest repeats for its variants.
OF_ARCHITECTURE = ("model", "task", "state")
BLOCK = ["layer", "row_layer", "row", "col"]
CURVE = [*NETWORK, *BLOCK, "part", "quantity", "index"]
NUMBER = [*CURVE, "sigma", "step", "seed"]
MEASURED = ["value", "error", "num_probes", "estimator", "dtype", "status", "seconds"]
COLUMNS = [
    *[
        "sweep",
        *NETWORK,
        *BLOCK,
        "part",
        "quantity",
        "index",
        "value",
        "error",
        "sigma",
        "step",
        "seed",
    ],
    *["num_probes", "estimator", "dtype", "status", "seconds", "config"],
]
LEFT_OUT = (Status.nonfinite, Status.not_converged)
FROBENIUS = "frobenius"
CHECKSUM = "checksum"
LARGEST_MANIFEST = 32 * 2**20
_SINCE_CHECKSUMS = "byte_order"  # a key that no manifest without a checksum has
# the SHA-256 of the table next to a manifest; and, while a training is followed, that
# of the table before
SEAL, SEAL_BEFORE = "table_sha256", "table_sha256_before"
# exceptions of reading a foreign file
UNREADABLE = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)
# the parts of a manifest that are read, by dotted key
_PARTS: dict[str, type] = {
    **dict.fromkeys(
        (
            "config",
            *(
                f"config.{name}"
                for name in ("model", "task", "grid", "estimator", "state")
            ),
        ),
        dict,
    ),
    **{
        "config.sweep": dict,
        "config.sweep.axis": str,
        "config.first_seed": int,
        "variants": list,
        "arrays": list,
    },
    **{SEAL: str, SEAL_BEFORE: str},
}


def checksum(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the content of a JSON file without its `checksum`."""
    plain = json.loads(
        json.dumps({key: value for key, value in content.items() if key != CHECKSUM})
    )
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def digest(settings: object) -> str:
    """Return the short hash of `settings` for use in keys; it does not depend on the order of the names."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[
        :24
    ]


def read_checked(path: Path) -> dict[str, Any]:
    """Return a JSON object whose `checksum`, if any, is correct (foreign files and those of 0.2.0 have none).

    Raises OSError, ValueError, TypeError or RecursionError for anything else.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("a folder, a pipe or a device, where a file should be")
    if status.st_size > LARGEST_MANIFEST:
        raise ValueError(f"a file of more than {LARGEST_MANIFEST} bytes")
    content = json.loads(path.read_text("utf-8"))
    if not isinstance(content, dict):
        raise TypeError(f"{type(content).__name__} where an object should be")
    if CHECKSUM not in content and _SINCE_CHECKSUMS in content:
        raise ValueError("its checksum is missing: it was altered")
    if content.get(CHECKSUM, "") not in ("", checksum(content)):
        raise ValueError("its checksum is not that of its content: it was altered")
    return content


def sealed_text(content: Mapping[str, Any], indent: int | None = 1) -> str:
    """Return the text of a JSON file for this content, with its checksum."""
    return json.dumps({**content, CHECKSUM: checksum(content)}, indent=indent) + "\n"


def read_sealed(path: Path) -> dict[str, Any]:
    """Return a JSON object with a correct checksum; an empty object if there is no such file."""
    with suppress(*UNREADABLE):
        content = read_checked(path)
        return content if CHECKSUM in content else {}
    return {}


def entry_of(path: Path, key: str) -> Any:
    """Return one entry of a JSON file, whatever else it holds; None if it cannot be read."""
    with suppress(*UNREADABLE):
        return json.loads(path.read_text("utf-8"))[key]
    return None


def manifest_in(
    folder: Path,
    *required: str,
    check: Callable[[dict[str, Any]], object],
    allowed: str,
) -> dict[str, Any] | None:
    """Return the manifest in `folder`, or None if there is none. All of its parts have their types.

    `required` lists the groups of settings that must exist. `check` raises for anything
    else that the reader does not accept, and `allowed` describes what it accepts.
    Raises UserError for an invalid manifest.
    """
    path = folder / MANIFEST
    if not path.exists():
        return None
    try:
        manifest = read_checked(path)
        _check_parts(manifest, ["config", *(f"config.{name}" for name in required)])
        check(manifest)
    except UNREADABLE as error:
        raise UserError(
            f"{path} is not a manifest of this version",
            got=f"{type(error).__name__}: {error}"[:300],
            allowed=allowed,
            remedy=f"{run_command(folder)} (finished cells are reused)",
        ) from error
    return manifest


def _check_parts(manifest: dict[str, Any], required: list[str]) -> None:
    for key, kind in _PARTS.items():
        value: Any = manifest
        for name in key.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        missing = value is None and key not in required
        if not missing and (not isinstance(value, kind) or isinstance(value, bool)):
            raise TypeError(f"{key} is {type(value).__name__}, not {kind.__name__}")
    if (manifest["config"].get("first_seed") or 0) < 0:
        raise ValueError("config.first_seed is negative")
