"""Products for built-in networks on a linearised tape, which is evaluated once and multiplied by many probes."""
