"""Grammars as bitmasks on logits."""
