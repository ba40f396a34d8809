"""Policies by name, their parameters, and what happens when a name or a value is wrong."""

from importlib.metadata import EntryPoint
from typing import Annotated

import pytest
from msgspec import Meta

from tests.unit.policies.worlds import jobs, region, request, view
from vennue import extensions
from vennue.core.errors import Conflict, InvalidInput
from vennue.core.plan import PoolView
from vennue.policies import Policy, PolicyParameters, available, get_policy, load_policies, register, registry


class LongestWait(Policy):
    name = "longest-wait"

    def order(self, view: PoolView):
        return sorted(view.requests, key=lambda request: request.waiting_since)


class PickyParameters(PolicyParameters, frozen=True):
    job: str = "a"
    times: Annotated[int, Meta(ge=1)] = 1


class Picky(Policy):
    name = "picky"
    Parameters = PickyParameters
    parameters: PickyParameters

    def order(self, view: PoolView):
        return [request for request in view.requests if request.job == self.parameters.job] * self.parameters.times


@pytest.fixture(autouse=True)
def _registrations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry.POLICIES, "registered", {})


def installs(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    """Pretend that a distribution installs a policy by an entry point."""
    entry_point = EntryPoint(name, value, "vennue.policies")

    def entry_points(*, group: str, name: str | None = None) -> list[EntryPoint]:
        return [entry_point] if group == "vennue.policies" and name in {None, entry_point.name} else []

    monkeypatch.setattr(extensions, "entry_points", entry_points)


def test_the_policies_of_the_specification_and_the_baselines_of_the_papers_are_built_in():
    assert available() == [
        "random",
        "random-order",
        "fifo",
        "srsf",
        "srsf-job",
        "las",
        "venn-sched",
        "fifo-match",
        "venn",
        "static-partition",
        "client-random",
    ]


@pytest.mark.parametrize("name", [*registry.POLICIES.built_in])
def test_a_policy_is_found_by_its_name(name: str):
    assert get_policy(name).name == name


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(InvalidInput, match=r"no policy 'ven-shed' \(did you mean 'venn-sched'\?\)") as caught:
        get_policy("ven-shed")
    assert (caught.value.field, caught.value.value, caught.value.limit) == ("policy", "ven-shed", available())


def test_a_name_like_no_other_is_answered_with_all():
    with pytest.raises(InvalidInput, match="choose one of random, random-order, fifo"):
        get_policy("zzz")


def test_an_unknown_parameter_is_answered_with_the_nearest():
    with pytest.raises(InvalidInput, match=r"policy 'venn' has no parameter 'epsilom' \(did you mean 'epsilon'\?\)"):
        get_policy("venn", epsilom=2)


@pytest.mark.parametrize("name", ["fifo", "venn-sched", "venn", "fifo-match"])
def test_a_parameter_named_like_python_s_own_is_one_that_is_not_there(name: str):
    with pytest.raises(InvalidInput, match="has no parameter 'self'"):
        get_policy(name, self=1)


def test_a_policy_without_parameters_says_so():
    with pytest.raises(InvalidInput, match=r"policy 'fifo' has no parameter 'epsilon' \(it has no parameters\)"):
        get_policy("fifo", epsilon=2)


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), "much", None])
def test_a_value_that_makes_no_sense_is_refused_by_name(value: object):
    with pytest.raises(InvalidInput, match="policy 'venn' cannot take this value") as caught:
        get_policy("venn", epsilon=value)
    assert caught.value.field == "epsilon"
    assert caught.value.value is value


def test_values_may_be_text_as_a_command_line_gives_them():
    assert repr(get_policy("venn", tiers="4", epsilon="0.5", starvation_limit="10")) == (
        "venn(demand_scope='round', tiers=4, epsilon=0.5, starvation_limit=10.0)"
    )


def test_a_policy_of_ones_own_is_a_name_and_an_order():
    register(LongestWait)
    waited = request("b", waiting_since=-60.0)
    assert jobs(get_policy("longest-wait").plan(view([request("a"), waited])), region(0)) == "ba"
    assert "longest-wait" in available()


def test_a_policy_of_ones_own_may_have_parameters():
    register(Picky)
    assert jobs(get_policy("picky", job="b", times=2).plan(view([request("a"), request("b")])), region(0)) == "bb"
    with pytest.raises(InvalidInput, match="times"):
        get_policy("picky", times=0)


def test_a_class_that_decides_nothing_is_refused_when_it_is_defined():
    with pytest.raises(TypeError, match="Idle must override order or plan"):

        class Idle(Policy):
            name = "idle"


