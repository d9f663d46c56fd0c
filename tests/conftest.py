"""Eight CPU devices for the whole session, asked for before anything starts jax."""

from nnxlab import devices

devices.prepare(8)
