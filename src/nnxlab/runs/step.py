"""One training step of a cell: what it computes, and how its state is sharded."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from nnxlab import devices, rules
from nnxlab.compat import Names
from nnxlab.model import loss
from nnxlab.model.inputs import Batch
from nnxlab.runs import cells, optimizer
from nnxlab.runs.cells import Cell

FIGURES = ("loss", "lm_loss", "mtp_loss", "grad_norm", "mtp_grad_norm", "mtp_acceptance")


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """A training step, neither compiled nor given any array.

    Attributes:
      cell: What is trained.
      mesh: Where; its devices may be those of a topology that is not there.
      rule: The optimizer.
      accumulate: Microbatches a step.
      state: ``params``, ``opt`` and ``step`` as ShapeDtypeStructs with their shardings.
      batch_sharding: That of each field of a batch, [B, S].
    """

    cell: Cell
    mesh: Mesh
    rule: optax.GradientTransformation
    accumulate: int
    state: dict
    batch_sharding: NamedSharding

    def __call__(self, state: dict, batch: Batch):
        """The state after a step on ``batch`` and the figures of the step, traceable."""
        gradients, figures = accumulated(self.cell, state["params"], batch, self.accumulate)
        updates, opt = self.rule.update(gradients, state["opt"], state["params"])
        params = optax.apply_updates(state["params"], updates)
        mtp = {path: g for path, g in gradients.items() if path.startswith("mtp_block.")}
        figures["grad_norm"] = optax.tree.norm(gradients)
        figures["mtp_grad_norm"] = optax.tree.norm(mtp)
        return {"params": params, "opt": opt, "step": state["step"] + 1}, figures

    def jitted(self, function=None, quick: bool = False):
        """The step (or ``function`` around it) under jit: state donated, shardings fixed."""
        shardings = jax.tree.map(lambda leaf: leaf.sharding, self.state)
        return jax.jit(
            function or self,
            donate_argnums=0,
            out_shardings=(shardings, NamedSharding(self.mesh, PartitionSpec())),
            compiler_options=devices.one_shot() if quick else None,
        )

    def lower(self, rows: int, length: int, *, forward: bool = False) -> jax.stages.Lowered:
        """The step, or its forward pass alone, lowered for [rows, length] without any array."""
        field = jax.ShapeDtypeStruct((rows, length), jnp.int32, sharding=self.batch_sharding)
        batch = Batch(*[field] * len(Batch._fields))

        def losses(params, batch):
            scores, collected = self.cell.forward(params, batch)
            return scores.losses, self.cell.terms.loss(collected, self.cell.config)

        with jax.set_mesh(self.mesh):
            if forward:
                return jax.jit(losses).lower(self.state["params"], batch)
            return self.jitted().lower(self.state, batch)


def plan(
    cell: Cell,
    mesh: Mesh,
    *,
    steps: int,
    batch: int = 8,
    accumulate: int = 1,
    learning_rate: float = optimizer.LEARNING_RATE,
    names: dict[str, Names] | None = None,
) -> Step:
    """The step of ``cell`` on ``mesh``.

    Args:
      cell: What to train.
      mesh: Where.
      steps: Length of the schedule.
      batch: Rows a step, for checking that they divide.
      accumulate: Microbatches a step; the gradients are those of the full batch.
      learning_rate: Its peak.
      names: Logical axes to shard by, by path (default: the cell's snapshot).

    Raises:
      ShardingError: The names do not fit the mesh.
      ValueError: The batch does not divide by the mesh or by ``accumulate``.
    """
    batch_sharding = _batch_sharding(mesh, batch, accumulate)
    rule, whole = optimizer.adamw(steps, learning_rate), NamedSharding(mesh, PartitionSpec())
    names = cell.names if names is None else names

    def placed(leaf, sharding):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    params = {
        path: jax.ShapeDtypeStruct(
            shape, jnp.float32, sharding=NamedSharding(mesh, rules.resolve(names[path], mesh))
        )
        for path, shape in cell.shapes.items()
    }
    opt = optax.tree_utils.tree_map_params(
        rule,
        lambda leaf, param: placed(leaf, param.sharding),
        jax.eval_shape(rule.init, params),
        params,
        transform_non_params=lambda leaf: placed(leaf, whole),
    )
    count = jax.ShapeDtypeStruct((), jnp.int32, sharding=whole)
    state = {"params": params, "opt": opt, "step": count}
    return Step(cell, mesh, rule, accumulate, state, batch_sharding)


def accumulated(cell: Cell, params: cells.Params, batch: Batch, accumulate: int):
    """Gradients and figures of the full batch, summed over ``accumulate`` microbatches.

    Each microbatch is divided by the full batch's counts and not by its own, for the MTP term as
    for the next-token one, so the sum is exact. (Dividing an averaged MTP loss once more shrinks
    its gradient and leaves the logged value as it was: MaxText at a8427ccb7.)
    """
    totals = cells.totals(cell.config, batch.target_mask)
    gradient = jax.value_and_grad(lambda p, b: _parts(cell, p, b, totals), has_aux=True)
    if accumulate == 1:
        (_, figures), gradients = gradient(params, batch)
        return gradients, figures
    micro = jax.tree.map(lambda x: x.reshape(accumulate, -1, x.shape[-1]), batch)

    def add(total, one):
        (_, figures), gradients = gradient(params, one)
        return jax.tree.map(jnp.add, total, (gradients, figures)), None

    shapes = jax.eval_shape(gradient, params, jax.tree.map(lambda x: x[0], micro))
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), (shapes[1], shapes[0][1]))
    return jax.lax.scan(add, zeros, micro)[0]


def _parts(cell: Cell, params: cells.Params, batch: Batch, totals):
    scores, collected = cell.forward(params, batch)
    counted, pooled = totals
    own = cells.totals(cell.config, batch.target_mask)[1]
    lm = scores.losses / (counted + loss.EPSILON)
    share = (own + loss.EPSILON) / (pooled + loss.EPSILON)
    mtp = cell.terms.loss(collected, cell.config) * share
    accepted = loss.mtp_acceptance(
        scores.predictions,
        cells.sown_anywhere(collected, "predictions"),
        cells.sown_anywhere(collected, "mask"),
    )
    return lm + mtp, {
        "loss": lm + mtp,
        "lm_loss": lm,
        "mtp_loss": mtp,
        "mtp_acceptance": accepted * share,
    }


def _batch_sharding(mesh: Mesh, batch: int, accumulate: int) -> NamedSharding:
    axes = tuple(axis for axis in rules.BATCH_AXES if mesh.shape.get(axis, 1) > 1)
    parts = math.prod(mesh.shape[axis] for axis in axes)
    if batch % accumulate or batch % parts:
        raise ValueError(
            f"a batch of {batch} rows divides neither by accumulate={accumulate} nor by the "
            f"{parts} parts of mesh axes {', '.join(axes) or 'none'}; both must divide it"
        )
    return NamedSharding(mesh, PartitionSpec(axes or None, None))
