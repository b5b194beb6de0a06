"""Operators that rename axes or repeat elements: Reshape and its kin, Expand, Tile, Transpose, Identity."""

from __future__ import annotations

from openhtp.frontend import values as vs
from openhtp.frontend.site import Site
from openhtp.frontend.values import OnnxValue


def _same_elements(site: Site) -> None:
    """The output's shape is known by now, so all that is left is to rename the axes."""
    value, (dtype, quant) = site.value(0), site.stored_as()
    shape = site.out_type().shape
    if value.data is not None and (value.dtype, value.quant) == (dtype, quant):
        made = OnnxValue(site.node.outputs[0], shape, dtype, quant, value.data.reshape(shape))
        site.result(0, made)
        return
    site.emit("Reshape", [site.in_order(0)], [site.give()])


def _transpose(site: Site) -> None:
    """No node: the same tensors, seen with their axes in another order."""
    value = site.value(0)
    perm = [site.axis(axis, value.rank) for axis in site.attr("perm") or reversed(range(value.rank))]
    if sorted(perm) != list(range(value.rank)):
        site.refuse(f"perm {perm} does not name each of {value.rank} axes once")
    shape = tuple(value.shape[axis] for axis in perm)
    dtype, quant = site.stored_as()
    made = OnnxValue(site.node.outputs[0], shape, value.dtype, vs.moved_encoding(value.quant, tuple(perm)))
    made.forms = vs.transposed_forms(value, perm)
    if value.data is not None:
        made.data = value.data.transpose(perm)
    site.result(0, site.assembly.converted(made, dtype, quant))


def _identity(site: Site) -> None:
    if site.is_used(1):
        site.refuse("its second output (mask) is used", "only the first is supported")
    if site.node.op_type == "Dropout" and site.has(2) and bool(site.constant(2)):
        site.refuse("it is in training mode")
    site.result(0, site.assembly.converted(site.value(0), *site.stored_as()))


def _expand(site: Site) -> None:
    value, shape = site.value(0), site.out_type().shape
    whole = (1,) * (len(shape) - value.rank) + value.shape
    multiples = [size // given if given == 1 else 1 for size, given in zip(shape, whole, strict=True)]
    _tile_by(site, whole, multiples)


def _tile(site: Site) -> None:
    _tile_by(site, site.type(0).shape, site.ints(1))


def _tile_by(site: Site, whole: tuple[int, ...], multiples: list[int]) -> None:
    value = site.value(0)
    if value.shape != whole:
        value = site.reshaped(value, whole)
    if all(times == 1 for times in multiples):
        # No node: the vendor's library does not survive a Tile that repeats nothing.
        site.result(0, site.assembly.converted(value, *site.stored_as()))
        return
    perm = next(iter(value.forms), vs.identity(len(whole)))
    params = {"multiples": vs.permuted(multiples, perm)}
    site.emit_kept("Tile", [site.assembly.form(value, perm)], [site.give(0, perm)], params)


RULES = {
    "Reshape": _same_elements,
    "Flatten": _same_elements,
    "Squeeze": _same_elements,
    "Unsqueeze": _same_elements,
    "Transpose": _transpose,
    "Identity": _identity,
    "Dropout": _identity,
    "Expand": _expand,
    "Tile": _tile,
}

KEEPS = ("Dropout", "Expand", "Flatten", "Identity", "Reshape", "Squeeze", "Tile", "Transpose", "Unsqueeze")
