"""What the commands do. Everything heavy is imported where it is used."""

from __future__ import annotations

import math
import os
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensoropt.errors import FileFormatError, MissingExtraError, ProblemError

from .models import load_model
from .progress import Progress

if TYPE_CHECKING:
    from tensoropt.cluster import Cluster, Device
    from tensoropt.frontier import Frontier, Sweep
    from tensoropt.strategy import Strategy

__all__ = ["devices", "examples", "pick", "search", "show", "sweep"]


def search(options: Namespace) -> int:
    """Search the frontier of a model on a cluster."""
    cluster = _cluster(options.cluster)
    plot = None if options.no_plot else options.plot or _beside(options.output)
    _writable({"--output": options.output, "--plot": plot}, inputs=[options.model, options.cluster])
    unsaved: OSError | None = None
    drawn = False
    begun = time.perf_counter()
    with Progress() as progress:
        progress("importing the model", 0.0)
        graph = load_model(options)
        from tensoropt.search import search as find

        imported = time.perf_counter()
        frontier = find(graph, cluster, progress=progress, **_space(options))
        found = time.perf_counter()
        try:
            frontier.save(options.output, lambda done: progress("saving the frontier", done))
            drawn = _draw(frontier, plot, required=options.plot is not None)
        except OSError as error:  # what took long to find is shown all the same
            unsaved = error
    saved = time.perf_counter()
    frontier.seconds = {
        "import": imported - begun,
        **frontier.seconds,
        "saving": saved - found,
        "total": saved - begun,
    }
    if options.json:
        document = _frontier_record(frontier, options.points)
        document |= {"output": options.output, "plot": plot if drawn else None}
        _print_json(document)
    else:
        _print_frontier(frontier, options.points)
    if unsaved is not None:
        raise unsaved
    if not options.json:
        print(f"Saved to {options.output}" + (f", drawn in {plot}." if drawn else "."))
    return 0


def pick(options: Namespace) -> int:
    """Pick a strategy from a saved frontier."""
    _writable({"--output": options.output}, inputs=[options.frontier])
    frontier = _load_frontier(options.frontier)
    if options.time is not None:
        index = frontier.leanest_index(options.time)
    else:
        index = frontier.fastest_index(options.memory)
    strategy = frontier[index]
    if options.output:
        strategy.save(options.output)
    if options.json:
        _print_json(_strategy_record(frontier, strategy, index))
        return 0
    print(f"Point {index} of {len(frontier):,}")
    _print_strategy(frontier, strategy)
    if options.output:
        print(f"\nSaved to {options.output}.")
    return 0


def show(options: Namespace) -> int:
    """Show a saved frontier, or explain one strategy."""
    from tensoropt.frontier.file import FORMAT

    _writable({"--output": options.output, "--plot": options.plot}, inputs=[options.frontier])
    if _format_of(options.frontier) != FORMAT:
        return _show_strategy(options)
    frontier = _load_frontier(options.frontier)
    if options.plot:
        frontier.plot(options.plot)
    index, strategy = _chosen(frontier, options)
    if strategy is None:
        if options.output:
            raise ProblemError("--output saves one strategy: name it with --point or --scheme")
        if options.json:
            _print_json(_frontier_record(frontier, options.points))
        else:
            _print_frontier(frontier, options.points)
            _print_written(options)
        return 0
    if options.output:
        strategy.save(options.output)
    if options.json:
        _print_json(_strategy_record(frontier, strategy, index))
    elif options.against is not None:
        print(_point(frontier, options.against).diff(strategy))
        _print_written(options)
    else:
        _print_strategy(frontier, strategy)
        _print_written(options)
    return 0


def sweep(options: Namespace) -> int:
    """Compare numbers of devices."""
    if options.output and not options.fewest:
        raise ProblemError("--output saves the strategy of --fewest: add --fewest, or leave it out")
    _writable({"--output": options.output, "--plot": options.plot}, inputs=[options.model])
    _one_device(options.device)
    with Progress() as progress:
        progress("importing the model", 0.0)
        graph = load_model(options)
        from tensoropt.search import sweep as find

        space = _space(options)
        result = find(
            graph,
            options.device,
            options.counts,
            fewest=options.fewest,
            progress=progress,
            **space,
        )
    if options.plot:
        result.plot(options.plot)
    if options.json:
        _print_json(result.to_dict())
    else:
        _print_sweep(result)
    best = result.fewest  # raises where nothing fits on any number of devices
    if options.fewest and best.strategy is not None:
        if options.output:
            best.strategy.save(options.output)
        if not options.json:
            plural = "s suffice" if best.count > 1 else " suffices"
            print(f"\n{best.count} {result.device}{plural}:\n")
            print(best.strategy.explain())
    return 0


