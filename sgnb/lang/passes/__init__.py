"""Passes over recorded blocks and static graphs, one file each."""
