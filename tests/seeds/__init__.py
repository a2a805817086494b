"""The examples of the five documents that asked for all this, with their own data. docs/origins.md has what differs."""
