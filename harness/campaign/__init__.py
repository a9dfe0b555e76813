"""Runs cells in order: journal, resume, seal."""
