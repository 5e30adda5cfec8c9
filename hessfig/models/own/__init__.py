"""Networks, losses and batches of a user: read, checked, copied or run in place, and compared with what is measured."""
