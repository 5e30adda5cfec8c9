"""What hessfig predict does: the exponents of a configuration's blocks by counting powers; nothing is measured."""

import csv
import sys

from hessfig.cli.flags import check_format
from hessfig.config.compose.job import Job
from hessfig.config.enums import Printed
from hessfig.sessions import COLUMNS_PREDICTED as COLUMNS
from hessfig.sessions import predicted_rows


def run(job: Job) -> int:
    """Print the predictions of every variant, as a table or as CSV."""
    check_format(job.config.format, Printed.table, Printed.csv)
    found = list(predicted_rows(job))
    if job.config.format == Printed.csv:
        writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)
        return 0
    from hessfig.analysis.presented import terminal_table
    from hessfig.cli.terminal import show

    cells = [[str(row[name]) for name in COLUMNS if name != "zero"] for row in found]
    title = f"Predicted: ||block||_F ~ {job.config.powers_of}^exponent"
    names = [name for name in COLUMNS if name != "zero"]
    show(terminal_table(names, cells, title=title, wrapped=("variant", "reason")))
    return 0
