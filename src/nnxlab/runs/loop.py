"""Training a cell: initial weights on the mesh, then one compiled step over and over."""

import dataclasses
import time
from collections.abc import Callable, Iterator

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from nnxlab import sharding
from nnxlab.model import inputs
from nnxlab.model.inputs import Batch
from nnxlab.runs import optimizer
from nnxlab.runs.cells import Cell
from nnxlab.runs.step import plan


@dataclasses.dataclass
class Run:
    """A training run.

    Attributes:
      state: ``params``, ``opt`` and ``step``, sharded on the mesh.
      traces: How often the step was traced; 1 after the first step and ever after.
    """

    cell: Cell
    mesh: Mesh
    state: dict
    step: Callable
    batch_sharding: NamedSharding
    traces: int = 0

    def advance(self, batch: Batch) -> dict[str, float]:
        """One step on ``batch`` (host arrays, [B, S]); the figures of the step, in nats."""
        inputs.check(self.cell.config, batch)
        placed = Batch(*(_placed(field, self.batch_sharding) for field in batch))
        start = time.monotonic()
        with jax.set_mesh(self.mesh):
            self.state, figures = self.step(self.state, placed)
        figures = {name: float(value) for name, value in jax.device_get(figures).items()}
        seconds = time.monotonic() - start
        return figures | {"seconds": seconds, "tokens_per_second": batch.tokens.size / seconds}


def prepare(
    cell: Cell,
    mesh: Mesh,
    *,
    steps: int,
    seed: int = 0,
    batch: int = 8,
    accumulate: int = 1,
    learning_rate: float = optimizer.LEARNING_RATE,
    tolerance: float = 0.02,
    quick: bool = False,
) -> Run:
    """Initial weights on the mesh and a step that is not compiled yet.

    Args:
      cell: What to train.
      mesh: Where.
      steps: Length of the schedule.
      seed: Of the initial weights.
      batch: Rows a step, for checking that they divide.
      accumulate: Microbatches a step; the gradients are those of the full batch.
      learning_rate: Its peak.
      tolerance: Share of the weights that may be replicated (MaxText's sharding_tolerance).
      quick: Compile faster and run slower: for a handful of steps.

    Raises:
      ShardingError: The snapshot leaves too much replicated, which is how bug 3 turns fatal.
      ValueError: The batch does not divide by the mesh or by ``accumulate``.
    """
    rows = sharding.rows(cell.shapes, cell.names, mesh)
    if mesh.size > 1:
        sharding.check_sharded(rows, tolerance)
    planned = plan(
        cell, mesh, steps=steps, batch=batch, accumulate=accumulate, learning_rate=learning_rate
    )
    shapes, host = planned.state, cell.initial(seed)
    params = {path: _placed(host[path], s.sharding) for path, s in shapes["params"].items()}
    opt_shardings = jax.tree.map(lambda leaf: leaf.sharding, shapes["opt"])
    opt = jax.jit(planned.rule.init, out_shardings=opt_shardings)(params)
    count = _placed(np.zeros((), np.int32), shapes["step"].sharding)
    state = {"params": params, "opt": opt, "step": count}
    run = Run(cell, mesh, state, None, planned.batch_sharding)

    def step(state, batch):
        run.traces += 1
        return planned(state, batch)

    run.step = planned.jitted(step, quick)
    return run


def rows(run: Run, batches: Iterator[Batch], steps: int) -> Iterator[dict[str, float]]:
    """One dict of figures a step, as soon as it is there, with ``step`` from 0."""
    first = int(run.state["step"])
    for _ in range(first):  # a resumed run goes on where the data were
        next(batches)
    for number in range(first, steps):
        yield {"step": number, **run.advance(next(batches))}


def _placed(host: np.ndarray, sharding: NamedSharding) -> jax.Array:
    # From a callback and not by device_put: the same on one process and on several.
    return jax.make_array_from_callback(host.shape, sharding, host.__getitem__)
