"""Where state lives: the durable ledger of jobs, rounds and commits, and the soft state that may be lost and rebuilt.

Each interface has one conformance suite that runs over all its implementations. It imports only the core.
"""