def test_a_class_without_a_name_is_refused_when_it_is_defined():
    with pytest.raises(TypeError, match="Nameless must have a name"):

        class Nameless(Policy):
            def order(self, view: PoolView):
                return view.requests


def test_a_name_that_is_taken_is_not_given_away():
    class Mine(Policy):
        name = "fifo"

        def order(self, view: PoolView):
            return view.requests

    with pytest.raises(Conflict, match=r"'fifo' is vennue\.policies\.fifo\.Fifo already"):
        register(Mine)


def test_a_class_that_is_defined_again_replaces_itself():
    def define() -> type[Policy]:
        class Mine(Policy):
            name = "mine"

            def order(self, view: PoolView):
                return view.requests

        return Mine

    register(define())
    newer = register(define())
    assert type(get_policy("mine")) is newer


def test_only_policy_classes_can_be_registered():
    with pytest.raises(InvalidInput, match="is not a policy class"):
        register(dict)  # type: ignore[type-var]  # the mistake under test


def test_a_policy_that_another_distribution_installs_is_found(monkeypatch: pytest.MonkeyPatch):
    installs(monkeypatch, "their-fifo", "vennue.policies.fifo:Fifo")
    assert "their-fifo" in available()
    assert get_policy("their-fifo").name == "fifo"


def test_an_installed_policy_does_not_replace_a_built_in_one(monkeypatch: pytest.MonkeyPatch):
    installs(monkeypatch, "venn", "vennue.policies.fifo:Fifo")
    assert get_policy("venn").name == "venn"
    assert available().count("venn") == 1


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("vennue_no_such_module:Policy", "does not import: ModuleNotFoundError"),
        ("vennue.policies.fifo:NoSuchClass", "does not import: AttributeError"),
        ("vennue.policies:get_policy", "is not a policy class"),
    ],
)
def test_an_installed_policy_that_is_broken_harms_no_other(monkeypatch: pytest.MonkeyPatch, value: str, complaint: str):
    installs(monkeypatch, "broken", value)
    with pytest.raises(InvalidInput, match=f"policy 'broken', installed as {value}, {complaint}"):
        get_policy("broken")
    assert get_policy("fifo").name == "fifo"


# -- files -----------------------------------------------------------------------------------------------------------

OWN = """
from vennue.policies import Policy

class LongestWait(Policy):
    name = "longest-wait-in-a-file"

    def order(self, view):
        return sorted(view.requests, key=lambda request: request.waiting_since)
"""


def test_a_file_s_policies_are_known_by_their_names(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(OWN)
    assert load_policies(str(file)) == ["longest-wait-in-a-file"]
    assert get_policy("longest-wait-in-a-file").name == "longest-wait-in-a-file"
    assert load_policies(str(file)) == ["longest-wait-in-a-file"]  # again: the newer one takes its place


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x = 1\nimport nothing_of_this_name", "ModuleNotFoundError in own.py, line 2: No module named"),
        ("def broken(:", "SyntaxError in own.py, line 1: invalid syntax"),
        ("\nraise RuntimeError('not today')", "RuntimeError in own.py, line 2: not today"),
        ("open('absent.json')", "FileNotFoundError in own.py, line 1: .*'absent.json'"),
        ("import json\njson.loads('')", "JSONDecodeError in own.py, line 2: "),
        ("x = 1", "defines no policy"),
        ("from vennue.policies.fifo import Fifo", "defines no policy"),
    ],
)
def test_a_policy_file_that_does_not_import_is_refused_with_the_reason(tmp_path, text, reason):
    file = tmp_path / "own.py"
    file.write_text(text)
    with pytest.raises(InvalidInput, match=reason) as caught:
        load_policies(str(file))
    assert (caught.value.field, caught.value.value) == ("policy_files", str(file))


@pytest.mark.parametrize(("name", "reason"), [("absent.py", "there is no file"), ("own.txt", "is no Python file")])
def test_a_policy_file_that_is_not_there_or_no_python_is_refused(tmp_path, name, reason):
    (tmp_path / "own.txt").write_text(OWN)
    with pytest.raises(InvalidInput, match=reason) as caught:
        load_policies(str(tmp_path / name))
    assert caught.value.field == "policy_files"


def test_a_file_s_policy_does_not_take_the_name_of_a_built_in_one(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(OWN.replace("longest-wait-in-a-file", "fifo"))
    with pytest.raises(Conflict, match="fifo"):
        load_policies(str(file))
