"""Growth sheets: norms of diagonal blocks along the axis, on logarithmic and linear axes, and their slopes."""
