"""``nnxlab price``: bytes a chip of any config on any mesh, as declared and after bug 3."""

import argparse
import math
from pathlib import Path

from nnxlab.runs import options

HELP = "what bug 3 costs on each chip, at any size, without any array"
EXAMPLE = "nnxlab price --config deepseek3-671b --mesh fsdp=512 --topology v5p:8x8x8"
SIZES = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)  # of the plot


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``nnxlab price``."""
    add = parser.add_argument
    add("--config", default="deepseek3-671b", metavar="NAME", help="default %(default)s")
    add("--mtp", type=int, default=0, metavar="N", help="MTP layers (default %(default)s)")
    add("--mesh", default="fsdp=512", help="as fsdp=64,expert=8 (default %(default)s)")
    add("--topology", metavar="NAME", help="as v5p:8x8x8: whose HBM to compare with")
    add("--weight-dtype", default="float32", metavar="DTYPE", help="float32 (default) or bfloat16")
    add(
        "--rules",
        type=Path,
        metavar="FILE",
        help='logical axis rules as JSON, [["embed", ["fsdp", "expert"]], ...], or YAML, as '
        "MaxText's base.yml (default: MaxText's rules)",
    )
    options.add_json(parser)
    add(
        "--plot",
        type=options.output,
        metavar="FILE",
        help="draw bytes a chip over 8 ... 4096 chips",
    )


def run(arguments: argparse.Namespace) -> int:
    """Prices, and prints a table or JSON.

    Raises:
      ValueError: Bad input; a topology with other chips than the mesh.
      ShardingError: The mesh or the rules do not fit the weights.
    """
    from nnxlab import chips, devices, printing, rules
    from nnxlab.model.config import config_named
    from nnxlab.scale import price, price_report, slices

    axes = devices.parse_mesh(arguments.mesh)
    chip = _chip(arguments.topology, arguments.mesh, axes)
    weights = price.weights(config_named(arguments.config, mtp_num_layers=arguments.mtp))
    how = {
        "dtype": arguments.weight_dtype,
        "rules": rules.read(arguments.rules) if arguments.rules else rules.MAXTEXT_RULES,
    }
    table = price.price(weights, axes, **how)
    sizes = sorted({size for kind in chips.CHIPS.values() for size in kind.slices} | {*SIZES})
    curve = slices.curve(weights, axes, sizes, **how)
    report = {
        "config": arguments.config,
        "mtp_num_layers": arguments.mtp,
        "weight_dtype": arguments.weight_dtype,
        "rules": str(arguments.rules) if arguments.rules else "MaxText 0.2.4",
        "topology": arguments.topology,
    } | price_report.figures(weights, axes, table, curve, chip)
    if arguments.plot:
        _plot(arguments, curve, table)
    if not (arguments.json and printing.report(report, arguments.json)):
        price_report.show(report)
    return 0


def _chip(topology: str | None, mesh: str, axes: dict[str, int]):
    from nnxlab import chips

    if topology is None:
        return None
    chip, shape = chips.parse_topology(topology)
    has, needs = math.prod(shape), math.prod(axes.values())
    if has != needs:
        raise ValueError(
            f"topology {topology} has {has} chips and mesh {mesh} needs {needs}: pass a "
            f"mesh of {has}, as --mesh fsdp={has}, or another topology"
        )
    return chip


def _plot(arguments, curve, table) -> None:
    from nnxlab.scale import pictures

    title = f"{arguments.config}, {arguments.weight_dtype}, resized from {arguments.mesh}"
    figure = pictures.price(curve[curve["chips"].isin(SIZES)], table, title)
    figure.savefig(arguments.plot, dpi=150)
