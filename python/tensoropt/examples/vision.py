"""Convolutional networks: residual networks and U-Nets."""

from __future__ import annotations

from tensoropt.graph import Graph

from .layers import Network, require, require_positive

__all__ = ["resnet", "unet"]

# Blocks of each of the four stages, and whether they are bottlenecks (three convolutions).
_DEPTHS = {
    18: ((2, 2, 2, 2), False),
    34: ((3, 4, 6, 3), False),
    50: ((3, 4, 6, 3), True),
    101: ((3, 4, 23, 3), True),
    152: ((3, 8, 36, 3), True),
}


def resnet(
    *,
    batch_size: int,
    depth: int = 50,
    width: int = 1,
    image: int = 224,
    channels: int = 3,
    classes: int = 1000,
    dtype: str = "float32",
    name: str | None = None,
) -> Graph:
    """Residual network for images, or a wide one.

    Parameters
    ----------
    batch_size : int
        Images of one iteration.
    depth : int
        18, 34, 50, 101 or 152.
    width : int
        Factor on the inner channels of every bottleneck: 2 gives the usual WideResNet. Depths 18
        and 34 have no bottleneck and take 1 only.
    image : int
        Side of the square image, in pixels; a multiple of 32.
    channels, classes : int
        Colours of the image and classes to tell apart.
    dtype : str
        Dtype of parameters and activations.
    name : str, optional
        Name of the graph.

    Returns
    -------
    Graph
        Inputs ``images`` of shape ``(batch_size, channels, image, image)`` and ``targets`` of
        shape ``(batch_size,)``.

    Raises
    ------
    GraphError
        If the depth is unknown or a size is not what it must be.

    Examples
    --------
    >>> resnet(batch_size=8, depth=50).parameter_count
    25557032
    """
    require_positive(
        batch_size=batch_size, width=width, image=image, channels=channels, classes=classes
    )
    require(depth in _DEPTHS, f"depth is {depth}, expected one of {sorted(_DEPTHS)}")
    require(image % 32 == 0, f"image is {image}, expected a multiple of 32")
    stages, bottleneck = _DEPTHS[depth]
    require(bottleneck or width == 1, f"depth {depth} has no bottleneck: its width must be 1")
    net = Network(name or ("" if width == 1 else "wide-") + f"resnet-{depth}", dtype)
    x = net.builder.input("images", (batch_size, channels, image, image), dtype)
    x = net.convolution(x, 64, 7, "stem.conv", stride=2, padding=3)
    x = net.elementwise("relu", (net.batch_norm(x, "stem.norm"),), "stem")
    x = net.pool(x, "stem", mode="max", kernel=3, stride=2, padding=1)
    for stage, blocks in enumerate(stages):
        for index in range(blocks):
            path = f"stages.{stage}.{index}"
            inner = 64 * 2**stage
            stride = 2 if index == 0 and stage > 0 else 1
            outer = 4 * inner if bottleneck else inner
            # The first block of a stage changes the shape, the others are copies of each other.
            with net.block(path, (stage, net.shape(x)[1] == outer and stride == 1)):
                x = _residual(net, x, inner * width, outer, stride, bottleneck, path)
    x = net.pool(x, "pool", mode="avg")
    x = net.view(x, net.shape(x)[:2], "pool")
    logits = net.linear(x, classes, "head")
    return net.finish(net.cross_entropy(logits, 1), batch_size)


def _residual(
    net: Network, x: str, inner: int, outer: int, stride: int, bottleneck: bool, path: str
) -> str:
    plan = [(inner, 1, 1), (inner, 3, stride), (outer, 1, 1)]
    if not bottleneck:
        plan = [(inner, 3, stride), (outer, 3, 1)]
    shortcut, y = x, x
    for number, (channels, kernel, step) in enumerate(plan, start=1):
        y = net.convolution(
            y, channels, kernel, f"{path}.conv{number}", stride=step, padding=kernel // 2
        )
        y = net.batch_norm(y, f"{path}.norm{number}")
        if number < len(plan):
            y = net.elementwise("relu", (y,), path)
    if net.shape(shortcut) != net.shape(y):
        shortcut = net.convolution(shortcut, outer, 1, f"{path}.shortcut.conv", stride=stride)
        shortcut = net.batch_norm(shortcut, f"{path}.shortcut.norm")
    return net.elementwise("relu", (net.elementwise("add", (y, shortcut), path),), path)


def unet(
    *,
    batch_size: int,
    image: int = 512,
    channels: int = 3,
    classes: int = 2,
    base: int = 64,
    levels: int = 4,
    dtype: str = "float32",
    name: str = "unet",
) -> Graph:
    """U-Net: an encoder and a decoder of convolutions, with a skip connection on each level.

    Every level has two 3x3 convolutions with batch norm; max pooling leads down, transposed
    convolutions lead up.

    Parameters
    ----------
    batch_size : int
        Images of one iteration.
    image : int
        Side of the square image, in pixels; a multiple of ``2**levels``.
    channels, classes : int
        Colours of the image and classes of a pixel.
    base : int
        Channels of the topmost level; they double on each level below.
    levels : int
        How often the image is halved.
    dtype, name : str
        Dtype of parameters and activations; name of the graph.

    Returns
    -------
    Graph
        Inputs ``images`` of shape ``(batch_size, channels, image, image)`` and ``targets`` of
        shape ``(batch_size, image, image)``; the loss is the mean cross-entropy over pixels.

    Raises
    ------
    GraphError
        If a size is not positive or the image cannot be halved ``levels`` times.
    """
    require_positive(
        batch_size=batch_size,
        image=image,
        channels=channels,
        classes=classes,
        base=base,
        levels=levels,
    )
    require(
        image % 2**levels == 0,
        f"image is {image}, expected a multiple of {2**levels} for {levels} levels",
    )
    net = Network(name, dtype)
    x = net.builder.input("images", (batch_size, channels, image, image), dtype)
    skips = []
    for level in range(levels):
        x = _double(net, x, base * 2**level, f"down.{level}")
        skips.append(x)
        x = net.pool(x, f"down.{level}", mode="max", kernel=2, stride=2)
    x = _double(net, x, base * 2**levels, "bottom")
    for level in reversed(range(levels)):
        path, width = f"up.{level}", base * 2**level
        x = net.convolution(x, width, 2, f"{path}.transposed", stride=2, bias=True, transposed=True)
        x = _double(net, net.concat((skips[level], x), 1, path), width, path)
    logits = net.convolution(x, classes, 1, "head", bias=True)
    return net.finish(net.cross_entropy(logits, 1), batch_size)


def _double(net: Network, x: str, channels: int, path: str) -> str:
    for number in (1, 2):
        x = net.convolution(x, channels, 3, f"{path}.conv{number}", padding=1)
        x = net.batch_norm(x, f"{path}.norm{number}")
        x = net.elementwise("relu", (x,), path)
    return x
