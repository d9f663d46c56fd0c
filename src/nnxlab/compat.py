"""How this flax keeps a variable's sharding metadata.

The metadata key was ``sharding`` up to flax 0.11.1, ``sharding_names`` up to 0.12.3 and is
``out_sharding`` since 0.12.4; read under another version's key, it is None and every weight is
replicated without an error (tpu-inference #3004). All reading and writing of it is done here.
"""

from collections.abc import Callable

import jax
from flax import nnx
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

SHARDING_KEYS = ("out_sharding", "sharding_names", "sharding")

Names = tuple[str | tuple[str, ...] | None, ...]


def logical_axes(variable: nnx.Variable) -> Names | None:
    """The logical axis names that ``variable`` declares, or None where it declares none.

    Accepts what flax accepts: a tuple or list, a PartitionSpec, a NamedSharding (its spec).

    Raises:
      ValueError: Two metadata keys hold different names.
    """
    found = {}
    stored = variable.get_metadata()
    for key in SHARDING_KEYS:
        value = stored.get(key)
        if isinstance(value, NamedSharding):
            value = value.spec
        if isinstance(value, str):
            value = (value,)
        if isinstance(value, PartitionSpec | tuple | list):
            found[key] = tuple(value)
    if len(set(found.values())) > 1:
        raise ValueError(f"sharding metadata disagrees with itself: {found}")
    return next(iter(found.values()), None)


def with_logical_axes(variable: nnx.Variable, names: Names) -> nnx.Variable:
    """A copy of ``variable`` that declares ``names`` under every key it already uses."""
    return variable.replace(**{key: names for key in _keys_in_use(variable)})


def set_logical_axes(variable: nnx.Variable, names: Names) -> None:
    """Makes ``variable`` itself declare ``names`` under every key it already uses."""
    variable.set_metadata(**{key: names for key in _keys_in_use(variable)})


def param(value, names: Names) -> nnx.Param:
    """A parameter that declares ``names`` and is not placed on a mesh at creation."""
    return nnx.Param(value, out_sharding=names, eager_sharding=False)


def eval_shape(function: Callable, *args):
    """``nnx.eval_shape`` that lets logical names be, also where a mesh is set.

    Under ``jax.set_mesh`` flax takes the names that a variable declares for axes of that mesh and
    raises for every one that is a logical name.
    """
    with jax.sharding.use_abstract_mesh(AbstractMesh((), ())):
        return nnx.eval_shape(function, *args)


def _keys_in_use(variable: nnx.Variable) -> list[str]:
    stored = variable.get_metadata()
    return [key for key in SHARDING_KEYS if stored.get(key) is not None] or [SHARDING_KEYS[0]]
