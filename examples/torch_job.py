"""A job that trains a small PyTorch network on whatever devices run `torch_device.py`.

Start ``vennue serve``, then ``python examples/torch_device.py`` twice, then this.
"""

import torch

import vennue

network = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))

with vennue.Job(name="in-the-circle", demand=2, rounds=10, requirement='"circle" in device.data') as job:
    for round in job.rounds(config={"learning_rate": 0.05, "steps": 40}):
        # A state dict goes out, and one comes back: the mean of the devices' networks.
        network.load_state_dict(round.run(network.state_dict()))
        print(f"round {round.number}: accuracy {round.metrics['accuracy']:.2f}")
