"""Where a block is carried out. Notebook process."""
