"""A device that trains `torch_job.py`'s network on points of its own: which of them lie in a circle?"""

import torch

import vennue
from vennue.integrations.torch import load, weights

points = torch.rand(500, 2) * 2 - 1
inside = (points.norm(dim=1) < 0.7).float()

with vennue.Device(attributes={"data": ["circle"]}) as device:
    for task in device.tasks():
        # The same network as the owner's: a job's name tells a device which one.
        network = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
        load(network, task.model)
        accuracy = ((network(points).squeeze(1) > 0) == inside.bool()).float().mean().item()
        optimizer = torch.optim.Adam(network.parameters(), lr=task.config["learning_rate"])
        for _ in range(task.config["steps"]):
            optimizer.zero_grad()
            loss = torch.nn.functional.binary_cross_entropy_with_logits(network(points).squeeze(1), inside)
            loss.backward()
            optimizer.step()
        task.report(weights(network), examples=len(points), metrics={"loss": loss.item(), "accuracy": accuracy})
