"""The sown variable types of multi-token prediction and the collector that cannot miss them."""

from flax import nnx

from nnxlab.model.scan_axis import dotted


class mtp_losses(nnx.Intermediate):  # noqa: N801 - MaxText names the type as Linen's collection
    """Summed cross-entropy (``losses``) and count of positions (``weights``) of each MTP depth."""


class mtp_acceptance(nnx.Intermediate):  # noqa: N801 - as above
    """Predicted tokens (``predictions``) and counted positions (``mask``) of each MTP depth."""


class MissingCollectionError(LookupError):
    """A collection that the config promises was not filled by the forward."""


def most_derived_first(types: tuple[type, ...]) -> list[type]:
    """``types`` so ordered that none comes after its parent; by name where that leaves a choice.

    The name makes it one order for every order of the same types: a sown type that is not listed
    and has two listed parents goes to the same one of them.
    """
    return sorted(types, key=lambda kind: (-len(kind.__mro__), kind.__module__, kind.__qualname__))


def collect(model: nnx.Module, *types: type[nnx.Variable]) -> dict[str, nnx.State]:
    """Pops the sown variables of each of ``types`` from ``model``, in whatever order they come.

    nnx matches filters by isinstance and the first match wins, so a parent that is popped first
    takes its children's variables; here the children are always popped first.

    Returns:
      A state for every type, under the type's name, as Linen names its collections; empty where
      nothing of that type was sown.

    Raises:
      ValueError: Two different types share a name.
    """
    types = tuple(dict.fromkeys(types))
    names = [kind.__name__ for kind in types]
    if len(set(names)) != len(types):
        raise ValueError(f"two sown variable types share a name: {', '.join(sorted(names))}")
    return {kind.__name__: nnx.pop(model, kind) for kind in most_derived_first(types)}


def required(collected: dict[str, nnx.State], collection: str, *path: str):
    """The value sown at ``path`` of ``collection``.

    Raises:
      MissingCollectionError: Nothing was sown there; names what was asked for and what there is.
    """
    flat = dict(nnx.to_flat_state(collected.get(collection, nnx.State({}))))
    if path not in flat:
        there = [f"{c}: {dotted(p)}" for c in collected for p, _ in nnx.to_flat_state(collected[c])]
        raise MissingCollectionError(
            f"{collection}: {dotted(path)} was promised by the config and not collected; collected "
            f"were {', '.join(sorted(there)) or 'no variables at all'}. Either the forward did not "
            "sow it, or a pop of a parent type took it before: give all types to one call of "
            "nnxlab.model.sown.collect."
        )
    return flat[path].get_value()
