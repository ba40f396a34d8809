"""A job of one's own: fits a plane to data that stays on the devices. The README explains it."""

import numpy as np

import vennue

model = {"weights": np.zeros(3, np.float32)}
with vennue.Job(name="fit-a-plane", demand=3, rounds=5, requirement='"plane" in device.data') as job:
    for round in job.rounds(config={"learning_rate": 0.5}):
        model = round.run(model)
        print(f"round {round.number}: loss {round.metrics['loss']:.4f}")
print("weights:", model["weights"].round(2))
