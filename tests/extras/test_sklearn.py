"""scikit-learn estimators as named arrays: they predict, and learn on, from the weights that they are given."""

import numpy as np
import pytest

from vennue.core.errors import InvalidInput, InvalidModel
from vennue.integrations.sklearn import initialise, load, weights

pytestmark = pytest.mark.extras
linear_model = pytest.importorskip(
    "sklearn.linear_model", reason="scikit-learn is not installed: `make test-rest` installs it"
)
neural_network = pytest.importorskip("sklearn.neural_network")

GENERATOR = np.random.default_rng(4)
CENTRES = np.array([[0.0, 4.0], [4.0, 0.0], [-4.0, -4.0]])
LABELS = np.repeat(["east", "north", "west"], 40)
X = np.repeat(CENTRES, 40, axis=0) + GENERATOR.normal(size=(120, 2))


def logistic():
    return linear_model.LogisticRegression(warm_start=True)


def perceptron():
    return neural_network.MLPClassifier((5, 4), solver="sgd", learning_rate_init=0.1, random_state=1)


def descent():
    return linear_model.SGDClassifier(loss="log_loss", random_state=1)


CLASSIFIERS = pytest.mark.parametrize("make", [logistic, perceptron, descent])


@CLASSIFIERS
def test_estimators_initialised_alike_have_the_same_names_and_numbers(make):
    one, other = make(), make()
    for estimator in (one, other):
        initialise(estimator, features=2, classes=["west", "north", "east"])
    assert weights(one).keys() == weights(other).keys()
    assert all(np.array_equal(weights(one)[name], weights(other)[name]) for name in weights(one))
    assert one.classes_.tolist() == ["east", "north", "west"]


def test_names_and_shapes_are_those_of_scikit_learn():
    shapes: dict[str, tuple[int, ...]] = {}
    for make in (logistic, perceptron):
        estimator = make()
        initialise(estimator, features=2, classes=range(3))
        shapes |= {name: array.shape for name, array in weights(estimator).items()}
    assert shapes == {
        "coef_": (3, 2),
        "intercept_": (3,),
        "coefs_.0": (2, 5),
        "coefs_.1": (5, 4),
        "coefs_.2": (4, 3),
        "intercepts_.0": (5,),
        "intercepts_.1": (4,),
        "intercepts_.2": (3,),
    }


@CLASSIFIERS
def test_loaded_weights_predict_as_where_they_come_from(make):
    trained, other = make(), make()
    trained.fit(X, LABELS)
    initialise(other, features=2, classes=np.unique(LABELS))
    load(other, weights(trained))
    assert trained.score(X, LABELS) > 0.9
    assert np.array_equal(other.predict(X), trained.predict(X))


@pytest.mark.parametrize("make", [perceptron, descent])
def test_training_goes_on_from_loaded_weights_on_a_device_that_lacks_a_class(make):
    trained, other = make(), make()
    trained.fit(X, LABELS)
    initialise(other, features=2, classes=np.unique(LABELS))
    load(other, weights(trained))
    before = weights(other)
    two = LABELS != "west"
    other.partial_fit(X[two], LABELS[two])
    after = weights(other)
    assert any(not np.array_equal(before[name], after[name]) for name in before)
    assert other.score(X, LABELS) > 0.9  # from zeros, with two classes of three, it would be 0.67 at most


def test_logistic_regression_goes_on_from_loaded_weights():
    trained, other = logistic(), logistic()
    trained.fit(X, LABELS)
    initialise(other, features=2, classes=np.unique(LABELS))
    load(other, weights(trained))
    other.fit(X, LABELS)
    assert other.n_iter_.max() <= 1  # it begins where the first one has converged


def test_a_classifier_of_two_classes_has_one_row():
    estimator = logistic()
    initialise(estimator, features=4, classes=[0, 1])
    assert weights(estimator)["coef_"].shape == (1, 4)
    assert estimator.predict(np.ones((1, 4))).shape == (1,)


@pytest.mark.parametrize(
    "make",
    [
        linear_model.SGDRegressor,
        lambda: neural_network.MLPRegressor(hidden_layer_sizes=(8,), learning_rate_init=0.02, random_state=1),
    ],
)
def test_regressors_learn_from_loaded_weights(make):
    target = X @ np.array([1.0, -2.0])
    one, other = make(), make()
    for estimator in (one, other):
        initialise(estimator, features=2)
    for _ in range(60):
        one.partial_fit(X, target)
    load(other, weights(one))
    assert np.array_equal(other.predict(X), one.predict(X))
    other.partial_fit(X, target)
    assert other.score(X, target) > 0.9


@pytest.mark.parametrize(
    ("make", "arguments", "error", "message"),
    [
        (descent, {"features": 2}, InvalidInput, "classes: a classifier needs two classes or more"),
        (descent, {"features": 2, "classes": [1]}, InvalidInput, "classes: a classifier needs two classes"),
        (linear_model.LogisticRegression, {"features": 2, "classes": [0, 1]}, InvalidInput, "set warm_start=True"),
        (linear_model.LinearRegression, {"features": 2}, InvalidInput, "would begin anew with every fit"),
        (lambda: linear_model.SGDClassifier(average=True), {"features": 2, "classes": [0, 1]}, InvalidInput, "average"),
    ],
)
def test_what_cannot_be_initialised_is_refused_with_the_fix(make, arguments, error, message):
    with pytest.raises(error, match=message):
        initialise(make(), **arguments)


def test_an_estimator_without_weights_is_refused_with_the_fix():
    with pytest.raises(InvalidModel, match=r"this SGDClassifier has no weights \(call initialise"):
        weights(descent())


def test_what_does_not_fit_is_refused_by_name_and_changes_nothing():
    estimator = descent()
    initialise(estimator, features=2, classes=range(3))
    with pytest.raises(InvalidModel, match=r"intercept_: its shape \(2,\) is not this model's \(3,\)"):
        load(estimator, {"coef_": np.ones((3, 2)), "intercept_": np.zeros(2)})
    assert not estimator.coef_.any()
