"""The log: entries, the active entries at a version, the hash chain, validation and policy."""
