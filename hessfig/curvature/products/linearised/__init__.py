"""Second-order differentiation of a fixed network: batched tangents and cotangents, each primal value computed once."""
