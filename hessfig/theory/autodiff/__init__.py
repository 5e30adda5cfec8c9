"""Truth by automatic differentiation, and the random problems it is asked on."""
