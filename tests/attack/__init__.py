"""Kills, damage, full disks, hostile files, odd surroundings, bad inputs; `make test-attack`, some twenty minutes."""
