"""An imported ONNX model computes what its source computes."""

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
pytest.importorskip("torch", reason="torch runs the imported graphs")

from onnx import TensorProto, numpy_helper, parser  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

from onnx_models import Imported, small  # noqa: E402
from tensoropt.errors import ImportModelError  # noqa: E402

# Models of one operator that are refused, and why.
REFUSED = {
    "test_operator_non_float_params": "no floating output",
    "test_expand_shape_model1": "depends on data",
    "test_expand_shape_model2": "depends on data",
    "test_expand_shape_model3": "depends on data",
    "test_expand_shape_model4": "depends on data",
    "test_sequence_model6": "no floating output",
    "test_sequence_model8": "without a size",
    "test_strnorm_model_monday_casesensintive_lower": "strings",
    "test_strnorm_model_monday_casesensintive_nochangecase": "strings",
    "test_strnorm_model_monday_casesensintive_upper": "strings",
    "test_strnorm_model_monday_empty_output": "strings",
    "test_strnorm_model_monday_insensintive_upper_twodim": "strings",
    "test_strnorm_model_nostopwords_nochangecase": "strings",
}


@pytest.mark.parametrize("name", sorted(small()))
def test_models_of_the_onnx_package(name, monkeypatch):
    folder = small()[name]
    proto = onnx.load(str(folder / "model.onnx"))
    if name in REFUSED:
        with pytest.raises(ImportModelError, match=REFUSED[name]):
            Imported(monkeypatch, proto)
        return
    imported = Imported(monkeypatch, proto)
    held = {i.name for i in proto.graph.initializer}
    data = folder / "test_data_set_0"
    inputs = {}
    for position, entry in enumerate(i for i in proto.graph.input if i.name not in held):
        inputs[entry.name] = _read(data / f"input_{position}.pb")
    families = {o.family for o in imported.graph.operators}
    if "opaque" in families:
        assert name == "test_shrink"  # With a bias: torch has no such operator.
        return
    wanted = _read(data / "output_0.pb")
    with np.errstate(all="ignore"):
        found = imported.output(inputs)
    assert found.shape == wanted.shape
    if "batch_norm" not in families:  # Those of the package evaluate, ours trains.
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-5)


def _read(path):
    return numpy_helper.to_array(onnx.load_tensor(str(path)))


ROWS = np.random.default_rng(7)


def _inputs(proto, symbols):
    """Random inputs for all that is no initializer."""
    held = {i.name for i in proto.graph.initializer}
    found = {}
    for entry in proto.graph.input:
        if entry.name in held:
            continue
        kind = entry.type.tensor_type
        shape = [d.dim_value or symbols[d.dim_param] for d in kind.shape.dim]
        if kind.elem_type == TensorProto.INT64:
            found[entry.name] = ROWS.integers(0, 4, shape)
        else:
            found[entry.name] = ROWS.normal(size=shape).astype(np.float32)
    return found


def _random(name, *shape):
    return numpy_helper.from_array(ROWS.normal(size=shape).astype(np.float32), name)


def _integers(name, *values, scalar=False):
    content = np.array(values[0] if scalar else values, dtype=np.int64)
    return numpy_helper.from_array(content, name)


