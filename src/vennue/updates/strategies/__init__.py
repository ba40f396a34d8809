"""How rounds become models: strategies by name, and the base classes for one's own."""

from vennue.updates.strategies.adaptive import FedAdagrad, FedAdam, FedYogi
from vennue.updates.strategies.base import Block, Share, Strategy, Update
from vennue.updates.strategies.clipping import NormClipping
from vennue.updates.strategies.fedavg import FedAvg, FedProx
from vennue.updates.strategies.fedavgm import FedAvgM
from vennue.updates.strategies.fedbuff import FedBuff
from vennue.updates.strategies.krum import Krum, MultiKrum
from vennue.updates.strategies.qfedavg import QFedAvg
from vennue.updates.strategies.registry import available, load_strategies, register, strategy
from vennue.updates.strategies.robust import Median, Robust, TrimmedMean

__all__ = [
    "Block",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedBuff",
    "FedProx",
    "FedYogi",
    "Krum",
    "Median",
    "MultiKrum",
    "NormClipping",
    "QFedAvg",
    "Robust",
    "Share",
    "Strategy",
    "TrimmedMean",
    "Update",
    "available",
    "load_strategies",
    "register",
    "strategy",
]
