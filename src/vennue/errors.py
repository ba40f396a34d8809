"""Every error that Vennue raises on purpose, as in ``from vennue.errors import JobEnded``.

All of them derive from `VennueError`, which says what its attributes mean.
"""

from vennue.core.errors import (
    Conflict,
    FileDamaged,
    Forbidden,
    IllegalTransition,
    Infeasible,
    InvalidInput,
    InvalidModel,
    InvalidRequirement,
    InvalidUpdate,
    InvariantViolated,
    JobEnded,
    NotFound,
    OutOfSpace,
    Overloaded,
    StorageError,
    StrategyFailed,
    TooLarge,
    TooLate,
    Unavailable,
    UnknownAttribute,
    VennueError,
)

__all__ = [
    "Conflict",
    "FileDamaged",
    "Forbidden",
    "IllegalTransition",
    "Infeasible",
    "InvalidInput",
    "InvalidModel",
    "InvalidRequirement",
    "InvalidUpdate",
    "InvariantViolated",
    "JobEnded",
    "NotFound",
    "OutOfSpace",
    "Overloaded",
    "StorageError",
    "StrategyFailed",
    "TooLarge",
    "TooLate",
    "Unavailable",
    "UnknownAttribute",
    "VennueError",
]
