"""Publish the events of a log: as a stream that a reader can resume, and to webhooks."""
