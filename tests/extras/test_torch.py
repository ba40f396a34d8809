"""PyTorch modules on both sides of the wire: a job's and its devices', through a whole server in this process."""

import asyncio
from typing import Any

import numpy as np
import pytest

from vennue.core.errors import InvalidModel
from vennue.integrations.torch import load, weights
from vennue.testing import LocalPool, run_virtual

pytestmark = pytest.mark.extras
torch = pytest.importorskip("torch", reason="PyTorch is not installed: `make test-rest` installs it")


def network(seed=0, dtype=None):
    torch.manual_seed(seed)
    parts = [torch.nn.Conv1d(1, 2, 3), torch.nn.BatchNorm1d(2), torch.nn.Flatten(), torch.nn.LazyLinear(1)]
    made = torch.nn.Sequential(*parts)
    made(torch.rand(4, 1, 8))
    return made.to(dtype or torch.float32)


def test_parameters_and_buffers_of_every_type_are_weights():
    found = weights(network())
    assert {name: str(tensor.dtype) for name, tensor in found.items() if name.startswith("1.")} == {
        "1.weight": "torch.float32",
        "1.bias": "torch.float32",
        "1.running_mean": "torch.float32",
        "1.running_var": "torch.float32",
        "1.num_batches_tracked": "torch.int64",
    }


def test_weights_are_copies_without_gradients():
    module = network()
    found = weights(module)
    found["3.bias"] += 1
    assert not found["3.bias"].requires_grad
    assert not torch.equal(found["3.bias"], module[3].bias)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_one_modules_weights_make_another_equal_to_it(dtype):
    first, second = (network(seed, getattr(torch, dtype)) for seed in (1, 2))
    load(second, weights(first))
    assert all(
        torch.equal(a, b) for a, b in zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    )


def test_numpy_arrays_load_into_the_types_that_the_module_has():
    module = network(dtype=torch.bfloat16)
    arrays = {name: tensor.to(torch.float64).numpy() for name, tensor in weights(network(1)).items()}
    load(module, arrays)
    assert module[3].bias.dtype == torch.bfloat16
    assert module[1].num_batches_tracked.dtype == torch.int64
    assert module[3].bias.item() == pytest.approx(arrays["3.bias"][0], rel=2**-8)


def test_a_parameter_that_an_optimiser_holds_is_the_one_that_changes():
    module = network()
    held = module[3].bias
    load(module, {**weights(module), "3.bias": np.array([2.5], np.float32)})
    assert held.item() == 2.5


def test_state_that_is_no_tensor_stays_at_home():
    linear: Any = torch.nn.Linear

    class Tokens(linear):  # type: ignore[misc]
        words = "a b"

        def get_extra_state(self):
            return {"words": self.words}

        def set_extra_state(self, state):
            self.words = state["words"]

    one, other = Tokens(2, 1), Tokens(2, 1)
    other.words = "c"
    load(other, weights(one))
    assert other.words == "c"
    assert torch.equal(one.weight, other.weight)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda own: {name: own[name] for name in own if name != "3.bias"}, "3.bias: the array is missing"),
        (lambda own: {**own, "3.bias": torch.zeros(2)}, r"3.bias: its shape \(2,\) is not this model's \(1,\)"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(given, message):
    module = network()
    with pytest.raises(InvalidModel, match=message):
        load(module, given(weights(module)))


def test_what_is_no_module_or_has_no_shape_yet_is_refused_with_the_fix():
    with pytest.raises(InvalidModel, match="no module but OrderedDict"):
        weights(network().state_dict())
    with pytest.raises(InvalidModel, match=r"weight: it has no shape yet \(run the module once"):
        weights(torch.nn.LazyLinear(1))


def test_a_module_goes_out_to_devices_and_comes_back_as_their_mean():
    changes, examples = (0.0, 1.0), (1, 3)

    async def serve(pool, number):
        own = network(number + 5)
        async with pool.device(device_id=f"d{number}") as device:
            async for task in device.tasks(max_tasks=1):
                load(own, task.model)
                with torch.no_grad():
                    for parameter in own.parameters():
                        parameter.add_(changes[number])
                own[1].num_batches_tracked += 100  # a counter: carried, not averaged
                await task.report(weights(own), examples=examples[number])

    async def train():
        module = network()
        before = weights(module)
        async with (
            LocalPool() as pool,
            pool.job(name="mean", demand=2, rounds=1) as job,
            asyncio.TaskGroup() as devices,
        ):
            for number in (0, 1):
                devices.create_task(serve(pool, number))
            async for turn in job.rounds():
                load(module, await turn.run(weights(module)))
        return before, weights(module)

    before, after = run_virtual(train())
    assert torch.allclose(after["0.weight"], before["0.weight"] + 0.75)
    assert torch.equal(after["1.running_mean"], before["1.running_mean"])
    assert torch.equal(after["1.num_batches_tracked"], before["1.num_batches_tracked"])
