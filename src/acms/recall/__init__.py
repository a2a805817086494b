"""Recall: the index of a log, ranking, candidates, the plan within a budget."""
