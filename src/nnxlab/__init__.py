"""nnxlab: three silent bugs of MaxText's NNX path, reproduced, explained and shut.

Importing the package checks the versions of Python, jax, flax and qwix and nothing else; the
story is in ``nnxlab.cases``, its subject in ``nnxlab.model``, the instruments in ``nnxlab.audit``.
"""

from nnxlab.versions import check_versions

__version__ = "0.1.0"

check_versions()
