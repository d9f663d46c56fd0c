"""What a run is made of: sizes, mesh, data, schedule; for the command line and for Python."""

import argparse
import dataclasses
import json
from collections.abc import Iterator

from jax.sharding import Mesh

from nnxlab import devices
from nnxlab.model.config import DeepSeekConfig, config_named
from nnxlab.model.inputs import Batch
from nnxlab.runs import cells, data, loop, optimizer
from nnxlab.runs.cells import Cell


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setup:
    """Everything about a run but its cell and its bugs.

    Attributes:
      config: Sizes.
      mesh: Where.
      steps: How many, and the length of the schedule.
      batch: Rows a step.
      length: Tokens a row.
      data: A key of ``data.SOURCES``.
      learning_rate: Its peak.
      seed: Of the weights and the data.
      accumulate: Microbatches a step.
      quantization: A key of ``quantization.PROVIDERS``, for the cells that quantize.
      quick: Compile faster and run slower: for a handful of steps.
    """

    config: DeepSeekConfig
    mesh: Mesh
    steps: int = 20
    batch: int = 8
    length: int = 128
    data: str = "synthetic"
    learning_rate: float = optimizer.LEARNING_RATE
    seed: int = 0
    accumulate: int = 1
    quantization: str = "fp8_full"
    quick: bool = False

    @property
    def settings(self) -> dict:
        """What makes a run this one, as JSON takes it: all but where and how fast it computes."""
        elsewhere = {"config", "mesh", "accumulate", "quick"}
        asked = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        sizes = dataclasses.asdict(self.config.replace(remat_policy="none"))
        kept = {name: value for name, value in asked.items() if name not in elsewhere} | sizes
        return json.loads(json.dumps(kept))

    def build(self, cell: str, broken=()) -> Cell:
        """The cell called ``cell`` with the bugs ``broken``; raises as ``cells.build``."""
        return cells.build(cell, self.config, broken, self.quantization)

    def prepare(self, cell: Cell) -> loop.Run:
        """Initial weights on the mesh; raises as ``loop.prepare``."""
        return loop.prepare(
            cell,
            self.mesh,
            steps=self.steps,
            seed=self.seed,
            batch=self.batch,
            accumulate=self.accumulate,
            learning_rate=self.learning_rate,
            quick=self.quick,
        )

    def batches(self) -> Iterator[Batch]:
        """The run's batches, from the first on; raises as the data source."""
        return data.SOURCES[self.data](self.config, self.batch, self.length, self.seed)


def from_arguments(arguments: argparse.Namespace) -> Setup:
    """The setup that a command line of ``options.add`` asks for.

    Raises:
      ValueError: An unknown config, or a mesh of another form.
      TooFewDevicesError: The mesh needs more devices than there are.
    """
    config = config_named(
        arguments.config, dtype=arguments.dtype, remat_policy=arguments.remat, mtp_num_layers=1
    )
    taken = {f.name for f in dataclasses.fields(Setup)} - {"config", "mesh"}
    options = {name: getattr(arguments, name) for name in taken}
    return Setup(config=config, mesh=devices.mesh(arguments.mesh), **options)
