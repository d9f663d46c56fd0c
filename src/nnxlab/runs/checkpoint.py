"""Saving a run with Orbax and resuming it, on the same mesh or on another.

The logical axes of every weight are saved beside the values: not those of the snapshot that the run
is sharded by, but those that the model carries after a forward. Bug 3 leaves its mark there, and a
checkpoint that bears it is refused.
"""

from pathlib import Path

import jax
import orbax.checkpoint as ocp

from nnxlab.compat import Names
from nnxlab.runs.loop import Run


class CheckpointError(ValueError):
    """A checkpoint is missing, in the way, or does not belong to this run."""


class Checkpoints:
    """The checkpoints of one run in one folder.

    Args:
      folder: Where; created if it is not there.
      run: The run to save, or to fill.
      every: Steps between two saves.
    """

    def __init__(self, folder: Path, run: Run, every: int = 10):
        self.run = run
        options = ocp.CheckpointManagerOptions(save_interval_steps=every, max_to_keep=2)
        self._manager = ocp.CheckpointManager(folder.absolute(), options=options)

    def save(self) -> bool:
        """Saves the state if it is time to, and returns once it is safe.

        Orbax writes beside and renames: killed at any moment, the last finished save is whole.
        """
        names = {path: list(axes) for path, axes in self.run.cell.names_after.items()}
        saved = self._manager.save(
            int(self.run.state["step"]),
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(self.run.state), names=ocp.args.JsonSave(names)
            ),
        )
        self._manager.wait_until_finished()
        return saved

    def latest(self) -> int | None:
        """The step of the last finished save, or None."""
        return self._manager.latest_step()

    def restore(self) -> int:
        """Fills the run's state from the last finished save; returns its step.

        Raises:
          CheckpointError: There is none, or its logical axes are not this run's: names each path.
        """
        step = self.latest()
        if step is None:
            raise CheckpointError(f"no finished checkpoint in {self._manager.directory}")
        stored = self._manager.restore(step, args=ocp.args.Composite(names=ocp.args.JsonRestore()))
        _compare(stored["names"], self.run.cell.names)
        target = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), self.run.state
        )
        restored = self._manager.restore(
            step, args=ocp.args.Composite(state=ocp.args.StandardRestore(target))
        )
        self.run.state = restored["state"]
        return step

    def close(self) -> None:
        """Waits for what is being written."""
        self._manager.close()


def _compare(stored: dict[str, list], names: dict[str, Names]) -> None:
    saved = {path: tuple(axes) for path, axes in stored.items()}
    faults = [
        f"  {path}: saved {saved.get(path, 'not at all')}, here {names.get(path, 'not at all')}"
        for path in sorted(saved.keys() | names.keys())
        if saved.get(path) != names.get(path)
    ]
    if faults:
        raise CheckpointError(
            f"the logical axes of {len(faults)} weights are not those of this run; restored, they "
            "would be sharded by them:\n" + "\n".join(faults)
        )
