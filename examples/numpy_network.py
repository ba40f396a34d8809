"""A network written in numpy, of a job and of its devices: what is the sine of a number?

Start ``vennue serve``, then ``python examples/numpy_network.py device`` twice, then the same without ``device``.
"""

import sys

import numpy as np

import vennue
from vennue.integrations.numpy import load, weights


class Network:
    def __init__(self, rng):
        self.first = {"weight": rng.normal(size=(1, 32)), "bias": rng.normal(size=32)}
        self.second = {"weight": rng.normal(size=(32, 1)) * 0.1, "bias": np.zeros(1)}

    def train(self, x, y, rate):
        hidden = np.tanh(x @ self.first["weight"] + self.first["bias"])
        error = (hidden @ self.second["weight"] + self.second["bias"] - y) / len(x)
        slope = error @ self.second["weight"].T * (1 - hidden**2)
        for layer, below, above in ((self.second, hidden, error), (self.first, x, slope)):
            layer["weight"] -= rate * below.T @ above
            layer["bias"] -= rate * above.sum(axis=0)
        return float((error**2).sum() * len(x))


def device():
    rng = np.random.default_rng()
    network, x = Network(rng), rng.uniform(-3, 3, (200, 1))
    with vennue.Device(attributes={"data": ["sine"]}) as device:
        for task in device.tasks():
            load(network, task.model)
            losses = [network.train(x, np.sin(x), task.config["learning_rate"]) for _ in range(50)]
            task.report(weights(network), examples=len(x), metrics={"loss": losses[0]})


def job():
    network = Network(np.random.default_rng(1))
    with vennue.Job(name="sine", demand=2, rounds=20, requirement='"sine" in device.data') as job:
        for round in job.rounds(config={"learning_rate": 0.1}):
            load(network, round.run(weights(network)))
            print(f"round {round.number}: loss {round.metrics['loss']:.4f}")


if __name__ == "__main__":
    device() if sys.argv[1:] == ["device"] else job()
