"""The language: cell text to blocks of instructions. Pure: no I/O, no threads, leaves only."""
