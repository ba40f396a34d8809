"""The data plane: models as content-addressed blobs, updates spooled, folded and aggregated by strategies.

A report is durable before it is acknowledged, is counted at most once, and costs memory per open round, not per device.
It imports only the core, and is handed chunks of bytes: how they travelled is not its concern.

From the outside in: ``aggregator`` (one attempt's updates), ``checks`` and ``intake`` (an update on its way in),
``spool`` (updates on disk), ``running`` and ``fold`` (their running sum), ``sums`` (what leaves send), ``update_set``
(them side by side), ``commit`` and ``strategies`` (from there to the next model), ``blobs`` and ``blob_directory``
(where models live). What a model is, and how its numbers travel, is in `vennue.tensors`.
"""

from vennue.updates.aggregator import RoundAggregator
from vennue.updates.blob_directory import DirectoryBlobs
from vennue.updates.blobs import BlobStore, BlobWriter, check_digest
from vennue.updates.commit import Aggregate
from vennue.updates.intake import PartialSink, UpdateSink
from vennue.updates.strategies import Strategy, strategy
from vennue.updates.sums import Partial, Receipt

__all__ = [
    "Aggregate",
    "BlobStore",
    "BlobWriter",
    "DirectoryBlobs",
    "Partial",
    "PartialSink",
    "Receipt",
    "RoundAggregator",
    "Strategy",
    "UpdateSink",
    "check_digest",
    "strategy",
]
