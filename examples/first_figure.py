"""Measure a small version of the paper's Figure 3a from Python, and draw it."""

import hessfig

# A network of width 16 instead of 128, three embedding scales instead of twenty, two
# seeds.
small = [
    "model.d_model=16",
    "model.n_heads=1",
    "task.digits=1",
    "task.batch_size=8",
    "grid.points=4",
]
run = hessfig.run("sigma", *small, seeds=2, workers=1)

# The table is a pandas data frame: one row per measured number.
norms = run.table[["row", "part", "sigma", "seed", "value"]]
print(norms.groupby(["row", "part"])["value"].agg(["min", "max"]))

figure = run.plot("3a", title="Figure 3a at width 16")
figure.savefig("first_figure.png", bbox_inches="tight", dpi=150)
print("written: first_figure.png")
