"""Compiler passes, one per module: functions from a Draft to a Draft, named by what they do."""
