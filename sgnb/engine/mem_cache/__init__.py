"""KV slots and the radix tree over them."""