def devices(options: Namespace) -> int:
    """List the devices whose figures ship with the package."""
    from tensoropt.cluster import Device

    if options.name:
        device = Device.named(options.name)
        if options.json:
            _print_json(device.to_dict())
        else:
            print(_device_text(device))
        return 0
    found = [Device.named(name) for name in Device.names()]
    if options.json:
        _print_json([device.to_dict() for device in found])
        return 0
    print(_device_table(found))
    print("\nFigures with their sources: tensoropt devices NAME. Your own: see Cluster.load.")
    return 0


def examples(options: Namespace) -> int:
    """List the built-in models."""
    from tensoropt.examples import names

    if options.json:
        _print_json(list(names()))
    else:
        print("\n".join(names()))
    return 0


# ---------------------------------------------------------------------------- input


def _cluster(spec: str) -> Cluster:
    from tensoropt.cluster import Cluster

    if spec.endswith((".json", ".toml")):
        return Cluster.load(spec)
    return Cluster.parse(spec)


def _space(options: Namespace) -> dict[str, Any]:
    """Return the options of the search that were given."""
    names = ("precision", "optimizer", "micro_batches", "recompute", "epsilon")
    values = {name: getattr(options, name) for name in (*names, "max_axes", "threads")}
    values["memory_bytes"] = options.memory
    return {name: value for name, value in values.items() if value is not None}


def _one_device(name: str) -> None:
    """Refuse a cluster where a device is wanted: its count would multiply with every other."""
    from tensoropt.cluster import Device

    count, _, device = name.partition("x")
    if count.strip().isdigit():
        raise ProblemError(
            f"--device is '{name}', expected one device without a count, e.g. "
            f"--device {device or 'A100-SXM-80GB'} --counts {count.strip()}"
        )
    Device.named(name)


def _beside(output: str) -> str | None:
    path = Path(output)
    if path.exists() and not path.is_file():  # beside /dev/null or a pipe nobody looks
        return None
    stem = path.with_suffix("") if path.suffix == ".gz" else path
    return str(stem.with_suffix(".png"))


def _writable(outputs: dict[str, str | None], inputs: list[str | None]) -> None:
    """Refuse, before any work, names that could not be written after it, or had better not be.

    Parameters
    ----------
    outputs : dict of str to str or None
        Files to be written, by the option that names each.
    inputs : list of str or None
        Files that are read, and that nobody means to lose.
    """
    taken = {_identity(path): path for path in inputs if path and Path(path).is_file()}
    for option, path in outputs.items():
        if path is None:
            continue
        if not path:
            raise ProblemError(f"{option} is empty, expected the name of a file")
        if Path(path).is_dir():
            raise IsADirectoryError(21, "is a directory, expected a file name", path)
        folder = Path(path).parent
        if not folder.is_dir():
            raise FileNotFoundError(2, "no such directory", str(folder))
        if not os.access(path if _is_special(path) else folder, os.W_OK):
            raise PermissionError(13, "permission denied, choose another place", path)
        if option == "--plot":
            from tensoropt.reporting.plots import check_picture

            check_picture(path)
        if not _is_special(path):
            if _identity(path) in taken:
                raise ProblemError(
                    f"{option} '{path}' would overwrite '{taken[_identity(path)]}': "
                    "choose another name"
                )
            taken[_identity(path)] = path


def _identity(path: str) -> str:
    return os.path.realpath(path)


def _is_special(path: str) -> bool:
    """Whether it is there and no regular file: a pipe or a device, which is written to in place."""
    return Path(path).exists() and not Path(path).is_file()


def _load_frontier(path: str) -> Frontier:
    from tensoropt.frontier import Frontier

    return Frontier.load(path)


def _format_of(path: str) -> str:
    """Return the format that a saved file says it has; what is none is read as a frontier."""
    from tensoropt.frontier.file import FORMAT
    from tensoropt.reporting.files import peek_format

    return peek_format(path) or FORMAT


