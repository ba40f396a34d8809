"""A job that trains a small PyTorch network on whatever devices run `torch_device.py`.

Start ``vennue serve``, then ``python examples/torch_device.py`` twice, then this.
"""

import torch

import vennue
from vennue.integrations.torch import load, weights

network = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))

with vennue.Job(name="in-the-circle", demand=2, rounds=10, requirement='"circle" in device.data') as job:
    for round in job.rounds(config={"learning_rate": 0.05, "steps": 40}):
        # The network's tensors go out, and the mean of the devices' comes back.
        load(network, round.run(weights(network)))
        print(f"round {round.number}: accuracy {round.metrics['accuracy']:.2f}")
