"""From a ModelWorkerBatch to next token ids."""