# Text of a graph, and the initializers it names.
CASES = {
    "layer norm in parts": (
        """(float[N, 5, 8] x) => (float[N, 5, 8] y) {
        m = ReduceMean<keepdims=1>(x, last)  c = Sub(x, m)  q = Pow(c, two)
        v = ReduceMean<keepdims=1>(q, last)  e = Add(v, eps)  s = Sqrt(e)  n = Div(c, s)
        g = Mul(n, w)  y = Add(g, b)}""",
        [_integers("last", -1), _random("w", 8), _random("b", 8),
         numpy_helper.from_array(np.float32(2), "two"),
         numpy_helper.from_array(np.float32(1e-3), "eps")],
        {"layer_norm", "reduce"},
    ),
    "RMS norm in parts": (
        """(float[N, 5, 8] x) => (float[N, 5, 8] y) {
        q = Mul(x, x)  v = ReduceMean<keepdims=1>(q, last)  e = Add(v, eps)
        s = Sqrt(e)  r = Reciprocal(s)  n = Mul(x, r)  y = Mul(n, w)}""",
        [_integers("last", -1), _random("w", 8),
         numpy_helper.from_array(np.float32(1e-3), "eps")],
        {"layer_norm", "reduce"},
    ),
    "attention in parts": (
        """(float[N, 6, 8] x) => (float[N, 6, 8] y) {
        a = MatMul(x, wq)  b = MatMul(x, wk)  c = MatMul(x, wv)
        a4 = Reshape(a, heads)  b4 = Reshape(b, heads)  c4 = Reshape(c, heads)
        q = Transpose<perm=[0, 2, 1, 3]>(a4)  k = Transpose<perm=[0, 2, 3, 1]>(b4)
        v = Transpose<perm=[0, 2, 1, 3]>(c4)
        s = MatMul(q, k)  t = Mul(s, scale)  u = Add(t, mask)  p = Softmax<axis=-1>(u)
        o = MatMul(p, v)  z = Transpose<perm=[0, 2, 1, 3]>(o)  y = Reshape(z, merged)}""",
        [_random("wq", 8, 8), _random("wk", 8, 8), _random("wv", 8, 8),
         _integers("heads", 0, 6, 2, 4), _integers("merged", 0, 6, 8),
         numpy_helper.from_array(np.float32(0.5), "scale"),
         numpy_helper.from_array(np.where(np.tri(6), 0, -1e9).astype(np.float32), "mask")],
        {"linear", "view", "transpose", "attention", "reduce"},
    ),
    "keys transposed while flat": (
        """(float[N, 2, 6, 4] q, float[N, 2, 6, 4] k, float[N, 2, 6, 4] v)
        => (float[N, 2, 6, 4] y) {
        f = Reshape(k, flat)  t = Transpose<perm=[0, 2, 1]>(f)  b = Reshape(t, back)
        s = MatMul(q, b)  p = Softmax<axis=-1>(s)  n = IsNaN(p)  g = Where(n, zero, p)
        y = MatMul(g, v)}""",
        [_integers("flat", -1, 6, 4), _integers("back", -1, 2, 4, 6),
         numpy_helper.from_array(np.float32(0), "zero")],
        {"attention", "reduce"},
    ),
    "gelu in parts, linears with bias": (
        """(float[N, 8] x) => (float[N, 4] y) {
        a = MatMul(x, w)  h = Add(b, a)  r = Div(h, root)  e = Erf(r)  o = Add(e, one)
        m = Mul(h, o)  g = Mul(m, half)  y = Gemm<transB=1>(g, v, c)}""",
        [_random("w", 8, 16), _random("b", 16), _random("v", 4, 16), _random("c", 4),
         numpy_helper.from_array(np.float32(2**0.5), "root"),
         numpy_helper.from_array(np.float32(1), "one"),
         numpy_helper.from_array(np.float32(0.5), "half")],
        {"linear", "elementwise", "reduce"},
    ),
    "gemm with factors and swaps": (
        """(float[8, N] x, float[8, 4] u) => (float[N, 4] y) {
        a = Gemm<transA=1, alpha=0.5, beta=2.0>(x, w, c)  b = Transpose<perm=[1, 0]>(x)
        d = Gemm<alpha=2.0>(b, u)  y = Add(a, d)}""",
        [_random("w", 8, 4), _random("c", 1, 4)],
        None,
    ),
    "convolutions": (
        """(float[N, 4, 9, 9] x) => (float[N, 6, 9, 9] y) {
        a = Conv<pads=[1, 0, 0, 1], strides=[2, 2], group=2>(x, w)
        p = MaxPool<kernel_shape=[2, 2], strides=[1, 1]>(a)
        t = ConvTranspose<strides=[2, 2], pads=[0, 1, 1, 0], output_padding=[1, 1]>(p, v, b)
        q = AveragePool<kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1>(t)
        s = Slice(q, zeros, nines, axes)  y = InstanceNormalization(s, g, h)}""",
        [_random("w", 8, 2, 3, 2), _random("v", 8, 6, 3, 3), _random("b", 6), _random("g", 6),
         _random("h", 6), _integers("zeros", 0, 0), _integers("nines", 9, 9),
         _integers("axes", 2, 3)],
        None,
    ),
    "pieces": (
        """(float[N, 6, 4] x) => (float[N, 4, 6] y) {
        a, b = Split<axis=1>(x, parts)  c = Concat<axis=1>(b, a)  d = Slice(c, s, e, ax, st)
        r = Gather<axis=1>(x, picks)  i = Gather<axis=1>(x, index)  j = Unsqueeze(i, one)
        k = Add(r, j)  l = Add(k, d)  m = Tile(l, twice)  n = Pad(m, pads, fill)
        o = DepthToSpace<blocksize=2>(images)  y = Transpose<perm=[0, 2, 1]>(n)}""",
        [_integers("parts", 2, 4), _integers("s", -1), _integers("e", -5), _integers("ax", 1),
         _integers("st", -2), _integers("picks", 4, 0), _integers("index", 3, scalar=True),
         _integers("one", 1), _integers("twice", 1, 2, 1), _integers("pads", 0, 1, 0, 0, 1, 0),
         numpy_helper.from_array(np.float32(0.5), "fill"), _random("images", 1, 4, 2, 2)],
        None,
    ),
    "reductions and masks": (
        """(float[N, 6] x) => (float[N, 1] y) {
        a = ReduceL2<keepdims=1>(x, one)  b = ReduceLogSumExp<keepdims=1>(x, one)
        c = ReduceL1<keepdims=1>(x, one)  d = ReduceSumSquare<keepdims=1>(x, one)
        p = Greater(x, zero)  e = Where(p, x, low)  f = ReduceMax<keepdims=1>(e, one)
        g = Max(a, b)  h = Min(g, zero)  i = Clip(c, zero, top)  j = Sum(d, f, h, i)
        q = Less(x, zero)  w = Where(q, low, x)  r = ReduceMean<keepdims=1>(w, one)
        s = Sub(top, r)  t = Div(top, b)  u = Mul(s, t)  y = Add(j, u)}""",
        [_integers("one", 1), numpy_helper.from_array(np.float32(0), "zero"),
         numpy_helper.from_array(np.float32(-3), "low"),
         numpy_helper.from_array(np.float32(3), "top")],
        None,
    ),
    "swish and triangles": (
        """(float[N, 4, 4] x) => (float[N, 4, 4] y) {
        s = Sigmoid(x)  a = Mul(s, x)  b = Trilu<upper=0>(a)  c = Trilu<upper=1>(b, one)
        d = Trilu<upper=1>(x, one)  e = Add(b, c)  y = Add(e, d)}""",
        [_integers("one", 1, scalar=True)],
        None,
    ),
    "loss on flattened tokens": (
        """(int64[N, 6] ids, int64[N, 6] targets) => (float loss) {
        e = Gather(table, ids)  t = Transpose<perm=[1, 0]>(table)  l = MatMul(e, t)
        f = Reshape(l, rows)  g = Reshape(targets, flat)
        loss = SoftmaxCrossEntropyLoss<reduction="mean">(f, g)}""",
        [_random("table", 10, 8), _integers("rows", -1, 10), _integers("flat", -1)],
        {"embedding", "linear", "cross_entropy"},
    ),
    "likelihood of log softmax": (
        """(float[N, 8] x, int64[N] t) => (float loss) {
        l = MatMul(x, w)  p = LogSoftmax<axis=1>(l)
        loss = NegativeLogLikelihoodLoss<reduction="sum">(p, t)}""",
        [_random("w", 8, 10)],
        {"linear", "cross_entropy"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("batch", [2, 3])
def test_graphs_of_several_operators(name, batch, monkeypatch):
    text, initializers, families = CASES[name]
    header = '<ir_version: 9, opset_import: ["" : 20]> test '
    proto = parser.parse_model(header + text)
    used = {name for node in proto.graph.node for name in node.input}
    proto.graph.initializer.extend(i for i in initializers if i.name in used)
    imported = Imported(monkeypatch, proto, dims={"N": batch})
    inputs = _inputs(proto, {"N": batch})
    wanted = ReferenceEvaluator(proto).run(None, inputs)[0]
    np.testing.assert_allclose(imported.output(inputs), wanted, rtol=1e-4, atol=1e-5)
    if families is not None:
        assert {o.family for o in imported.graph.operators} == families


@pytest.mark.parametrize(
    "name", ["layer norm in parts", "attention in parts", "swish and triangles"]
)
def test_a_rewritten_batch_computes_the_same_for_every_sample(name, monkeypatch):
    text, initializers, _ = CASES[name]
    fixed = text.replace("[N,", "[1,")
    proto = parser.parse_model('<ir_version: 9, opset_import: ["" : 20]> test ' + fixed)
    proto.graph.initializer.extend(initializers)
    imported = Imported(monkeypatch, proto, batch_size=4)
    samples = [_inputs(proto, {}) for _ in range(4)]
    together = {k: np.concatenate([s[k] for s in samples]) for k in samples[0]}
    source = ReferenceEvaluator(proto)
    wanted = np.concatenate([source.run(None, sample)[0] for sample in samples])
    np.testing.assert_allclose(imported.output(together), wanted, rtol=1e-4, atol=1e-5)


def test_local_response_norm_is_that_of_torch(monkeypatch):
    """The reference implementation of onnx normalises the first channels only."""
    import torch

    text = """<ir_version: 9, opset_import: ["" : 20]> test (float[2, 5, 4, 4] x)
    => (float[2, 5, 4, 4] y) {y = LRN<size=3, alpha=0.3, beta=0.6, bias=1.5>(x)}"""
    imported = Imported(monkeypatch, parser.parse_model(text))
    x = ROWS.normal(size=(2, 5, 4, 4))
    wanted = torch.nn.functional.local_response_norm(torch.from_numpy(x), 3, 0.3, 0.6, 1.5)
    np.testing.assert_allclose(imported.output({"x": x}), wanted.numpy(), rtol=1e-6)


def test_local_response_of_an_even_window_looks_further_ahead(monkeypatch):
    text = """<ir_version: 9, opset_import: ["" : 20]> test (float[1, 6, 2, 2] x)
    => (float[1, 6, 2, 2] y) {y = LRN<size=4, alpha=1.0, beta=1.0, bias=1.0>(x)}"""
    imported = Imported(monkeypatch, parser.parse_model(text))
    x = ROWS.normal(size=(1, 6, 2, 2))
    windows = [(x[:, max(0, c - 1) : c + 3] ** 2).sum(1) for c in range(6)]
    wanted = x / (1 + np.stack(windows, 1) / 4)
    np.testing.assert_allclose(imported.output({"x": x}), wanted, rtol=1e-6)


def test_uneven_padding_of_a_maximum(monkeypatch):
    import torch

    text = """<ir_version: 9, opset_import: ["" : 20]> test (float[2, 3, 5, 5] x)
    => (float[2, 3, 5, 5] y) {
    y = MaxPool<kernel_shape=[2, 2], pads=[0, 0, 1, 1], strides=[1, 1]>(x)}"""
    imported = Imported(monkeypatch, parser.parse_model(text))
    x = ROWS.normal(size=(2, 3, 5, 5)) - 5
    padded = torch.nn.functional.pad(torch.from_numpy(x), (0, 1, 0, 1), value=-np.inf)
    wanted = torch.nn.functional.max_pool2d(padded, 2, 1)
    np.testing.assert_allclose(imported.output({"x": x}), wanted.numpy())
