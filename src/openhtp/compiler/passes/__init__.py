"""Compiler passes, one per module: functions from a program to one of the same level, named by what they do."""
