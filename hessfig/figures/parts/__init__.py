"""What every layout shares: style, panels, saving, and the sweep it draws from."""