def _show_strategy(options: Namespace) -> int:
    from tensoropt.strategy import Strategy

    for name in ("point", "scheme", "against", "plot"):
        if getattr(options, name) is not None:
            raise FileFormatError(
                f"--{name} needs a saved frontier, and '{options.frontier}' is a single strategy"
            )
    strategy = Strategy.load(options.frontier)
    if options.output:
        strategy.save(options.output)
    if options.json:
        _print_json(strategy.to_dict())
    else:
        print(strategy.explain())
        _print_written(options)
    return 0


def _chosen(frontier: Frontier, options: Namespace) -> tuple[int | None, Strategy | None]:
    if options.scheme is not None:
        return None, _scheme(frontier, options.scheme)
    if options.point is not None:
        strategy = _point(frontier, options.point)
        return options.point % len(frontier), strategy
    if options.against is not None:
        raise ProblemError("--against compares with a strategy: name it with --point or --scheme")
    return None, None


def _point(frontier: Frontier, index: int) -> Strategy:
    if not -len(frontier) <= index < len(frontier):
        raise ProblemError(
            f"there is no point {index}: the frontier has points 0 to {len(frontier) - 1}"
        )
    return frontier[index]


def _scheme(frontier: Frontier, name: str) -> Strategy:
    from difflib import get_close_matches

    known = {scheme.scheme.lower(): scheme for scheme in frontier.schemes}
    wanted = name.strip().lower()
    starting = [scheme for text, scheme in known.items() if wanted and text.startswith(wanted)]
    if wanted in known:
        return known[wanted]
    if len(starting) == 1:
        return starting[0]
    close = [] if starting else get_close_matches(wanted, known, n=1)
    names = ", ".join(scheme.scheme for scheme in starting or frontier.schemes) or "none"
    hint = f", did you mean '{known[close[0]].scheme}'?" if close else ";"
    which = "those that start so are" if starting else "the frontier has"
    raise ProblemError(f"no scheme '{name}'{hint} {which}: {names}")


# ---------------------------------------------------------------------------- output


def _draw(frontier: Frontier, path: str | None, *, required: bool) -> bool:
    if path is None:
        return False
    try:
        frontier.plot(path)
    except MissingExtraError as error:
        if required:
            raise
        print(f"tensoropt: no picture: {error}", file=sys.stderr)
        return False
    return True


def _rows(points: int | None, count: int, otherwise: int) -> int:
    """How many points to show: as many as asked for, where 0 means all, or the default."""
    return (otherwise if points is None else points) or count


def _print_frontier(frontier: Frontier, points: int | None) -> None:
    print(_heading(frontier))
    print(frontier.table(_rows(points, len(frontier), 20)))
    print()
    print(_closing(frontier))


def _print_written(options: Namespace) -> None:
    """Say which files `show` has written."""
    written = [f"saved to {options.output}"] if options.output else []
    written += [f"drawn in {options.plot}"] if options.plot else []
    if written:
        text = ", ".join(written)
        print(f"\n{text[0].upper()}{text[1:]}.")


def _heading(frontier: Frontier) -> str:
    from tensoropt.reporting.units import format_count

    g, settings = frontier.graph_summary, frontier.settings
    batch = f"batch {g.batch_size}"
    if g.tokens_per_sample:
        batch += f" of {g.tokens_per_sample:,} tokens"
    names = [str(settings[key]) for key in ("precision", "optimizer") if key in settings]
    head = [f"{format_count(g.parameter_count)} parameters", batch, *names]
    return f"{frontier.model} on {frontier.cluster.name}: {', '.join(head)}\n"


def _closing(frontier: Frontier) -> str:
    """Say what is proven, what to use, and what was assumed."""
    from tensoropt.errors import InfeasibleError
    from tensoropt.reporting.describe import summary
    from tensoropt.reporting.frontier_table import fit_word, price_text
    from tensoropt.reporting.units import format_bytes, format_seconds

    lines = [_proof(frontier)]
    device = frontier.cluster.device
    try:
        index = frontier.fastest_index()
    except InfeasibleError as error:
        lines.append(f"Warning: {error}.")
    else:
        best = frontier[index]
        price = price_text(frontier, best)
        lines.append(
            f"Fastest that fits one {device.name} ({format_bytes(device.memory_bytes)}): "
            f"point {index}, {summary(best)}, {format_seconds(best.costs.time_s)}"
            + (f", {price}" if price else "")
            + ("; at risk, above 90 % of the memory" if fit_word(frontier, best) != "yes" else "")
            + "."
        )
    lines += [f"Note: {note}." for note in (n.rstrip(".") for n in frontier.notes)]
    if frontier.seconds:
        spent = ", ".join(f"{name} {format_seconds(s)}" for name, s in frontier.seconds.items())
        lines.append(f"Time spent: {spent}.")
    return "\n".join(lines)


