"""A scikit-learn classifier, of a job and of its devices: handwritten digits, of which a device has seen only some.

Start ``vennue serve``, then ``python examples/sklearn_digits.py device`` twice, then the same without ``device``.
"""

import sys

import numpy as np
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier

import vennue
from vennue.integrations.sklearn import initialise, load, weights

images, labels = load_digits(return_X_y=True)
images /= 16


def classifier():
    made = MLPClassifier((32,), solver="sgd", learning_rate_init=0.1, random_state=1)
    initialise(made, features=64, classes=range(10))
    return made


def device():
    rng = np.random.default_rng()
    mine = np.flatnonzero(np.isin(labels, rng.choice(10, 6, replace=False)))
    mine = rng.choice(mine[mine % 5 > 0], 300, replace=False)  # every fifth image is the owner's
    own = classifier()
    with vennue.Device(attributes={"data": ["digits"]}) as device:
        for task in device.tasks():
            load(own, task.model)
            for _ in range(task.config["epochs"]):
                own.partial_fit(images[mine], labels[mine])
            task.report(weights(own), examples=len(mine), metrics={"loss": own.loss_})


def job():
    learned = classifier()
    with vennue.Job(name="digits", demand=2, rounds=15, requirement='"digits" in device.data') as job:
        for round in job.rounds(config={"epochs": 3}):
            load(learned, round.run(weights(learned)))
            accuracy = learned.score(images[::5], labels[::5])
            print(f"round {round.number}: loss {round.metrics['loss']:.4f}, accuracy {accuracy:.2f}")


if __name__ == "__main__":
    device() if sys.argv[1:] == ["device"] else job()
