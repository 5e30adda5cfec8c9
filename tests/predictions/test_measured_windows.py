"""Networks whose queries see one, two, three or all keys grow as counted, with and without the weights' constant."""

import pytest

import hessfig

SMALL = (
    "model.d_model=6",
    "model.n_heads=1",
    "task.digits=1",
    "task.batch_size=3",
    "estimator=dense",
)
BARE = ("model=self_attention", "task=gaussian")
LAYER = ("model.mlp=none",)
NETWORKS = {
    "bare": BARE,
    "one layer": LAYER,
    "one layer, W_QK": (*LAYER, "model.query_key=single"),
    "two layers": (*LAYER, "model.n_layers=2"),
    "differential": (
        *LAYER,
        "model.attention=differential",
        "model.differential_norm=false",
    ),
    "entmax": (*LAYER, "model.attention=entmax15"),
    "off by one": (*LAYER, "model.attention=off_by_one"),
    "kernel": (*LAYER, "model.attention=kernel"),
}
WINDOWS = "{},{model.window: 1},{model.window: 2},{model.window: 3}"
CENTRED = (
    "{model.centring: 0.5},{model.centring: 1.0},"
    "{model.centring: 0.5, model.window: 2},{model.centring: 1.0, model.window: 2}"
)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.long
def test_exponents_by_window_and_centring(network, tmp_path):
    """Inputs of every sigma are drawn anew: over three decades eight geometric means have slopes to within 0.2."""
    words = NETWORKS[network]
    centred = not any(word.startswith("model.attention") for word in words)
    variants = f"[{WINDOWS},{CENTRED}]" if centred else f"[{WINDOWS}]"
    queries, others = (
        ("W_QK", "") if "W_QK" in network else ("W_Q", ",W_K,[W_Q,W_K],[W_K,W_V]")
    )
    run = hessfig.run(
        "sigma",
        "sweep.name=windows",
        f"sweep.variants={variants}",
        "sweep.windows=[[null,null]]",
        "sweep.average=geometric",
        "grid.values=[0.0001,0.001,0.01,0.1]",
        f"blocks=[W_V,{queries},[{queries},W_V]{others}]",
        "parts=[H_o,H_f,H]",
        *SMALL,
        *words,
        seeds=8,
        workers=0,
        output_dir=tmp_path,
    )
    slopes = run.slopes()
    counted = slopes[slopes["prediction"] == "exponent"]
    off = counted[~((counted["slope"] - counted["predicted"]).abs() < 0.45)]
    assert len(counted) > 30
    assert off.empty, off[
        ["variant", "layer", "row", "col", "part", "slope", "predicted"]
    ]
    zero = slopes[slopes["prediction"] == "structural zero"]
    assert zero["is_zero"].all()
