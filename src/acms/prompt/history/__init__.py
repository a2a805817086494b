"""The history of a prompt: which messages of a log a request shows, and what is recalled beside them."""
