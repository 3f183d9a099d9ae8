"""Views: folds over events. Notebook process; IPython and comms are allowed here."""
