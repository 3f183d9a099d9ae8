"""sgnb: LLM programs in notebooks, on an engine you can see think."""

__version__ = "0.1.0"
