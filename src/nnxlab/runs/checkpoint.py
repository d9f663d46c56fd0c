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
      settings: What the run was asked for, as JSON takes it; a run of others cannot go on from it.

    Raises:
      CheckpointError: The folder is a file.
    """

    def __init__(self, folder: Path, run: Run, every: int = 10, settings: dict | None = None):
        self.run, self._settings = run, settings or {}
        if folder.exists() and not folder.is_dir():  # Orbax would wait for ever
            raise CheckpointError(f"cannot save into {folder}: it is a file, not a folder")
        options = ocp.CheckpointManagerOptions(save_interval_steps=every, max_to_keep=2)
        self._manager = ocp.CheckpointManager(folder.absolute(), options=options)

    def save(self, last: bool = False) -> bool:
        """Saves the state if it is time to, or if it is the ``last``, and returns once it is safe.

        Orbax writes beside and renames: killed at any moment, the last finished save is whole.
        """
        step = int(self.run.state["step"])
        if last and step == self.latest():
            return False
        names = {path: list(axes) for path, axes in self.run.cell.names_after.items()}
        saved = self._manager.save(
            step,
            force=last,
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(self.run.state),
                names=ocp.args.JsonSave(names),
                settings=ocp.args.JsonSave(self._settings),
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
          CheckpointError: There is none, it cannot be read, or its settings or logical axes are not
            this run's: names each setting and each path.
        """
        step = self.latest()
        if step is None:
            raise CheckpointError(f"no finished checkpoint in {self._manager.directory}")
        json = ocp.args.JsonRestore()
        stored = self._read(step, names=json, settings=json)
        faults = _settings_faults(stored["settings"], self._settings)
        faults += _names_faults(stored["names"], self.run.cell.names)
        if faults:
            where = self._manager.directory
            raise CheckpointError(f"{where} cannot be resumed by this run\n" + "\n".join(faults))
        target = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), self.run.state
        )
        self.run.state = self._read(step, state=ocp.args.StandardRestore(target))["state"]
        return step

    def _read(self, step: int, **items):
        try:
            return self._manager.restore(step, args=ocp.args.Composite(**items))
        except Exception as error:  # Orbax and its backends raise of every kind for damaged files
            folder, why = self._manager.directory / str(step), str(error).splitlines()[:1]
            raise CheckpointError(
                f"cannot read the checkpoint {folder} ({type(error).__name__}: {''.join(why)}); if "
                "it is damaged, move it away: --resume then goes on from the save before it"
            ) from error

    def close(self) -> None:
        """Waits for what is being written."""
        self._manager.close()


def _settings_faults(stored: dict, settings: dict) -> list[str]:
    faults = _differences(stored, settings)
    return ["its settings are others:", *faults] if faults else []


def _names_faults(stored: dict[str, list], names: dict[str, Names]) -> list[str]:
    faults = _differences({path: tuple(axes) for path, axes in stored.items()}, names)
    count = f"the logical axes of {len(faults)} weights are not those of this run;"
    return [f"{count} restored, they would be sharded by them:", *faults] if faults else []


def _differences(saved: dict, here: dict) -> list[str]:
    return [
        f"  {key}: saved {saved.get(key, 'not at all')}, here {here.get(key, 'not at all')}"
        for key in sorted(saved.keys() | here.keys())
        if saved.get(key) != here.get(key)
    ]
