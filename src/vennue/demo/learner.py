"""What the demo's phones learn from: each holds a part of every learning task's data, and trains it with numpy.

The part that a phone holds depends on its number, the size of the fleet and the seed alone, so two fleets of the same
size and seed hold the same data, whatever the policy. How many examples a phone holds is private to it.
"""

import dataclasses
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from vennue.demo.datasets import Examples
from vennue.demo.tasks import TASKS, task
from vennue.sdk.device import AsyncTask
from vennue.testing.fleet import Trained

MOST_PARTS = {"next-character": 1000, "missing-letter": 1000, "clothes": 600, "digits": 150}
"""Into how many parts a dataset is dealt at most, about ten examples each. Phones beyond that hold the same again."""


def attribute(task_name: str) -> str:
    """The private attribute that holds how many examples of a task a phone has."""
    return f"{task_name.replace('-', '_')}_samples"


class PhoneData:
    """The phones' local data, and their training on it.

    A round's config names the task (``task``); without it the job's name must be a task's. Its ``learning_rate``, if
    any, replaces the task's own.

    Args:
        devices: size of the fleet.
        seed: of the split and of the shuffling.
    """

    def __init__(self, devices: int, seed: int) -> None:
        self._devices = devices
        self._seed = seed
        self._parts: dict[str, list[Examples]] = {}
        self._loading = threading.Lock()

    def load(self) -> None:
        """Read and deal all data now, rather than when a phone first needs some. About a second."""
        for name in TASKS:
            self._dealt(name)

    def private(self, device: int) -> Mapping[str, Any]:
        return {attribute(name): len(self._part(name, device)) for name in TASKS}

    def train(self, device: int, task: AsyncTask) -> Trained | None:
        name = str(task.config.get("task", task.name))
        if name not in TASKS:
            return None
        learning = TASKS[name]
        rate = task.config.get("learning_rate")
        training = learning.training
        if rate is not None:
            training = dataclasses.replace(training, learning_rate=float(rate))
        rng = np.random.default_rng((self._seed, device, task.round))
        result = learning.train(task.model, self._part(name, device), rng, training=training)
        return Trained(result.model, result.examples, result.metrics)

    def _part(self, name: str, device: int) -> Examples:
        parts = self._dealt(name)
        return parts[device % len(parts)]

    def _dealt(self, name: str) -> list[Examples]:
        with self._loading:
            if name not in self._parts:
                count = min(self._devices, MOST_PARTS[name])
                self._parts[name] = task(name).partition(count, self._seed)
            return self._parts[name]
