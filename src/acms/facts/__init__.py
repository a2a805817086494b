"""Facts: proposals from closed episodes are consolidated with the known facts; profiles of namespaces."""
