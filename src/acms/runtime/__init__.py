"""Runtime: work off the event loop; knows nothing of ACMS."""
