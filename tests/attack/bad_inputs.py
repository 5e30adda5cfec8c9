"""Commands that must be refused, and what the refusal must say (the short table: tests/cli/test_bad_input.py)."""

from __future__ import annotations

SIGMA = "figure.sweep=sigma"
LINES = ("plot", "figure=3a", "figure.layout=lines")
PANEL = ("plot", "figure=3a", "figure.layout=one_panel")
BLOCKS = ("plot", "figure=blocks", SIGMA)
NUL = "a\0b"

# Beside results of the sweeps `sigma` (one layer) and `entries` (stored Hessians), and
# a reference CSV.
BESIDE_RESULTS = {
    ("slopes", "sweep.windows=[]"): ["sweep.windows", "null leaves an end open"],
    ("slopes", "sweep.windows=[[2,1]]"): ["sweep.windows", "low"],
    ("slopes", "sweep.windows=[[${x},1]]"): ["interpolation key 'x' not found"],
    ("slopes", "sweep.average=harmonic"): ["sweep.average", "geometric"],
    ("slopes", "tolerance=nan"): ["tolerance", "> 0"],
    ("slopes", "quantities=[nope]"): ["nope", "frobenius"],
    ("slopes", "model.d_model=16"): ["is from another config", "model.d_model was 8"],
    ("slopes", "output_dir=nowhere"): [
        "nowhere/sigma/table.csv is missing",
        "output_dir=nowhere",
    ],
    ("slopes", f"output_dir={NUL}"): ["output_dir"],
    ("slopes", "figure=3a"): ["slopes does not read figure", "hessfig plot"],
    ("check", "sweep=entries", "sweep.axis=model.attention"): ["sweep.axis", "sigma"],
    ("plot", "figure=3a", "figure.options={a: 1}"): [
        "figure.options.a",
        "quantity, index",
    ],
    ("plot", "figure=3a", "figure.options.index=1"): [
        "frobenius has no such number",
        "got:     1",
    ],
    ("plot", "figure=3a", "figure.options.quantity=trace"): [
        "no numbers of this quantity",
        "frobenius",
    ],
    ("plot", "figure=3a", "figure.options.nope=1"): [
        "figure.options.nope",
        "leave it out",
    ],
    ("plot", "figure=3a", "figure.layout="): ["no such layout", "growth"],
    ("plot", "figure=3a", "figure.layout=entries"): [
        "no stored Hessian",
        "quantities=[hessian]",
    ],
    ("plot", "figure=3a", "figure.name=.."): [
        "figure.name is the name of a file",
        "'..'",
    ],
    ("plot", "figure=3a", f"figure.name={NUL}"): ["figure.name"],
    ("plot", "figure=3a", "figure.x=sigma"): [
        "does not take it",
        "figure.layout=lines",
    ],
    ("plot", "figure=none", "figure.name=x", SIGMA): ["no such layout"],
    (*LINES, "figure.x=3"): ["figure.x: the sweep does not vary it", "sigma, step"],
    (*LINES, "figure.colour=part", "figure.dashes=part"): [
        "are the same",
        "leave one of them out",
    ],
    (*PANEL, "figure.options.part=X"): ["figure.options.part", "H_o, H_f, H"],
    (*BLOCKS, "figure.options.at=x"): ["figure.options.at", "a number"],
    ("plot", "figure=1", "figure.options.variant=nope"): [
        "was not measured",
        "model.attention=softmax",
    ],
    ("plot", "figure=1", "figure.options.weights=[W_X]"): ["no parameter W_X", "W_Q"],
    ("plot", "figure=4", "figure.options.opaque=3"): [
        "figure's variant was not measured"
    ],
    ("plot", "figure=6"): ["depth/table.csv is missing", "hessfig run sweep=depth"],
    ("plot", "figure=scalar", "output_dir=/dev/null"): [
        "cannot write",
        "output_dir=FOLDER",
    ],
    ("plot", "figure=scalar", "model.d_model=3"): ["the study scalar does not read"],
    ("compare", "outputs/sigma"): ["two tables are needed"],
    ("compare", "outputs/sigma", "/dev/zero"): ["is not a table to compare"],
    ("compare", "outputs/sigma", "reference.csv", "tolerance=1"): [
        "tolerance is a relative difference"
    ],
    ("compare", "outputs/sigma", "reference.csv", "nope=1"): ["no setting 'nope'"],
    ("verify", "statement="): ["cannot read 'statement='", "thm31"],
    ("verify", "L=1"): ["L: too short a sequence", "L >= 3"],
    ("verify", "d_V=1000"): ["would not fit", "GiB"],
    ("verify", "d_V=4", "d_K=4"): ["pairwise different"],
    ("verify", "dtype=float16"): ["proves nothing", "float64"],
    ("verify", "nope=1"): ["no setting 'nope'", "leave it out"],
    ("verify", "statement=thm31", "output_dir=/dev/null"): ["cannot write"],
    ("status", "sweep.name=a/b"): ["sweep.name is the name of a folder", "'a/b'"],
    ("run", "sweep.name=ä"): ["sweep.name=ä", "remedy:  'sweep.name="],
    ("run", f"output_dir={NUL}"): ["output_dir"],
    ("run", "state=loaded", "state.path=/dev/null"): ["state.path"],
    ("run", "-"): ["no flag '-'"],
    ("run", "="): ["no setting ''"],
    ("run", "\x1b[31m=3"): ["?[31m"],
    ("\x1b[31m",): ["there is no verb", "?[31m"],
}
