"""Jobs: leases, workers, background work of a session, and what an operator does with them."""
