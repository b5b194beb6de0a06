"""Lists of context binaries as callers give them, with the options of all and of each."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from openhtp.core import status as st
from openhtp.core.checks import items_of, shown
from openhtp.core.errors import InvalidArgument
from openhtp.options import CONTEXT, ContextOrigin, OptionValues
from openhtp.runtime.binaries.creation import ListedContext
from openhtp.runtime.binaries.opening import Given, check_given, in_memory, open_given

if TYPE_CHECKING:
    from openhtp.options._arguments import ContextArguments


def list_wanted(
    binaries: Iterable[Given],
    configs: Sequence[ContextArguments] | None,
    options: ContextArguments,
    param: object,
    read: Callable[[ContextArguments, ContextOrigin], OptionValues],
) -> list[ListedContext]:
    """The contexts of a list, all arguments checked: those for the list, and those for single contexts."""
    items = None if isinstance(binaries, str) or in_memory(binaries) else items_of(binaries)
    if not items:
        raise InvalidArgument(
            f"binaries is {shown(binaries)}; expected a list of at least one binary",
            st.QNN_CONTEXT_ERROR_INVALID_ARGUMENT,
        )
    if "callback" in options:
        raise InvalidArgument(
            "a callback is for create_context_from_binary only: contexts of a list read their binaries themselves",
            st.QNN_CONTEXT_ERROR_INVALID_CONFIG,
        )
    for binary in items:
        check_given(binary)
    own = [{}] * len(items) if configs is None else items_of(configs)
    if own is None or len(own) != len(items) or not all(isinstance(config, Mapping) for config in own):
        raise InvalidArgument(
            f"configs is {shown(configs)}; expected one mapping of options for each of {len(items)} binaries",
            st.QNN_CONTEXT_ERROR_INVALID_ARGUMENT,
        )
    read(options, ContextOrigin.LIST)
    for place, config in enumerate(own):
        _refuse_group_options(place, config)
    return [
        ListedContext(
            functools.partial(open_given, item),
            read({**options, **config}, ContextOrigin.LIST),
            _param(param, place),
        )
        for place, (item, config) in enumerate(zip(items, own, strict=True))
    ]


def _param(given: object, place: int) -> object:
    return place if given is None else given


def _refuse_group_options(place: int, config: Mapping[str, object]) -> None:
    for name in config:
        if CONTEXT.option(name).origins == (ContextOrigin.LIST,):
            raise InvalidArgument(
                f"configs[{place}] has {name}, which is for the list as a whole; give it as an option of the call",
                st.QNN_CONTEXT_ERROR_INVALID_CONFIG,
            )
