"""scikit-learn estimators that are made of arrays: linear models and multi-layer perceptrons.

An estimator has no weights before it has seen data, so owner and devices `initialise` theirs alike. Devices then train
with ``partial_fit`` (``SGDClassifier``, ``SGDRegressor``, ``Perceptron``, ``MLPClassifier``, ``MLPRegressor``), or with
``fit`` of an estimator that starts where it stands (``LogisticRegression(warm_start=True)``); ``fit`` needs every class
in each device's data, ``partial_fit`` does not. What an optimiser remembers between calls stays on its device.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from vennue.core.errors import InvalidInput, InvalidModel
from vennue.integrations import check_fit, framework

Array = npt.NDArray[Any]


def initialise(estimator: Any, *, features: int, classes: npt.ArrayLike | None = None) -> None:
    """Give an estimator weights: zeros to a linear one, those of its ``random_state`` to a perceptron of many layers.

    Args:
        estimator: the estimator, not fitted yet.
        features: how many numbers an example has.
        classes: a classifier's labels, all that any device may have.

    Raises:
        InvalidInput: scikit-learn is not installed, a classifier has no classes, or the estimator cannot go on from
            weights that it is given.
    """
    base = framework("sklearn.base", name="scikit-learn", extra="sklearn")
    labels = None if classes is None else np.unique(np.asarray(classes))
    if base.is_classifier(estimator) and (labels is None or len(labels) < 2):
        raise InvalidInput("a classifier needs two classes or more", field="classes", value=classes, limit=2)
    _check_goes_on(estimator)
    blank = np.zeros((1 if labels is None else len(labels), features))
    if hasattr(estimator, "partial_fit"):
        if labels is None:
            estimator.partial_fit(blank, np.zeros(1))
        else:
            estimator.partial_fit(blank, labels, classes=labels)
    elif labels is None:
        estimator.fit(blank, np.zeros(1))
    else:
        rows = 1 if len(labels) == 2 else len(labels)
        estimator.classes_, estimator.n_features_in_ = labels, features
        estimator.coef_, estimator.intercept_ = np.zeros((rows, features)), np.zeros(rows)
    if hasattr(estimator, "coef_"):
        estimator.coef_[...] = 0
        estimator.intercept_[...] = 0


def weights(estimator: Any) -> dict[str, Array]:
    """Copies of an estimator's arrays: ``coef_`` and ``intercept_``, or ``coefs_.0``, ``intercepts_.0`` and so on.

    Raises:
        InvalidInput: scikit-learn is not installed.
        InvalidModel: it has none, or none yet.
    """
    return {name: array.copy() for name, array in _arrays(estimator).items()}


def load(estimator: Any, weights: Mapping[str, Any]) -> None:
    """Write arrays into those of an estimator that has some, from `initialise` or from training.

    Raises:
        InvalidInput: scikit-learn is not installed, or the estimator cannot go on from weights that it is given.
        InvalidModel: a name or a shape differs, and nothing has been changed; or as for `weights`.
    """
    own = _arrays(estimator)
    _check_goes_on(estimator)
    check_fit(own, weights)
    for name, array in own.items():
        array[...] = weights[name]


def _check_goes_on(estimator: Any) -> None:
    """Training must begin with the weights that are there."""
    if getattr(estimator, "average", False):
        raise InvalidInput(
            "an estimator that averages its steps trains on from weights of its own, not from those it is given",
            field="average",
            value=estimator.average,
            fix="leave average out: the job averages",
        )
    if not hasattr(estimator, "partial_fit") and not getattr(estimator, "warm_start", False):
        raise InvalidInput(
            f"{type(estimator).__name__} would begin anew with every fit",
            field="warm_start",
            fix="set warm_start=True, or take an estimator that has partial_fit",
        )


def _arrays(estimator: Any) -> dict[str, Array]:
    framework("sklearn", name="scikit-learn", extra="sklearn")
    if getattr(estimator, "coef_", None) is not None:
        found = {"coef_": estimator.coef_, "intercept_": estimator.intercept_}
    else:
        found = {
            f"{name}.{layer}": array
            for name in ("coefs_", "intercepts_")
            for layer, array in enumerate(getattr(estimator, name, []))
        }
    if not found or not all(isinstance(array, np.ndarray) for array in found.values()):
        raise InvalidModel(
            f"this {type(estimator).__name__} has no weights",
            field="model",
            fix="call initialise(estimator, features=…, classes=…) first; only linear models and perceptrons have some",
        )
    return found
