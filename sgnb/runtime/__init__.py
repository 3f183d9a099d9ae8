"""Runs a Program in the notebook process: functions, states, dispatcher, event log."""