def _proof(frontier: Frontier) -> str:
    count = f"{len(frontier):,} point{'s' if len(frontier) > 1 else ''}, status {frontier.status}"
    if frontier.factor == 1:
        return f"{count}: exact, no strategy of the space beats any of them."
    if math.isinf(frontier.factor):
        return f"{count}: how far from the exact frontier is not proven."
    if frontier.status == "optimal":
        rounding = f"{100 * (frontier.factor - 1):.2g} %"
        return f"{count}: exact, but for the rounding of costs, which is within {rounding}."
    return (
        f"{count}: proven to be within {100 * (frontier.factor - 1):.3g} % of the exact frontier "
        "in both costs."
    )


def _print_strategy(frontier: Frontier, strategy: Strategy) -> None:
    from tensoropt.reporting.frontier_table import fit_word, price_text

    print(strategy.explain())
    device = frontier.cluster.device
    share = 100 * strategy.memory_share(frontier.cluster)
    word = {"yes": "fits", "at risk": "fits, at risk", "no": "does not fit"}
    verdict = word[fit_word(frontier, strategy)]
    print(f"\nOn one {device.name}: {share:.0f} % of the memory, {verdict}.")
    price = price_text(frontier, strategy)
    if price and frontier.cluster.price is not None:
        print(f"Price: {price} on {frontier.cluster.name}.")


def _print_sweep(result: Sweep) -> None:
    from tensoropt.reporting.units import format_bytes

    print(
        f"{result.model} on {result.device}, up to {format_bytes(result.memory_bytes)} a device\n"
    )
    print(result.table())
    if any(row.strategy and row.strategy.at_risk(row.cluster) for row in result):
        print("  ! at risk: above 90 % of the memory")


def _print_json(document: Any) -> None:
    from tensoropt.reporting.files import to_json

    print(to_json(document))


def _frontier_record(frontier: Frontier, points: int | None) -> dict[str, Any]:
    from tensoropt.reporting.frontier_table import record, spread

    shown = spread(frontier, _rows(points, len(frontier), 0))
    return {
        "model": frontier.model,
        "cluster": frontier.cluster.name,
        "batch_size": frontier.graph_summary.batch_size,
        "tokens_per_sample": frontier.graph_summary.tokens_per_sample,
        "parameter_count": frontier.graph_summary.parameter_count,
        "device_memory_bytes": frontier.cluster.device.memory_bytes,
        "status": frontier.status,
        "factor": frontier.factor if math.isfinite(frontier.factor) else None,
        "settings": frontier.settings,
        "seconds": frontier.seconds,
        "notes": list(frontier.notes),
        "point_count": len(frontier),
        "points": [record(frontier, frontier[i], i) for i in shown],
        "schemes": [record(frontier, s, None) for s in frontier.schemes],
    }


def _strategy_record(frontier: Frontier, strategy: Strategy, index: int | None) -> dict[str, Any]:
    from tensoropt.reporting.frontier_table import record

    return {**record(frontier, strategy, index), "strategy": strategy.to_dict()}


def _device_table(found: list[Device]) -> str:
    from tensoropt.reporting.tables import format_table
    from tensoropt.reporting.units import format_bytes

    rows = []
    for device in found:
        link = device.scale_up
        rate = device.peak_flops.get("bfloat16") or device.peak_flops.get("float16") or 0.0
        rows.append(
            [
                device.name,
                format_bytes(device.memory_bytes),
                f"{device.memory_bandwidth_bytes_s / 1e12:.2f} TB/s",
                f"{rate / 1e12:.0f}" if rate else "-",
                str(link["link"]) if link else "PCIe",
                device.confidence or "-",
            ]
        )
    headers = ["device", "memory", "bandwidth", "16-bit TFLOP/s", "link", "confidence"]
    return format_table(headers, rows, "<>>><<", indent="")


def _device_text(device: Device) -> str:
    lines = [device.name]
    for name, value in device.to_dict().items():
        if name == "name" or value in (None, "", []):
            continue
        if isinstance(value, dict):
            value = ", ".join(
                f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in value.items()
            )
        elif isinstance(value, list):
            value = "; ".join(str(entry) for entry in value)
        elif isinstance(value, float):
            value = f"{value:.6g}"
        lines.append(f"  {name:<26} {value}")
    return "\n".join(lines)
