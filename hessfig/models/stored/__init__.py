"""What kinds of stored networks share: folders, sizes, tokens in batches, and their torch modules."""
