"""ONNX models: sizes bound, nodes translated, errors that say what to do."""

import subprocess
import sys

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from onnx_models import light  # noqa: E402
from tensoropt.errors import ImportModelError, MissingExtraError  # noqa: E402
from tensoropt.importing.onnx import import_onnx  # noqa: E402

FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64


def weight(name, *shape, value=None):
    content = np.ones(shape, np.float32) if value is None else np.asarray(value)
    return numpy_helper.from_array(content, name)


def model(nodes, inputs, outputs, initializers=(), opset=20, **rest):
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info(n, t, s) for n, t, s in inputs],
        [helper.make_tensor_value_info(n, FLOAT, None) for n in outputs],
        initializers,
    )
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, **rest)


def one(op, x=(2, 3, 8, 8), *, more=(), inputs=("x",), opset=20, outputs=("y",), **attributes):
    """A model of one operator."""
    node = helper.make_node(op, list(inputs), list(outputs), name="node", **attributes)
    return model([node], [("x", FLOAT, x)], outputs[:1], more, opset)


def families(graph):
    return [o.family for o in graph.operators]


def only(graph):
    """The operator of a model of one, without the mean that stands for a loss."""
    *operators, loss = graph.operators
    assert (loss.family, loss.attributes["op"]) == ("reduce", "mean")
    assert len(operators) == 1
    return operators[0]


def classifier(batch="batch", height=8):
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"], name="act"),
        helper.make_node("GlobalAveragePool", ["r"], ["g"], name="pool"),
        helper.make_node("Flatten", ["g"], ["f"], name="flat"),
        helper.make_node("Gemm", ["f", "v", "z"], ["y"], name="head", transB=1),
    ]
    weights = [
        weight("w", 4, 3, 3, 3), weight("b", 4), weight("v", 10, 4), weight("z", 10)
    ]  # fmt: skip
    return model(nodes, [("x", FLOAT, [batch, 3, height, 8])], ["y"], weights)


def test_layers_and_sizes_of_a_classifier():
    graph = import_onnx(classifier(), batch_size=16)
    assert families(graph) == ["convolution", "elementwise", "pool", "view", "linear", "reduce"]
    assert graph.batch_size == 16
    assert graph.tensors["x"].shape == (16, 3, 8, 8)
    assert graph.parameter_count == 4 * 27 + 4 + 40 + 10
    assert [o.source for o in graph.operators][:2] == ["conv", "act"]
    assert graph.notes == ("the model has no loss: the mean of its output 'y' is one",)


def test_symbolic_dims_must_be_bound():
    wanted = "symbolic dims without a size: 'batch' .of input 'x'.*--batch SIZE"
    with pytest.raises(ImportModelError, match=wanted):
        import_onnx(classifier())
    both = classifier(height="tall")
    with pytest.raises(ImportModelError, match="'tall' .of input 'x'.*give --dim tall=SIZE"):
        import_onnx(both, batch_size=4)
    graph = import_onnx(both, batch_size=4, dims={"tall": 12})
    assert graph.tensors["x"].shape == (4, 3, 12, 8)
    assert import_onnx(both, dims={"tall": 12, "batch": 2}).batch_size == 2


def test_nameless_dims_are_called_by_input_and_position():
    nameless = classifier(batch=None)
    with pytest.raises(ImportModelError, match=r"'x\.0'"):
        import_onnx(nameless)
    assert import_onnx(nameless, dims={"x.0": 3}).tensors["x"].shape[0] == 3
    assert import_onnx(nameless, batch_size=5).batch_size == 5


