"""Names of the surrogates, saliencies and roundings of this study, and of their rows in tables."""

from itertools import product

from hessfig.terms import Labelled


class Surrogate(Labelled):
    """A matrix in place of the curvature of the loss when weights are removed or rounded (docs/studies/removal.md)."""

    hessian = "hessian", "Hessian"
    gauss_newton = "gauss_newton", "Gauss-Newton"
    kfac = "kfac", "K-FAC"
    empirical_fisher = "empirical_fisher", "empirical Fisher"
    inputs = "inputs", "inputs of each layer"


# Inputs do not compare weights of two layers.
PRUNED_BY = tuple(one for one in Surrogate if one != Surrogate.inputs)
# Saliencies of weights, and ways to round them, with their labels.
SALIENCIES = {"random": "random", "magnitude": "magnitude", "taylor": "Taylor"}
for _rule, _one in product(("obd", "obs"), PRUNED_BY):
    SALIENCIES[f"{_rule}_{_one}"] = f"{_rule.upper()}, {_one.label}"
ROUNDINGS = {"nearest": "nearest"}
for _surrogate in Surrogate:
    ROUNDINGS[f"gptq_{_surrogate}"] = f"GPTQ, {_surrogate.label}"
_NUMBERS_OF_SALIENCIES = ("correlation", "row_correlation", "loss", "head")
OF_PRUNING = (
    "removed_share",
    "head_increase",
    *map("_".join, product(SALIENCIES, _NUMBERS_OF_SALIENCIES)),
    *(f"obs_{one}_compensated_correlation" for one in PRUNED_BY),
)
# Predictions of the rise of the loss.
OF_ROUNDING = ("hawq", "fisher", "quadratic", "taylor")
OF_QUANTISATION = tuple(f"{name}_increase" for name in ROUNDINGS)
INFLUENCES = ("hessian", "gauss_newton", "kfac", "ekfac", "diagonal", "identity")
OF_INFLUENCE = tuple(map("_influence_".join, product(INFLUENCES, ("score", "error"))))
ROUNDED = ("rounding_increase", *(f"{name}_prediction" for name in OF_ROUNDING))
RANK_CORRELATIONS = tuple(f"{name}_rank_correlation" for name in OF_ROUNDING)
