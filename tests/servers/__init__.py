"""Real servers for tests, benchmarks and work by hand, started by ourselves on a bare machine, as root or not.

Fixtures are in `fixtures`. Outside pytest: `from tests.servers.postgres import Server`, and `python -m tests.servers`
keeps a PostgreSQL running until Ctrl-C.
"""