@pytest.mark.parametrize("dim", ["batch_size", "sequence_length", "self"])
def test_a_dim_may_have_any_name(dim):
    """Files call their dims as our options are called."""
    node = helper.make_node("Relu", ["x"], ["y"], name="act")
    single = model([node], [("x", FLOAT, (4, dim))], ["y"], [])
    assert import_onnx(single, dims={dim: 6}).tensors["x"].shape == (4, 6)
    with pytest.raises(ImportModelError, match=f"{dim} is 0, expected a positive integer"):
        import_onnx(single, dims={dim: 0})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0, expected a positive integer"),
        ({"batch_size": 4, "dims": {"batch": 8}}, "batch_size is 4 and dim batch=8"),
        ({"batch_size": 4, "dims": {"depth": 8}}, "no symbolic dim depth; it has: batch"),
        ({"batch_size": 4, "loss": "z"}, "does not depend on the inputs"),
        ({"batch_size": 4, "loss": "nothing"}, "has no output 'nothing'; it has: y"),
    ],
)
def test_contradictions_are_named(options, message):
    with pytest.raises(ImportModelError, match=message):
        import_onnx(classifier(), **options)


def test_files_that_are_no_models(tmp_path):
    with pytest.raises(ImportModelError, match="no file .*absent.onnx"):
        import_onnx(tmp_path / "absent.onnx")
    with pytest.raises(ImportModelError, match="is a folder"):
        import_onnx(tmp_path)
    content = classifier().SerializeToString()
    cut = tmp_path / "cut.onnx"
    cut.write_bytes(content[: len(content) // 2])
    with pytest.raises(ImportModelError, match="truncated") as caught:
        import_onnx(cut)
    assert "\n" not in str(caught.value)
    text = tmp_path / "text.onnx"
    text.write_text("this is no protocol buffer")
    with pytest.raises(ImportModelError, match="no ONNX model"):
        import_onnx(text)
    empty = tmp_path / "empty.onnx"
    empty.write_bytes(b"")
    with pytest.raises(ImportModelError, match="no ONNX model"):
        import_onnx(empty)
    with pytest.raises(ImportModelError, match="expected a path or an onnx.ModelProto"):
        import_onnx(3)


def test_a_graph_without_operators_is_refused():
    with pytest.raises(ImportModelError, match="without operators"):
        import_onnx(model([], [("x", FLOAT, [1])], ["x"]))


def test_a_path_names_the_graph_and_external_data_may_be_absent(tmp_path):
    path = tmp_path / "net.onnx"
    onnx.save(
        classifier(), str(path), save_as_external_data=True, location="data", size_threshold=0
    )
    (tmp_path / "data").unlink()
    graph = import_onnx(path, batch_size=2)
    assert graph.name == "net"
    assert graph.parameter_count == 4 * 27 + 4 + 40 + 10


def test_fixed_batch_is_rewritten_where_it_can_be_shown():
    nodes = [
        helper.make_node("Reshape", ["x", "s"], ["a"], name="split"),
        helper.make_node("Transpose", ["a"], ["t"], perm=[0, 2, 1, 3]),
        helper.make_node("Relu", ["t"], ["u"]),
        helper.make_node("Reshape", ["u", "r"], ["y"], name="merge"),
    ]
    shapes = [weight("s", value=np.array([1, 6, 2, 4])), weight("r", value=np.array([2, -1]))]
    graph = import_onnx(model(nodes, [("x", FLOAT, [1, 6, 8])], ["y"], shapes), batch_size=5)
    assert [graph.tensors[o.outputs[0]].shape for o in graph.operators[:4]] == [
        (5, 6, 2, 4),
        (5, 2, 6, 4),
        (5, 2, 6, 4),
        (10, 24),  # The batch lies outermost, so it goes into the first dim.
    ]
    assert "fixed batch of 1" in graph.notes[0]


def test_a_batch_inside_a_merged_dim_is_followed():
    nodes = [
        helper.make_node("Reshape", ["x", "flat"], ["a"]),
        helper.make_node("MatMul", ["a", "w"], ["b"]),
        helper.make_node("Reshape", ["b", "back"], ["c"]),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    more = [
        weight("flat", value=np.array([12, 8])),
        weight("back", value=np.array([6, 2, 4])),
        weight("w", 8, 4),
    ]
    transposed = helper.make_node("Transpose", ["given"], ["x"], perm=[1, 0, 2])
    inputs = [("given", FLOAT, [2, 6, 8])]
    graph = import_onnx(model([transposed, *nodes], inputs, ["y"], more), batch_size=10)
    assert graph.tensors[graph.operators[-2].outputs[0]].shape == (6, 10, 4)


def test_fixed_batch_that_is_lost_is_refused():
    nodes = [helper.make_node("Gather", ["x", "i"], ["y"], name="first", axis=0)]
    first = model(nodes, [("x", FLOAT, [1, 4])], ["y"], [weight("i", value=np.array(0))])
    wanted = "fixed batch of 1 and operator 'first' .Gather..*import it with batch_size=1"
    with pytest.raises(ImportModelError, match=wanted):
        import_onnx(first, batch_size=8)
    assert import_onnx(first).batch_size == 1
    assert import_onnx(first, batch_size=1).batch_size == 1


def test_a_class_token_of_the_old_batch_is_repeated():
    nodes = [
        helper.make_node("Expand", ["token", "s"], ["t"]),
        helper.make_node("Concat", ["t", "x"], ["y"], axis=1),
    ]
    more = [weight("token", 1, 1, 8), weight("s", value=np.array([2, 1, 8]))]
    graph = import_onnx(model(nodes, [("x", FLOAT, [2, 6, 8])], ["y"], more), batch_size=16)
    assert families(graph) == ["expand", "concat", "reduce"]
    assert graph.tensors[graph.operators[1].outputs[0]].shape == (16, 7, 8)


def test_sequence_length_binds_the_second_dim_of_ids():
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["e"], name="embed"),
        helper.make_node("MatMul", ["e", "w"], ["m"], name="head"),
        helper.make_node("Add", ["m", "b"], ["y"]),
    ]
    more = [weight("table", 100, 8), weight("w", 8, 100), weight("b", 100)]
    graph = import_onnx(
        model(nodes, [("ids", INT, ["n", "words"])], ["y"], more), batch_size=4, sequence_length=32
    )
    assert families(graph) == ["embedding", "linear", "reduce"]
    assert graph.operators[1].attributes["weight"] == "kn"
    assert len(graph.operators[1].inputs) == 3
    assert graph.tensors["ids"].shape == (4, 32)
    assert graph.tokens_per_sample == 32
    assert graph.tensors["table"].padded_dims == (0,)


def test_a_tied_head_stays_one_parameter():
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["e"]),
        helper.make_node("Transpose", ["table"], ["t"], perm=[1, 0]),
        helper.make_node("MatMul", ["e", "t"], ["y"]),
    ]
    tied = model(nodes, [("ids", INT, [4, 16])], ["y"], [weight("table", 100, 8)])
    graph = import_onnx(tied)
    assert families(graph) == ["embedding", "linear", "reduce"]
    assert [t.name for t in graph.parameters] == ["table"]
    assert graph.operators[1].attributes["weight"] == "nk"


