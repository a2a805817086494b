"""Facts: proposals from closed episodes are consolidated into what is known; profiles of namespaces."""
