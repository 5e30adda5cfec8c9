"""The layouts of this study: shares of the functional part, at the outputs and at the attention scores."""

from hessfig.figures.parts import FigureLayout

_SHARES = "hessfig.studies.paper_claims.part_shares"
LAYOUTS = {
    "ablation": FigureLayout(f"{_SHARES}:ablation", ("sigmas", "beside")),
    "score_split": FigureLayout(f"{_SHARES}:score_split", ()),
}
