"""A device of one's own, with data that stays on it. The README explains it."""

import numpy as np

import vennue

x = np.random.default_rng().normal(size=(50, 3))  # this device's data, which stays here
y = x @ [1.0, -2.0, 0.5]
with vennue.Device(attributes={"data": ["plane"]}) as device:
    for task in device.tasks():
        error = x @ task.model["weights"] - y
        update = {"weights": task.model["weights"] - task.config["learning_rate"] * (x.T @ error) / len(x)}
        task.report(update, examples=len(x), metrics={"loss": np.mean(error**2)})
