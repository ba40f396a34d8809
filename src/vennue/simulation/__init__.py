"""Trace-driven simulation of a pool: the real core under virtual time, with workloads, traces, metrics and reports.

It stands beside the control plane, above core and policies: what is simulated here is what the server runs.
"""
