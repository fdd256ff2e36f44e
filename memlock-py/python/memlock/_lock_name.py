"""Names of locks that depend on the arguments of a call: "order:{order_id}"."""

from __future__ import annotations

import enum
import functools
import inspect
import string
import uuid
from collections.abc import Mapping
from datetime import date
from typing import Any, Callable, Union

from memlock._functions import name_of

# A template, or a function that gets the arguments of the call and returns the name.
NameOf = Union[str, Callable[..., Union[str, bytes]]]

# The texts of others need not identify them: those of most objects show an address.
_PLAIN = (str, int, uuid.UUID, date, enum.Enum)


class LockName:
    """How the name of the lock is made of the arguments of a function."""

    def __init__(self, name: NameOf, function: Callable[..., Any]) -> None:
        """Raise TypeError for a field that is no parameter of the function."""
        self._name = name
        self._of = name_of(function)
        self._signature = signature_of(function)
        fields = fields_of(name) if isinstance(name, str) else []
        kinds = [parameter.kind for parameter in self._signature.parameters.values()]
        if inspect.Parameter.VAR_KEYWORD in kinds:
            return
        for field in fields:
            if field not in self._signature.parameters:
                names = ", ".join(self._signature.parameters) or "none"
                raise TypeError(
                    f'The name of the lock "{name}" has the field "{field}", which is no parameter '
                    f"of {self._of}. Its parameters: {names}."
                )

    def of(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> str | bytes:
        """Return the name for a call with these arguments."""
        if not isinstance(self._name, str):
            return self._name(*arguments, **keywords)
        # Raises the TypeError of wrong arguments, as the call would.
        bound = self._signature.bind(*arguments, **keywords)
        bound.apply_defaults()
        return fill(self._name, named(bound), self._of)


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Return the parameters of calls of a function."""
    # A partial object that was made to look like its function has lost the arguments it binds.
    is_partial = isinstance(function, functools.partial)
    return inspect.signature(function, follow_wrapped=not is_partial)


def fields_of(template: str) -> list[str]:
    """Return the first names of the fields of a template: "order" of "{order.pk}".

    Raises TypeError for a field without a name.
    """
    names = []
    for _, field, _, _ in string.Formatter().parse(template):
        if field is None:
            continue
        first = field.split(".")[0].split("[")[0]
        if not first.isidentifier():
            raise TypeError(
                f'The name of the lock "{template}" has the field "{{{field}}}": name a parameter, '
                'such as "{order_id}". Write braces that are a part of the name twice.'
            )
        names.append(first)
    return names


def fill(template: str, values: Mapping[str, Any], of: str) -> str:
    """Return the template with its fields replaced.

    Raises TypeError for a value whose text may differ from call to call, or be the same for two.
    """
    return _Formatter(template, of).vformat(template, (), values)


def named(bound: inspect.BoundArguments) -> dict[str, Any]:
    """Return the arguments of a call by their names."""
    values = dict(bound.arguments)
    for parameter in bound.signature.parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            values.update(values.pop(parameter.name))
    return values


class _Formatter(string.Formatter):
    def __init__(self, template: str, of: str) -> None:
        self._template = template
        self._of = of

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> Any:
        found = super().get_field(field_name, args, kwargs)
        if not isinstance(found[0], _PLAIN):
            raise TypeError(
                f'The lock "{self._template}" of {self._of}: "{{{field_name}}}" is a '
                f"{type(found[0]).__name__}, whose text need not identify it. Name an attribute "
                'such as "{order.pk}", or pass a function that returns the name.'
            )
        return found

    def get_value(self, key: Any, args: Any, kwargs: Any) -> Any:
        try:
            return kwargs[key]
        except KeyError:
            raise TypeError(
                f'The lock "{self._template}" of {self._of}: the call has no argument "{key}".'
            ) from None
