"""Compaction: which part of a log a summary may stand for, and the job that writes it."""
