"""Stand-ins for other packages' names."""
