"""From a PyTorch module to our graph, by ``torch.export``.

The module is traced with example inputs (on the meta device nothing is allocated or computed),
functionalised, translated operator by operator (``torch_ops*``) and simplified (``passes``).
torch is imported inside the functions: the package works without it.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from tensoropt.errors import ImportModelError, MissingExtraError
from tensoropt.graph import Graph
from tensoropt.importing.passes import simplify
from tensoropt.importing.repeats import mark_repeats

__all__ = ["import_torch"]


def import_torch(
    model: Any,
    example_inputs: Any,
    *,
    loss: Callable[..., Any] | str | None = None,
    targets: Any = None,
    name: str | None = None,
    batch_size: int | None = None,
) -> Graph:
    """Import a PyTorch module as the forward pass of one training iteration.

    Parameters
    ----------
    model : torch.nn.Module
        On any device; on ``meta`` a model of any size takes no memory. Import it in training mode:
        in evaluation mode dropout is absent from the graph, which is noted.
    example_inputs : tensor, tuple or dict
        Positional inputs (a tensor or a tuple) or keyword inputs (a dict). Only shapes and dtypes
        matter.
    loss : callable, str or None, optional
        ``None``: the model returns its loss, as a scalar, as attribute or key ``loss`` of its
        output; otherwise the mean of its first floating output is taken and noted. A string names
        an attribute or key of the output. A callable is applied to the output (and ``targets``).
    targets : tensor or None, optional
        Second argument for a callable ``loss``, for example the class of each sample.
    name : str or None, optional
        Name for reports; the class name by default.
    batch_size : int or None, optional
        Samples in one iteration. Inputs whose first dim is that of the first input are resized to
        it; by default the batch of the example.

    Returns
    -------
    Graph
        Simplified, with repeated layers marked. Operators without a family are ``opaque`` and
        noted.

    Raises
    ------
    ImportModelError
        If the model cannot be traced, has a size that depends on data, or has no usable loss.
    MissingExtraError
        If torch is not installed.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(4, 8, device="meta"), nn.ReLU())
    >>> graph = import_torch(model, torch.zeros(16, 4), loss=lambda y: y.square().mean())
    >>> graph.parameter_count
    40
    """
    torch = _torch()
    if not isinstance(model, torch.nn.Module):
        raise ImportModelError(
            f"model is of type {type(model).__name__}, expected a torch.nn.Module"
        )
    if batch_size is not None and batch_size < 1:
        raise ImportModelError(f"batch_size is {batch_size}, expected at least 1")
    args, kwargs, extra = _prepare(model, example_inputs, targets, batch_size)
    leaves = [leaf for leaf in _leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    if not leaves or leaves[0].dim() == 0:
        raise ImportModelError("example_inputs hold no batched tensor: pass at least one")
    title = name or type(model).__name__
    notes: list[str] = []
    wrapped = _with_loss(model, loss, bool(extra), notes)
    with _batched_experts(model):
        program = _export(wrapped, (*args, *extra), kwargs, title)
    if not model.training:
        notes.append("the model is in evaluation mode: dropout is absent; call model.train()")

    from tensoropt.importing.torch_translate import translate

    names = _argument_names(model, len(args), len(extra))
    graph = translate(
        program,
        name=title,
        input_names=names,
        batch_size=int(leaves[0].shape[0]),
        tokens_per_sample=_sequence_length(leaves),
        notes=notes,
    )
    return mark_repeats(simplify(graph))


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError("torch", "torch") from error
    return torch


def _leaves(tree: Any) -> list[Any]:
    from torch.utils import _pytree

    return list(_pytree.tree_leaves(tree))


def _prepare(
    model: Any, inputs: Any, targets: Any, batch_size: int | None
) -> tuple[tuple[Any, ...], dict[str, Any], tuple[Any, ...]]:
    """Inputs on the model's device, of the wanted batch, no tensor passed twice."""
    torch = _torch()
    from torch.utils import _pytree

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    if isinstance(inputs, torch.Tensor):
        args = (inputs,)
    elif isinstance(inputs, Mapping):
        kwargs = dict(inputs)
    elif isinstance(inputs, (tuple, list)):
        args = tuple(inputs)
    else:
        raise ImportModelError(
            f"example_inputs is of type {type(inputs).__name__}, expected a tensor, a tuple of "
            "positional inputs or a dict of keyword inputs"
        )
    extra = () if targets is None else (targets,)
    first = next((x for x in _leaves((args, kwargs)) if isinstance(x, torch.Tensor)), None)
    batch = first.shape[0] if first is not None and first.dim() else None
    device = next((p.device for p in model.parameters()), torch.device("cpu"))

    def fit(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        shape = tuple(leaf.shape)
        if batch_size is not None and shape and shape[0] == batch:
            shape = (batch_size, *shape[1:])
        # A fresh tensor each time: export merges inputs that are one and the same object.
        return torch.zeros(shape, dtype=leaf.dtype, device=device)

    fitted = _pytree.tree_map(fit, (args, kwargs, extra))
    return fitted[0], fitted[1], fitted[2]


def _with_loss(model: Any, loss: Any, has_targets: bool, notes: list[str]) -> Any:
    """A module that runs the model and returns the scalar loss only."""
    torch = _torch()
    if loss is not None and not callable(loss) and not isinstance(loss, str):
        raise ImportModelError(
            f"loss is of type {type(loss).__name__}, expected a callable, the name of an output "
            "or None"
        )
    if has_targets and not callable(loss):
        raise ImportModelError("targets are given without a callable loss that reads them")

    class WithLoss(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.criterion = loss if callable(loss) else None

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            targets = ()
            if has_targets:
                *args, last = args  # type: ignore[assignment]
                targets = (last,)  # type: ignore[assignment]
            output = self.model(*args, **kwargs)
            if self.criterion is not None:
                return _scalar(self.criterion(output, *targets), "the loss function's result")
            return _pick_loss(output, loss, notes)

    wrapped = WithLoss()
    wrapped.training = model.training
    return wrapped


def _pick_loss(output: Any, name: str | None, notes: list[str]) -> Any:
    torch = _torch()
    if name is not None or _member(output, "loss") is not None:
        value = _member(output, name or "loss")
        if not isinstance(value, torch.Tensor):
            advice = "pass loss=<function of the output>"
            if name is not None and hasattr(torch.nn.functional, name):
                advice = f"for torch's function pass loss=torch.nn.functional.{name}, targets=..."
            raise ImportModelError(
                f"the model's output has no entry '{name or 'loss'}': "
                f"it is {_describe(output)}; {advice}"
            )
        return _scalar(value, f"output '{name or 'loss'}'")
    tensors = [t for t in _leaves(output) if isinstance(t, torch.Tensor) and t.is_floating_point()]
    if not tensors:
        raise ImportModelError(
            f"the model's output ({_describe(output)}) holds no floating tensor to train on: "
            "pass loss=<function of the output>"
        )
    if tensors[0].numel() == 1:
        return _scalar(tensors[0], "the model's output")
    text = "the model returns no loss: the mean of its first floating output stands for it"
    if text not in notes:
        notes.append(text)
    return tensors[0].mean()


def _member(output: Any, name: str) -> Any:
    if isinstance(output, Mapping):
        return output.get(name)
    return None if isinstance(output, _torch().Tensor) else getattr(output, name, None)


def _describe(output: Any) -> str:
    if isinstance(output, Mapping):
        return f"a {type(output).__name__} with {', '.join(map(str, output))}"
    if isinstance(output, _torch().Tensor):
        return f"a tensor of shape {tuple(output.shape)}"
    return f"a {type(output).__name__}"


def _scalar(value: Any, what: str) -> Any:
    if not isinstance(value, _torch().Tensor) or value.numel() != 1:
        shape = tuple(value.shape) if hasattr(value, "shape") else type(value).__name__
        raise ImportModelError(f"{what} is {shape}, expected a tensor with one element")
    return value.reshape(()) if value.dim() else value


def _export(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], title: str) -> Any:
    """Trace and functionalise, with the cause of a failure in one line."""
    import warnings

    torch = _torch()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(module, args, kwargs, strict=False)
            return program.run_decompositions({})
    except ImportModelError:
        raise
    except Exception as error:
        cause = error.__cause__ if isinstance(error.__cause__, ImportModelError) else None
        if cause is not None:
            # What torch wraps around it says nothing more.
            raise cause from None
        raise ImportModelError(
            f"model '{title}' cannot be traced: {type(error).__name__}: {one_line(error, 1)}. "
            + _advice(str(error), type(error).__name__, module)
        ) from error


def one_line(error: BaseException, lines: int = 3) -> str:
    """The first lines of what an exception says, in one line of at most 300 characters."""
    said = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(said[:lines])[:300] or type(error).__name__


def _advice(text: str, kind: str, module: Any) -> str:
    torch = _torch()
    lowered = (text + kind).lower()
    if "data-dependent" in lowered or "guardondatadependent" in lowered or "unbacked" in lowered:
        return (
            "Its control flow or sizes depend on values (nonzero, .item(), boolean indexing): "
            "replace them by masks or torch.where, or (experts of transformers) call "
            "model.set_experts_implementation('batched_mm')"
        )
    if kind == "TypeError" and "argument" in lowered:
        return "Check that example_inputs match the signature of the model's forward"
    has_lstm = any(isinstance(part, torch.nn.LSTM) for part in module.modules())
    if has_lstm and torch.__version__ < "2.13":
        from tensoropt.importing.torch_translate import LSTM_STATES

        return f"If it uses the final states of its LSTM: {LSTM_STATES}"
    return "Check that the model runs with example_inputs and uses no other framework inside"


def _argument_names(model: Any, count: int, extra: int) -> dict[str, str]:
    """From export's placeholder names of positional inputs to those of the model's forward."""
    parameters = [
        p.name
        for p in inspect.signature(model.forward).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    names = {f"args_{i}": p for i, p in zip(range(count), parameters, strict=False)}
    if extra:
        names[f"args_{count}"] = "targets"
    return names


def _sequence_length(leaves: Iterable[Any]) -> int | None:
    """The second dim of the first integer input with two dims: token ids."""
    for leaf in leaves:
        if leaf.dim() == 2 and not leaf.is_floating_point() and not leaf.is_complex():
            return int(leaf.shape[1])
    return None


@contextlib.contextmanager
def _batched_experts(model: Any) -> Iterator[None]:
    """Trace transformers' mixtures of experts in the batched form, which `experts` recognises.

    The default forms are a loop that depends on data, or operators known to transformers alone.
    """
    config = getattr(model, "config", None)
    before = getattr(config, "_experts_implementation", None)
    switch = getattr(model, "set_experts_implementation", None)
    if switch is None or before is None or before == "batched_mm":
        yield
        return
    switch("batched_mm")
    try:
        yield
    finally:
        switch(before)
