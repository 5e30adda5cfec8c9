"""Figure of how well each matrix predicts the effect of leaving samples out of a training."""

from collections.abc import Iterator

from matplotlib.ticker import MaxNLocator
from pandas import DataFrame

from hessfig.analysis.intervals import fisher_interval, student_interval
from hessfig.figures.parts import APART, FigureSpec, Page, Sheet, Source, counted, where
from hessfig.studies.removal.row_names import INFLUENCES
from hessfig.terms import Approximation

_ROW, _LEFT = 0.15, 0.9  # inches: height of a matrix's line, and room for the names
_MATRICES = {
    "hessian": "Hessian",
    "gauss_newton": "Gauss-Newton",
    "identity": "identity",
}


def influence(spec: FigureSpec, source: Source) -> Iterator[Page]:
    """Draw how well each matrix predicts what leaving samples out of a training does, next to how far it is from H.

    How to read it: dots are means over seeds at the last step, bars 95 % intervals.
    Left: the linear datamodelling score, the rank correlation of predicted with true
    losses over trainings without some samples (intervals by Fisher's z). Right: the
    relative error of the matrix in the Frobenius norm. If nearness to the Hessian made
    a predictor good, scores would fall from line to line as errors grow. Requires: the
    sweep's table.csv with the quantity `influence`.
    """
    table = counted(source.table)
    last = table[table["step"] == table["step"].max()]
    numbers = {"score": fisher_interval, "error": student_interval}
    rows = []
    for name in INFLUENCES:
        for number, interval in numbers.items():
            values = where(last, quantity=f"{name}_influence_{number}")["value"]
            rows.append({"matrix": name, "number": number, **vars(interval(values))})
    every = DataFrame(rows)
    note = f"Score: rank correlation with retraining, step {last['step'].max():g}. Mean over {last['seed'].nunique()}"
    note += " seeds with 95% intervals."
    style = APART.replace(
        left=_LEFT,
        across=0.2,
        height=_ROW * len(INFLUENCES) + 0.1,
        top=0.1,
        narrowest=0.9,
    )
    sheet = Sheet.grid(spec.paper, [list(numbers)], note, style)
    for _, column, ax in sheet:
        shown = where(every, number=list(numbers)[column])
        ends = [shown["mean"] - shown["low"], shown["high"] - shown["mean"]]
        ax.errorbar(
            shown["mean"],
            range(len(shown)),
            xerr=ends,
            fmt="o",
            markersize=3,
            color="black",
            elinewidth=0.7,
        )
        names = [
            _MATRICES.get(name) or Approximation(name).facts.label
            for name in shown["matrix"]
        ]
        ax.set_yticks(range(len(shown)), names if column == 0 else [""] * len(shown))
        ax.set_ylim(len(shown) - 0.5, -0.5)
        ax.xaxis.set_major_locator(MaxNLocator(3))
        ax.set_xlabel(["score", "distance from H"][column])
    yield sheet.page("", every)
