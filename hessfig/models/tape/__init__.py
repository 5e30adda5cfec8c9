"""Products of the package's networks on a linearised tape: evaluated once, then multiplied by many probes."""