def test_cross_entropy_is_the_loss():
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("SoftmaxCrossEntropyLoss", ["y", "t"], ["loss"], ignore_index=-1),
    ]
    inputs = [("x", FLOAT, ["b", 8]), ("t", INT, ["b"])]
    graph = import_onnx(model(nodes, inputs, ["y", "loss"], [weight("w", 8, 10)]), batch_size=6)
    assert families(graph) == ["linear", "cross_entropy"]
    assert graph.operators[1].attributes["ignore_index"] == -1
    assert graph.tensors["w"].padded_dims == (1,)
    assert graph.notes == ()
    chosen = import_onnx(
        model(nodes, inputs, ["y", "loss"], [weight("w", 8, 10)]), batch_size=6, loss="y"
    )
    assert families(chosen) == ["linear", "reduce"]


def test_shape_arithmetic_leaves_no_trace():
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["b"]),
        helper.make_node("Unsqueeze", ["b", "zeros"], ["u"]),
        helper.make_node("Concat", ["u", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["y"]),
    ]
    more = [
        weight("zero", value=np.array(0)),
        weight("zeros", value=np.array([0])),
        weight("rest", value=np.array([2, -1])),
    ]
    graph = import_onnx(model(nodes, [("x", FLOAT, ["n", 8])], ["y"], more), batch_size=3)
    assert only(graph).family == "view"
    assert graph.tensors[graph.operators[0].outputs[0]].shape == (3, 2, 4)


