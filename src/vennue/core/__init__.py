"""The pure heart of Vennue: requirements, regions, supply, jobs, rounds, plans and binding as state machines.

Events go in, state changes, effects come out. Nothing here reads a clock, a file, a socket or global randomness: time
and random sources are passed in, so that the simulator, a replay, fault tests and the server all run this same code.
"""
