"""The tokenizer process: text to ids and back. No torch."""
