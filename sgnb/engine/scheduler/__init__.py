"""The scheduler process: which request computes what, when."""
