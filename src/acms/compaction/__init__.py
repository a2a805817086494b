"""Compaction: the part of a log that a summary may replace, and the job that writes it."""
