"""The control plane: coordinator and selector, admission, pace steering, explanations and recovery.

It drives the core with real time and makes its effects durable. It stands above core, policies, updates and state, and
knows nothing of HTTP, which is the server's matter.
"""