def test_shape_arithmetic_follows_the_version_of_the_file():
    """Until version 12 the axes of Unsqueeze, and until 10 the limits of Clip, are attributes."""
    number = numpy_helper.from_array
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["rows"], axis=0),
        helper.make_node("Unsqueeze", ["rows"], ["first"], axes=[0]),
        helper.make_node("Cast", ["first"], ["number"], to=FLOAT),
        helper.make_node("Clip", ["number"], ["clipped"], min=0.0, max=4.0),
        helper.make_node("Cast", ["clipped"], ["limited"], to=INT),
        helper.make_node("Concat", ["limited", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["wide"], name="reshape"),
        helper.make_node("MatMul", ["wide", "w"], ["y"], name="head"),
    ]
    constants = [number(np.array(0), "zero"), number(np.array([-1]), "rest"), weight("w", 16, 3)]
    graph = import_onnx(model(nodes, [("x", FLOAT, (8, 8))], ["y"], constants, opset=10))
    assert families(graph) == ["view", "linear", "reduce"]
    assert graph.tensors[graph.operators[0].outputs[0]].shape == (4, 16)


def test_batch_norm_and_dropout_are_read_as_in_training():
    nodes = [
        helper.make_node("BatchNormalization", ["x", "g", "b", "m", "v"], ["n"]),
        helper.make_node("Dropout", ["n", "p"], ["y"]),
    ]
    more = [weight(n, 3) for n in "gbmv"] + [weight("p", value=np.float32(0.25))]
    graph = import_onnx(model(nodes, [("x", FLOAT, [2, 3, 4, 4])], ["y"], more))
    assert families(graph) == ["batch_norm", "dropout", "reduce"]
    assert [graph.tensors[i].kind for i in graph.operators[0].inputs] == [
        "input", "parameter", "parameter", "buffer", "buffer"
    ]  # fmt: skip
    assert graph.operators[1].attributes["p"] == 0.25
    assert any("as in training" in note for note in graph.notes)


def test_what_is_unknown_is_opaque_and_noted():
    node = helper.make_node("Mystery", ["x"], ["y"], domain="com.example", name="odd")
    unknown = model([node], [("x", FLOAT, [2, 4])], ["y"])
    unknown.opset_import.append(helper.make_opsetid("com.example", 1))
    graph = import_onnx(unknown)
    assert only(graph).family == "opaque"
    assert only(graph).attributes["op"] == "Mystery"
    assert any("Mystery" in n and "shape of its first input" in n for n in graph.notes)


def test_a_guessed_shape_is_named_where_it_does_not_fit():
    nodes = [
        helper.make_node("Strange", ["x"], ["s"], domain="com.example"),
        helper.make_node("Transpose", ["s"], ["y"], name="turn", perm=[0, 2, 1]),
    ]
    broken = model(nodes, [("x", FLOAT, (4, 6))], ["y"])
    with pytest.raises(ImportModelError, match="'turn'.*Strange makes are not known and were"):
        import_onnx(broken)


def test_shapes_that_depend_on_data_are_refused():
    with pytest.raises(ImportModelError, match="'node' .NonZero., depends on data"):
        import_onnx(
            model(
                [
                    helper.make_node("NonZero", ["x"], ["i"], name="node"),
                    helper.make_node("Cast", ["i"], ["y"], to=FLOAT),
                ],
                [("x", FLOAT, [2, 4])],
                ["y"],
            )
        )


def test_models_without_anything_to_train_are_refused():
    node = helper.make_node("ArgMax", ["x"], ["y"], axis=1)
    with pytest.raises(ImportModelError, match="no floating output"):
        import_onnx(model([node], [("x", FLOAT, [2, 4])], ["y"]))


