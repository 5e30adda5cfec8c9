"""The attack suite: kills, damage, full disks, hostile files and bad inputs; `make test-attack`, some ten minutes."""
