"""The kernel: the same runs as the reference engine's, a hundred times as fast. Needs the extra ``sim``.

Devices, assignments, timers and rounds are handled by compiled code (`loop`, `rounds`, `tables` over the arrays of
`state`); `driver` gives it what only Python has: the policy, the supply, the trace. A property test holds the two
engines to identical assignments, times and counters.
"""
