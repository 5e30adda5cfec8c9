"""Names of the surrogates, saliencies and roundings of this study, and of their rows in tables."""

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
SALIENCIES = {
    **{"random": "random", "magnitude": "magnitude", "taylor": "Taylor"},
    **{
        f"{rule}_{one}": f"{rule.upper()}, {one.label}"
        for rule in ("obd", "obs")
        for one in PRUNED_BY
    },
}
ROUNDINGS = {
    "nearest": "nearest",
    **{f"gptq_{one}": f"GPTQ, {one.label}" for one in Surrogate},
}
_NUMBERS_OF_SALIENCIES = ("correlation", "row_correlation", "loss", "head")
OF_PRUNING = (
    *("removed_share", "head_increase"),
    *(f"{name}_{number}" for name in SALIENCIES for number in _NUMBERS_OF_SALIENCIES),
    *(
        f"{name}_compensated_correlation"
        for name in SALIENCIES
        if name.startswith("obs_")
    ),
)
# Predictions of the rise of the loss.
OF_ROUNDING = ("hawq", "fisher", "quadratic", "taylor")
OF_QUANTISATION = tuple(f"{name}_increase" for name in ROUNDINGS)
INFLUENCES = ("hessian", "gauss_newton", "kfac", "ekfac", "diagonal", "identity")
OF_INFLUENCE = tuple(
    f"{name}_influence_{number}" for name in INFLUENCES for number in ("score", "error")
)
ROUNDED = ("rounding_increase", *(f"{name}_prediction" for name in OF_ROUNDING))
RANK_CORRELATIONS = tuple(f"{name}_rank_correlation" for name in OF_ROUNDING)
