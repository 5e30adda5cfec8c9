"""Predict how block norms grow with the embedding scale sigma, and compare with slopes fitted on a small network."""

import hessfig

# The prediction counts powers of sigma; nothing is measured.
small = ["model.d_model=16", "model.n_heads=1", "task.digits=1", "task.batch_size=8"]
predicted = hessfig.predict(*small, "blocks=[W_V,W_Q]")
print(predicted[["row", "part", "regime", "exponent", "zero"]].to_string())

# The slopes are fitted on log-log axes for sigma from 0.01 to 0.1, where the prediction
# applies.
grid = ["grid.low=0.01", "grid.high=0.1", "grid.points=4"]
run = hessfig.run("sigma", *small, *grid, "sweep.name=growth_rates", seeds=3, workers=1)
slopes = run.slopes("sweep.windows=[[null,0.1]]")
print(slopes[["row", "part", "slope", "slope_se", "predicted"]].to_string())
