"""Writing: the write queue of a log, episodes, edits and retractions."""
