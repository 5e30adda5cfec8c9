"""The record: the columns of a table, once for the wing that writes it and the wing that reads it."""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """What a value is worth: counted; recorded but never averaged (nonfinite, not_converged); zero by theorem."""

    ok = "ok"
    nonfinite = "nonfinite"
    structural_zero = "structural_zero"
    not_converged = "not_converged"


TABLE, MANIFEST = "table.csv", "manifest.json"
NETWORK = ["variant", "num_layers"]
BLOCK = ["layer", "row_layer", "row", "col"]
CURVE = [*NETWORK, *BLOCK, "part", "quantity", "index"]
NUMBER = [*CURVE, "sigma", "step", "seed"]
MEASURED = ["value", "error", "num_probes", "estimator", "dtype", "status", "seconds"]
COLUMNS = [
    *["sweep", *NETWORK, *BLOCK, "part", "quantity", "index", "value", "error", "sigma", "step", "seed"],
    *["num_probes", "estimator", "dtype", "status", "seconds", "config"],
]
LEFT_OUT = (Status.nonfinite, Status.not_converged)
FROBENIUS = "frobenius"
