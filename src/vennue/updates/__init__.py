"""The data plane: models as content-addressed blobs, updates spooled, folded and aggregated by strategies.

A report is durable before it is acknowledged, is counted at most once, and costs memory per open round, not per device.
It imports only the core, and is handed chunks of bytes: how they travelled is not its concern.

From the outside in: ``aggregator`` (one attempt's updates), ``intake`` (an update on its way in), ``spool`` (updates on
disk), ``fold`` (their running sum), ``commit`` and ``strategies`` (from the sum to the next model), ``blobs`` (where
models live). What a model is, and how its numbers travel, is in `vennue.tensors`.
"""

from vennue.updates.aggregator import Aggregate, RoundAggregator
from vennue.updates.blobs import BlobStore, BlobWriter, DirectoryBlobs, check_digest
from vennue.updates.intake import Receipt, UpdateSink
from vennue.updates.strategies import STRATEGIES, Strategy, strategy

__all__ = [
    "STRATEGIES",
    "Aggregate",
    "BlobStore",
    "BlobWriter",
    "DirectoryBlobs",
    "Receipt",
    "RoundAggregator",
    "Strategy",
    "UpdateSink",
    "check_digest",
    "strategy",
]
