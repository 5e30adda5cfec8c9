"""Names of weights given by use: small runs of a network, and what named weights do in them."""
