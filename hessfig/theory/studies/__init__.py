"""Tables of the theory studies (no sweep)."""
