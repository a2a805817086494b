"""The log: entries, what is in force, the hash chain, validation and policy."""