def test_damaged_graphs_are_refused():
    node = helper.make_node("Add", ["x", "ghost"], ["y"], name="sum")
    with pytest.raises(ImportModelError, match="operator 'sum' .Add. reads 'ghost'"):
        import_onnx(model([node], [("x", FLOAT, [2, 4])], ["y"]))
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="product")
    with pytest.raises(ImportModelError, match="'product' .MatMul. does not fit"):
        import_onnx(model([node], [("x", FLOAT, [2, 4])], ["y"], [weight("w", 5, 4)]))


def test_functions_are_inlined_and_branches_taken():
    then = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["a"])], "then",
        [], [helper.make_tensor_value_info("a", FLOAT, None)],
    )  # fmt: skip
    other = helper.make_graph(
        [helper.make_node("Tanh", ["x"], ["b"])], "else",
        [], [helper.make_tensor_value_info("b", FLOAT, None)],
    )  # fmt: skip
    node = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other, name="fork")
    for value, op in ((True, "relu"), (False, "tanh")):
        fixed = model([node], [("x", FLOAT, [2, 4])], ["y"], [weight("c", value=np.array(value))])
        assert only(import_onnx(fixed)).attributes["op"] == op
    given = model([node], [("x", FLOAT, [2, 4]), ("c", TensorProto.BOOL, [])], ["y"])
    graph = import_onnx(given)
    assert any("branch at 'fork' depends on data" in n for n in graph.notes)

    function = helper.make_function(
        "local", "Twice", ["a"], ["b"],
        [helper.make_node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 20)],
    )  # fmt: skip
    call = helper.make_node("Twice", ["x"], ["y"], domain="local")
    with_function = model([call], [("x", FLOAT, [2, 4])], ["y"], functions=[function])
    with_function.opset_import.append(helper.make_opsetid("local", 1))
    assert only(import_onnx(with_function)).attributes["op"] == "add"


def test_scalars_become_attributes():
    def scaled(op, left, right):
        node = helper.make_node(op, [left, right], ["y"])
        return only(import_onnx(model([node], [("x", FLOAT, [2, 4])], ["y"], [half]))).attributes

    half = weight("h", value=np.float32(0.5))
    assert dict(scaled("Mul", "x", "h")) == {"op": "scale", "scalars": [0.5]}
    assert dict(scaled("Div", "x", "h")) == {"op": "scale", "scalars": [2.0]}
    assert dict(scaled("Sub", "h", "x")) == {"op": "rsub", "scalars": [0.5]}
    assert dict(scaled("Pow", "x", "h")) == {"op": "pow", "scalars": [0.5]}


def test_asymmetric_padding_is_an_operator_of_its_own():
    graph = import_onnx(
        one("Conv", inputs=("x", "w"), more=[weight("w", 4, 3, 3, 3)], pads=[0, 0, 1, 1],
            strides=[2, 2])
    )  # fmt: skip
    assert families(graph) == ["pad", "convolution", "reduce"]
    assert graph.operators[0].attributes["pads"] == [[0, 0], [0, 0], [0, 1], [0, 1]]
    assert graph.operators[1].attributes["padding"] == [0, 0]
    same = import_onnx(
        one("Conv", inputs=("x", "w"), more=[weight("w", 4, 3, 3, 3)], auto_pad="SAME_UPPER")
    )
    assert only(same).attributes["padding"] == [1, 1]


def test_recurrent_layers_keep_their_weights_whole():
    more = [weight("W", 1, 16, 3), weight("R", 1, 16, 4), weight("B", 1, 32)]
    graph = import_onnx(
        one("LSTM", (5, 2, 3), inputs=("x", "W", "R", "B"), more=more, hidden_size=4)
    )
    lstm = graph.operators[0]
    assert lstm.family == "lstm"
    assert {k: lstm.attributes[k] for k in ("hidden", "cell", "bidirectional")} == {
        "hidden": 4, "cell": "lstm", "bidirectional": False
    }  # fmt: skip
    assert graph.parameter_count == 16 * 3 + 16 * 4 + 32
    assert graph.tensors[lstm.outputs[0]].shape == (5, 2, 4)
    both = import_onnx(
        one("GRU", (5, 2, 3), inputs=("x", "W", "R"), hidden_size=4, direction="bidirectional",
            more=[weight("W", 2, 12, 3), weight("R", 2, 12, 4)])
    )  # fmt: skip
    assert both.operators[0].attributes["bidirectional"]
    assert both.tensors[both.operators[0].outputs[0]].shape == (5, 2, 8)


