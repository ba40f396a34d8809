"""What users and other distributions add to Vennue by name: policies and strategies.

Names are taken once: neither a registration nor an entry point replaces what comes with Vennue. What another
distribution installs is imported when it is first asked for, and one that does not import harms no other.
"""

import hashlib
import inspect
from collections.abc import Iterable
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from vennue.core.errors import Conflict, InvalidInput, described, did_you_mean


class Named(Protocol):
    """What can be found by its name."""

    name: ClassVar[str]


B = TypeVar("B", bound=Named)
K = TypeVar("K", bound=type[Named])


class Extensions(Generic[B]):
    """Classes with one base, by name.

    Args:
        base: the class that all of them derive from.
        built_in: those that come with Vennue.
        kind: what one of them is called in errors.
        group: the group of entry points by which other distributions install some.
        files_field: the setting that names files with some, for errors.
        derive_from: where users find ``base``, for errors.
    """

    def __init__(
        self,
        base: type[Any],
        built_in: Iterable[type[B]],
        *,
        kind: str,
        group: str,
        files_field: str,
        derive_from: str,
    ) -> None:
        self.built_in: dict[str, type[B]] = {one.name: one for one in built_in}
        self.registered: dict[str, type[B]] = {}
        self.loaded: dict[str, list[str]] = {}
        """The names that each file defines which was loaded."""
        self._base = base
        self._kind = kind
        self._group = group
        self._files_field = files_field
        self._derive_from = derive_from

    def find(self, name: str) -> type[B]:
        """The class with this name.

        Raises:
            InvalidInput: there is none (the error suggests the nearest), or the distribution that installed it does
                not import.
        """
        found = self.built_in.get(name) or self.registered.get(name) or self._installed(name)
        if found is None:
            names = self.available()
            raise InvalidInput(
                f"there is no {self._kind} {name[:80]!r}",
                field=self._kind,
                value=name[:80],
                limit=names,
                fix=did_you_mean(name, names, "choose one of " + ", ".join(names)),
            )
        return found

    def available(self) -> list[str]:
        """All names, those that come with Vennue first."""
        others = {*self.registered, *(entry_point.name for entry_point in entry_points(group=self._group))}
        return [*self.built_in, *sorted(others - self.built_in.keys())]

    def register(self, cls: K) -> K:
        """Make a class known by its name in this process; a decorator. Registering a newer version replaces it.

        Raises:
            InvalidInput: it does not derive from the base.
            Conflict: another class has this name.
        """
        one = self._checked(cls, repr(cls))
        name = one.name
        known = self.built_in.get(name) or self.registered.get(name)
        if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise Conflict(
                f"{self._kind} {name!r} is {known.__module__}.{known.__qualname__} already",
                field="name",
                value=name,
                fix="give yours another name",
            )
        self.registered[name] = one
        return cls

    def load(self, path: str) -> list[str]:
        """Register the classes that a Python file defines; their names. A file loaded anew replaces its own.

        Raises:
            InvalidInput: the file is not there, does not import (the error says why), or defines none.
            Conflict: another class has one of the names.
        """
        module_name = f"vennue_{self._files_field}_" + hashlib.sha256(path.encode()).hexdigest()[:16]
        if not Path(path).is_file():
            raise InvalidInput(
                f"there is no file {path}", field=self._files_field, value=path, fix="check its name and folder"
            )
        spec = spec_from_file_location(module_name, path)
        if spec is None or spec.loader is None:
            raise InvalidInput(
                f"{path} is no Python file", field=self._files_field, value=path, fix="give a file that ends in .py"
            )
        module = module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except Exception as error:  # a file of somebody's own may raise anything
            raise InvalidInput(
                f"the {self._kind} file {path} does not import: {described(error, module_name)}",
                field=self._files_field,
                value=path,
                fix="correct it",
            ) from error
        names = [
            self.register(self._checked(value, path)).name
            for value in vars(module).values()
            if isinstance(value, type) and value.__module__ == module_name
            if issubclass(value, self._base) and not inspect.isabstract(value)
        ]
        if not names:
            raise InvalidInput(
                f"{path} defines no {self._kind}",
                field=self._files_field,
                value=path,
                fix=f"derive one from {self._derive_from}",
            )
        self.loaded[path] = names
        return names

    def _installed(self, name: str) -> type[B] | None:
        for entry_point in entry_points(group=self._group, name=name):
            where = f"{self._kind} {name!r}, installed as {entry_point.value},"
            try:
                found = entry_point.load()
            except Exception as error:  # a third party's module may raise anything when it is imported
                raise InvalidInput(
                    f"{where} does not import: {error!r}",
                    field=self._kind,
                    value=name,
                    fix="repair or remove the distribution that installs it",
                ) from error
            return self._checked(found, where)
        return None

    def _checked(self, found: object, where: str) -> type[B]:
        if isinstance(found, type) and issubclass(found, self._base):
            return found
        raise InvalidInput(
            f"{where} is not a {self._kind} class",
            field=self._kind,
            fix=f"derive it from {self._derive_from}",
        )
