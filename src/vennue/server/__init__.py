"""The HTTP face of a pool: roles, routes, authentication, telemetry.

It turns requests into calls of the control and data planes and errors into RFC 9457 problem documents. The check-in
route is the hot path and goes around the web framework.
"""
