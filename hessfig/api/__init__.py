"""What Python users import: problems, measurements, monitors, sweeps and figures; `hessfig` exports the names."""
