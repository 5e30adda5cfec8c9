"""Networks, losses and batches of users: reading, checks, copies, and the comparison with the user's own function."""
