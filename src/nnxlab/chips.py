"""TPU chips: their memory, the slices they come in, and topologies by name."""

import dataclasses
import math

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
    """One kind of chip.

    Attributes:
      kind: Its name, as in ``v6e:2x4``.
      hbm_bytes: High-bandwidth memory of one chip; None where there is none.
      slices: Sizes in chips of the single slices that one can rent, ascending.
      rank: Dimensions of the interconnect, as many as a topology has sizes.
    """

    kind: str
    hbm_bytes: int | None
    slices: tuple[int, ...]
    rank: int

    @property
    def largest(self) -> int:
        """Chips of the largest single slice."""
        return self.slices[-1]


# Memory and slices as the pages cloud.google.com/tpu/docs/{v4,v5e,v5p,v6e} state them (read in
# 2026). They write "16 GB" and "32 GB" for v5e and v6e and "GiB" for v4 and v5p; GiB is meant
# throughout. What the compiler lets a program have differs a little. v4 and v5p come as AxBxC
# with all sides up to 4 or all multiples of 4 (.../tpu/docs/types-topologies); of those, the
# powers of two up to v4's pod of 4096 chips and v5p's common shapes up to 16x16x24.
_UP_TO_256 = (1, 4, 8, 16, 32, 64, 128, 256)
_CUBES = (4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
CHIPS = {
    chip.kind: chip
    for chip in (
        Chip("v4", 32 * GIB, _CUBES, 3),
        Chip("v5e", 16 * GIB, _UP_TO_256, 2),
        Chip("v5p", 95 * GIB, (*_CUBES, 6144), 3),
        Chip("v6e", 32 * GIB, _UP_TO_256, 2),
    )
}
CPU = Chip("cpu", None, (), 1)


def parse_topology(text: str) -> tuple[Chip, tuple[int, ...]]:
    """``"v6e:2x4"`` -> the chip v6e and ``(2, 4)``; ``"cpu:8"`` -> ``CPU`` and ``(8,)``.

    Raises:
      ValueError: Another form, an unknown kind, or a shape that this kind does not come in. All
        that is wrong is named, with what there is.
    """
    kind, colon, sizes = text.partition(":")
    known = CHIPS | {CPU.kind: CPU}
    faults = []
    if kind not in known:
        faults.append(f"unknown chip {kind!r}; known: {', '.join(known)}")
    parts = sizes.split("x")
    if not colon or not all(_is_size(part) for part in parts):
        faults.append("not KIND:SIZES, as in v6e:2x4, v5p:8x8x8 or cpu:8")
    elif kind in known:
        faults += _faults_of_shape(known[kind], tuple(map(int, parts)))
    if faults:
        raise ValueError(f"topology {text!r}: " + "; ".join(faults))
    return known[kind], tuple(map(int, parts))


def _is_size(text: str) -> bool:
    return text.isascii() and text.isdecimal() and int(text) > 0


def _faults_of_shape(chip: Chip, shape: tuple[int, ...]) -> list[str]:
    count = math.prod(shape)
    if len(shape) != chip.rank:
        example = "x".join(["2"] * chip.rank)
        sizes = f"{chip.rank} size{'s' * (chip.rank > 1)}"
        return [f"{chip.kind} takes {sizes}, as in {chip.kind}:{example}"]
    if chip.slices and count > chip.largest:
        return [f"{count} chips, and the largest slice of {chip.kind} has {chip.largest}"]
    return []
