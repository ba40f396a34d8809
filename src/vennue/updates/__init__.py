"""The data plane: models as content-addressed blobs, updates spooled, folded and aggregated by strategies.

A report is durable before it is acknowledged, is counted at most once, and costs memory per open round, not per device.
It imports only the core, and is handed chunks of bytes: how they travelled is not its concern.
"""
