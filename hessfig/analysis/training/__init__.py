"""What is read off trainings: where a sharpness settles, who wins a race of rules, which stand-ins track what."""