def test_reordered_gates_are_the_weight_as_it_was():
    index = {n: weight(n, value=np.array([int(n)])) for n in ("0", "4", "8", "12", "16")}
    nodes = [
        helper.make_node("Slice", ["w", str(a), str(a + 4), "0"], [f"p{a}"]) for a in (0, 4, 8, 12)
    ]
    nodes += [
        helper.make_node("Concat", ["p0", "p12", "p4", "p8"], ["g"], axis=0),
        helper.make_node("Unsqueeze", ["g", "0"], ["W"]),
        helper.make_node("LSTM", ["x", "W", "R"], ["y"], hidden_size=4),
    ]
    more = [weight("w", 16, 3), weight("R", 1, 16, 4), *index.values()]
    graph = import_onnx(model(nodes, [("x", FLOAT, [5, 2, 3])], ["y"], more))
    assert families(graph) == ["lstm", "view", "reduce"]
    assert graph.tensors[graph.operators[0].inputs[1]].name == "w"


@pytest.mark.parametrize(
    ("mask", "causal", "operands"),
    [
        (None, False, 3),
        (np.tri(6, dtype=bool), True, 3),
        (np.where(np.tri(6), 0, -np.inf).astype(np.float32), True, 3),
        (np.ones((6, 6), dtype=bool), False, 3),
        (np.tri(6, dtype=bool).T, False, 4),
    ],
)
def test_constant_masks_of_attention_are_understood(mask, causal, operands):
    names = ["q", "k", "v"] + (["mask"] if mask is not None else [])
    node = helper.make_node("Attention", names, ["y"])
    inputs = [(n, FLOAT, [2, h, 6, 8]) for n, h in (("q", 4), ("k", 2), ("v", 2))]
    more = [] if mask is None else [weight("mask", value=mask)]
    graph = import_onnx(model([node], inputs, ["y"], more, opset=23))
    attention = next(o for o in graph.operators if o.family == "attention")
    assert attention.attributes["causal"] is causal
    assert attention.attributes["scale"] == pytest.approx(8**-0.5)
    assert len(attention.inputs) == operands


def test_equal_constants_are_one_tensor():
    table = np.arange(12, dtype=np.float32).reshape(3, 4)
    nodes = [
        helper.make_node("Constant", [], ["a"], value=numpy_helper.from_array(table)),
        helper.make_node("Constant", [], ["b"], value=numpy_helper.from_array(table)),
        helper.make_node("Add", ["x", "a"], ["s"]),
        helper.make_node("Mul", ["s", "b"], ["y"]),
    ]
    graph = import_onnx(model(nodes, [("x", FLOAT, [3, 4])], ["y"]))
    assert families(graph) == ["constant", "elementwise", "elementwise", "reduce"]


def test_module_paths_come_from_the_exporter():
    node = helper.make_node("Relu", ["x"], ["y"], name="node_relu")
    entry = node.metadata_props.add()
    entry.key, entry.value = "pkg.torch.onnx.name_scopes", "['', 'net.act', 'relu']"
    assert only(import_onnx(model([node], [("x", FLOAT, [2])], ["y"]))).source == "net.act"


def test_import_is_deterministic():
    path = light()["light_squeezenet"] if light() else None
    if path is None:
        pytest.skip("this onnx package carries no networks")
    one_way, again = (import_onnx(path, batch_size=4) for _ in range(2))
    assert one_way.to_dict() == again.to_dict()


def test_onnx_is_imported_when_it_is_needed(monkeypatch):
    code = "import sys, tensoropt.importing.onnx; sys.exit('onnx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingExtraError, match=r"tensoropt\[onnx\]"):
        import_onnx("model.onnx")
