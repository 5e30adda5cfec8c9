"""Kills, damage, full disks, hostile files, odd surroundings and bad inputs; `make test-attack`, some twenty minutes."""
