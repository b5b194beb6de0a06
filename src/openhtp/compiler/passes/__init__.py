"""Compiler passes, one per module: functions from a program to one of the same level, named after what they do."""
