"""The server: tokenizer process and scheduler process. Started by name, imported by nobody."""
