"""The fold against exact arithmetic: any models, codecs and weights, in any order."""

import math
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from vennue.tensors.codecs import CODECS
from vennue.tensors.model import MappedModel, layout_of, save
from vennue.updates.fold import Fold, Term

SHAPES: dict[str, tuple[int, ...]] = {"w": (3, 2), "b": (2,), "s": ()}
NUMBERS = st.floats(-1e6, 1e6, width=32)


def arrays(shape):
    size = math.prod(shape)
    return st.lists(NUMBERS, min_size=size, max_size=size).map(
        lambda values: np.array(values, np.float32).reshape(shape)
    )


MODELS = st.fixed_dictionaries({name: arrays(shape) for name, shape in SHAPES.items()})
UPDATES = st.lists(st.tuples(MODELS, st.floats(0.01, 1e4)), min_size=1, max_size=6)


def folded(updates, accumulator):
    with TemporaryDirectory() as folder:
        fold = Fold(layout_of(updates[0][0]), accumulator)
        for model, weight in updates:
            path = Path(folder) / "update"
            path.write_bytes(save(model))
            fold.add(Term(MappedModel(path), CODECS["plain"], weight, weight))
        return fold.result()


@given(UPDATES, st.sampled_from(["float32", "float64"]))
def test_the_result_is_the_exact_weighted_mean_to_rounding(updates, accumulator):
    result = folded(updates, accumulator)
    total = sum(Fraction(weight) for _, weight in updates)
    epsilon = Fraction(float(np.finfo(accumulator).eps))
    for name, shape in SHAPES.items():
        for index in np.ndindex(shape):
            terms = [Fraction(weight) * Fraction(float(model[name][index])) for model, weight in updates]
            magnitude = sum(abs(term) for term in terms)
            # Every multiplication, addition and the division round once, by at most half an epsilon, relative to
            # numbers no larger than Σ w·|x|; numbers below the smallest normal one lose a step of 2^-149 each.
            tiny = Fraction(1, 2**149)
            bound = (len(updates) + 3) * (epsilon * magnitude + tiny) / total + tiny
            error = Fraction(float(result[name][index])) - sum(terms) / total
            assert -bound <= error <= bound


@given(UPDATES, st.randoms(use_true_random=False))
def test_the_order_of_updates_does_not_matter_beyond_rounding(updates, random):
    shuffled = updates.copy()
    random.shuffle(shuffled)
    for name, values in folded(updates, "float64").items():
        assert np.allclose(values, folded(shuffled, "float64")[name], rtol=1e-12, atol=1e-6)
