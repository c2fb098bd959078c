"""What import_torch takes, what it refuses, and what a graph says of its source."""

from __future__ import annotations

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from interpret import compare  # noqa: E402
from models import FlatFeedForward, PatchClassifier, RecurrentLanguageModel  # noqa: E402
from tensoropt.errors import ImportModelError, MissingExtraError  # noqa: E402
from tensoropt.importing import torch_export  # noqa: E402
from tensoropt.importing.torch_export import import_torch  # noqa: E402


def families(graph):
    return [o.family for o in graph.operators]


class WithOutput(nn.Module):
    """Returns what its forward is told to return."""

    def __init__(self, wrap):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.wrap = wrap

    def forward(self, x):
        return self.wrap(self.layer(x))


def test_scalar_output_is_the_loss():
    graph = import_torch(WithOutput(lambda y: y.sum()), torch.zeros(8, 4))
    assert families(graph) == ["linear", "reduce"]
    assert graph.notes == ()
    assert graph.batch_size == 8
    assert graph.tokens_per_sample is None


def test_loss_is_found_in_a_dict_by_default_and_by_name():
    model = WithOutput(lambda y: {"loss": y.sum(), "other": y.mean()})
    default = import_torch(model, torch.zeros(8, 4))
    named = import_torch(model, torch.zeros(8, 4), loss="other")
    assert default.operators[-1].attributes["op"] == "sum"
    assert named.operators[-1].attributes["op"] == "mean"


def test_loss_is_an_attribute_of_an_output():
    transformers = pytest.importorskip("transformers")
    output = transformers.modeling_outputs.CausalLMOutput
    model = WithOutput(lambda y: output(loss=y.sum(), logits=y))
    assert families(import_torch(model, torch.zeros(8, 4))) == ["linear", "reduce"]


def test_callable_loss_with_and_without_targets():
    model, x = WithOutput(lambda y: y), torch.zeros(8, 4)
    graph = import_torch(model, x, loss=lambda y: y.square().mean())
    assert families(graph)[-1] == "reduce"
    targets = torch.zeros(8, dtype=torch.long)
    graph = import_torch(model, x, loss=nn.functional.cross_entropy, targets=targets)
    assert families(graph) == ["linear", "cross_entropy"]
    assert graph.tensors["targets"].kind == "input"


def test_model_without_a_loss_gets_the_mean_and_a_note():
    graph = import_torch(WithOutput(lambda y: (y, y)), torch.zeros(8, 4))
    assert graph.operators[-1].attributes["op"] == "mean"
    assert "the mean of its first floating output stands for it" in graph.notes[0]


def test_evaluation_mode_is_noted_and_kept():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).eval()
    graph = import_torch(model, torch.zeros(8, 4))
    assert "dropout" not in families(graph)
    assert any("evaluation mode" in note for note in graph.notes)
    assert not model.training
    assert "dropout" in families(import_torch(model.train(), torch.zeros(8, 4)))


def test_inputs_and_parameters_keep_their_names():
    ids, labels = torch.zeros(2, 7, dtype=torch.long), torch.ones(2, 7, dtype=torch.long)
    for given in ((ids, labels), {"ids": ids, "labels": labels}):
        graph = import_torch(RecurrentLanguageModel(), given)
        inputs = [t.name for t in graph.tensors.values() if t.kind == "input"]
        assert inputs == ["ids", "labels"]
        assert graph.tensors["embedding.weight"].kind == "parameter"
        assert graph.tokens_per_sample == 7
        assert not graph.tensors["ids"].requires_grad


def test_one_tensor_given_twice_makes_two_inputs():
    ids = torch.zeros(2, 7, dtype=torch.long)
    graph = import_torch(RecurrentLanguageModel(), (ids, ids))
    assert sum(t.kind == "input" for t in graph.tensors.values()) == 2


def test_batch_size_resizes_the_example():
    graph = import_torch(FlatFeedForward(), torch.zeros(1, 3, 8), batch_size=16)
    assert graph.batch_size == 16
    assert graph.tensors["x"].shape == (16, 3, 8)


def test_meta_model_imports_like_a_real_one():
    x = torch.zeros(2, 3, 16, 16)
    with torch.device("meta"):
        model = PatchClassifier()
        meta = import_torch(model, torch.zeros(2, 3, 16, 16))
    real = import_torch(PatchClassifier(), x)
    assert [(o.family, o.inputs, o.attributes) for o in meta.operators] == [
        (o.family, o.inputs, o.attributes) for o in real.operators
    ]
    assert [(t.name, t.shape) for t in meta.tensors.values()] == [
        (t.name, t.shape) for t in real.tensors.values()
    ]
    assert meta.parameter_count == sum(p.numel() for p in model.parameters())


def test_tied_weight_is_one_parameter():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(10, 4)
            self.head = nn.Linear(4, 10, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, ids):
            return self.head(self.embedding(ids)).logsumexp(-1).mean()

    for device in ("cpu", "meta"):
        with torch.device(device):  # Moving a module would untie its weights.
            model = Tied()
        graph = import_torch(model, torch.zeros(2, 3, dtype=torch.long))
        assert graph.parameter_count == 40
        assert [t.name for t in graph.parameters] == ["embedding.weight"]
        assert len(graph.consumers()["embedding.weight"]) == 2


def test_frozen_parameter_is_a_buffer_without_gradient():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[0].weight.requires_grad_(False)
    graph = import_torch(model, torch.zeros(8, 4))
    assert graph.tensors["0.weight"].kind == "buffer"
    assert not graph.tensors["0.weight"].requires_grad
    assert graph.parameter_count == 4 + 16 + 4


def test_detached_branch_carries_no_gradient():
    class Detached(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            y = self.a(x).detach()
            return (self.b(x) * y).mean()

    graph = import_torch(Detached(), torch.zeros(8, 4))
    made = {n: o for o in graph.operators for n in o.outputs}
    product = next(o for o in graph.operators if o.attributes.get("op") == "mul")
    grads = [graph.tensors[n].requires_grad for n in product.inputs]
    assert sorted(grads) == [False, True]
    detached = product.inputs[grads.index(False)]
    assert made[detached].family == "view"


def test_region_without_gradient_carries_none():
    class Teacher(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            with torch.no_grad():
                y = torch.relu(self.a(x))
            return (self.b(x) * y).mean()

    graph = import_torch(Teacher(), torch.zeros(8, 4))
    grads = {o.family + str(o.attributes.get("op", "")): graph.tensors[o.outputs[0]].requires_grad
             for o in graph.operators}  # fmt: skip
    assert grads["elementwiserelu"] is False
    assert grads["elementwisemul"] is True


def test_casts_of_mixed_precision_leave_the_parameters():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(4, 4)

        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return self.a(x).float().mean()

    graph = import_torch(Mixed(), torch.zeros(8, 4))
    linear = next(o for o in graph.operators if o.family == "linear")
    assert [graph.tensors[n].kind for n in linear.inputs[1:]] == ["parameter", "parameter"]


def test_statistics_of_batch_norm_are_buffers_and_no_outputs():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
    graph = import_torch(model, torch.zeros(2, 3, 5, 5))
    assert families(graph) == ["convolution", "batch_norm", "reduce"]
    assert [t.name for t in graph.tensors.values() if t.kind == "buffer"] == [
        "1.running_mean",
        "1.running_var",
    ]


def test_constants_fold_and_equal_ones_are_shared():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
            self.register_buffer("table", torch.arange(4.0))

        def forward(self, x):
            for layer in (self.a, self.b):
                positions = torch.arange(x.shape[0], device=x.device).unsqueeze(1)
                x = layer(x) * (self.table + 1).cos() + positions
            return x.mean()

    graph = import_torch(Scaled(), torch.zeros(8, 4))
    constants = [o for o in graph.operators if o.family == "constant"]
    assert [graph.tensors[o.outputs[0]].shape for o in constants] == [(4,), (8, 1)]
    assert graph.operators[: len(constants)] == tuple(constants)
    assert all(graph.tensors[o.outputs[0]].kind == "constant" for o in constants)


def test_equal_buffers_of_layers_are_one_constant():
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.register_buffer("table", torch.tensor([1.0, 2.0, 3.0, 4.0]))

        def forward(self, x):
            return self.linear(x) * self.table

    graph = import_torch(nn.Sequential(Layer(), Layer()), torch.zeros(8, 4))
    assert families(graph).count("constant") == 1


@pytest.mark.parametrize("kind", ["causal", "float", "full", "window"])
def test_constant_masks_are_recognised(kind):
    class Masked(nn.Module):
        def forward(self, q):
            n = q.shape[2]
            i, j = torch.arange(n).unsqueeze(1), torch.arange(n)
            mask = j <= i
            if kind == "float":
                mask = torch.zeros(n, n).masked_fill(~mask, float("-inf"))
            elif kind == "full":
                mask = mask | (j > i)
            elif kind == "window":
                mask = mask & (j > i - 2)
            y = nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=mask)
            return y.mean()

    model = Masked()
    model.weight = nn.Parameter(torch.zeros(1))
    graph = import_torch(model, torch.zeros(2, 2, 5, 4))
    (attention,) = [o for o in graph.operators if o.family == "attention"]
    assert attention.attributes["causal"] is (kind in ("causal", "float"))
    assert len(attention.inputs) == (4 if kind == "window" else 3)


def test_mask_too_large_to_hold_is_taken_by_rows(monkeypatch):
    from tensoropt.importing import torch_constants

    monkeypatch.setattr(torch_constants, "_LARGEST_VALUE", 64)

    class Causal(nn.Module):
        def forward(self, q):
            n = q.shape[2]
            rows = torch.arange(n)[None, None, :, None].expand(q.shape[0], 1, n, 1)
            mask = torch.arange(n)[None, None, None, :] <= rows
            return nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=mask).mean()

    graph = import_torch(Causal(), torch.zeros(2, 2, 24, 4))
    assert families(graph)[0] == "attention"
    assert graph.operators[0].attributes["causal"] is True


def test_unknown_operator_is_opaque_and_noted():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            return torch.linalg.inv_ex(self.layer(x))[0].mean()

    graph = import_torch(Odd(), torch.zeros(8, 4, 4))
    (opaque,) = [o for o in graph.operators if o.family == "opaque"]
    assert opaque.attributes["op"].startswith("aten.linalg_inv_ex")
    assert any("no sharding rule for aten.linalg_inv_ex" in note for note in graph.notes)


def test_unused_parameters_are_left_out_and_noted():
    model = nn.ModuleDict({"used": nn.Linear(4, 4), "unused": nn.Linear(4, 4)})
    model.forward = lambda x: model["used"](x).mean()
    graph = import_torch(model, torch.zeros(8, 4))
    assert graph.parameter_count == 20
    assert any("(2): unused.bias, unused.weight" in note for note in graph.notes)


def test_sources_name_the_module_and_the_node():
    graph = import_torch(PatchClassifier(), torch.zeros(2, 3, 16, 16))
    attention = next(o for o in graph.operators if o.family == "attention")
    assert attention.source == "attention.0/scaled_dot_product_attention"
    assert attention.name == "attention.0/attention"
    assert len({o.name for o in graph.operators}) == len(graph.operators)


def test_import_is_deterministic():
    one, two = (import_torch(PatchClassifier(), torch.zeros(2, 3, 16, 16)) for _ in range(2))
    assert one.fingerprint() == two.fingerprint()
    assert one.to_dict() == two.to_dict()


class DataDependent(nn.Module):
    def forward(self, x):
        return x.sum() if x.sum() > 0 else x.mean()


class DataSized(nn.Module):
    def forward(self, x):
        return x[x > 0].mean()


@pytest.mark.parametrize("model", [DataDependent(), DataSized()])
def test_data_dependence_is_named_in_one_line(model):
    with pytest.raises(ImportModelError, match=r"depend") as caught:
        import_torch(model, torch.zeros(8, 4))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("model", "inputs", "options", "message"),
    [
        ("gpt2", torch.zeros(1), {}, "model is of type str, expected a torch.nn.Module"),
        (nn.Linear(4, 4), 3, {}, "example_inputs is of type int"),
        (nn.Linear(4, 4), (), {}, "hold no batched tensor"),
        (nn.Linear(4, 4), torch.zeros(2, 4), {"loss": 3}, "loss is of type int"),
        (
            nn.Linear(4, 4),
            torch.zeros(2, 4),
            {"loss": "x"},
            r"no entry 'x': it is a tensor of shape \(2, 4\)",
        ),
        (
            nn.Linear(4, 4),
            torch.zeros(2, 4),
            {"loss": "cross_entropy"},
            r"pass loss=torch.nn.functional.cross_entropy, targets=\.\.\.",
        ),
        (nn.Linear(4, 4), torch.zeros(2, 4), {"loss": lambda y: y}, r"\(2, 4\), expected a tensor"),
        (nn.Linear(4, 4), torch.zeros(2, 4), {"targets": torch.zeros(2)}, "without a callable"),
        (nn.Linear(4, 4), torch.zeros(2, 4), {"batch_size": 0}, "batch_size is 0"),
        (nn.Linear(4, 4), torch.zeros(2, 5), {}, "cannot be traced: RuntimeError"),
        (nn.Linear(4, 4), {"y": torch.zeros(2, 4)}, {}, "signature of the model's forward"),
        (nn.Identity(), torch.zeros(2, 4, dtype=torch.long), {}, "no floating tensor"),
    ],
)
def test_bad_input_is_refused_with_what_to_do(model, inputs, options, message):
    with pytest.raises(ImportModelError, match=message) as caught:
        import_torch(model, inputs, **options)
    assert "\n" not in str(caught.value)


def test_missing_torch_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'tensoropt\[torch\]'"):
        import_torch(object(), None)


def test_the_importer_imports_without_torch():
    code = (
        "import sys; sys.modules['torch'] = None; sys.modules['transformers'] = None\n"
        "import tensoropt.importing.torch_export, tensoropt.importing.huggingface\n"
        "import tensoropt.importing.passes, tensoropt.importing.torch_translate\n"
        "import tensoropt.importing.torch_ops_nn\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})


def test_the_comparison_can_fail(monkeypatch):
    """A graph that computes something else than its model is noticed."""
    real = torch_export.simplify

    def wrong(graph):
        data = real(graph).to_dict()
        for operator in data["operators"]:
            if operator["family"] == "layer_norm":
                operator["attributes"]["kind"] = "rms"
                operator["inputs"] = operator["inputs"][:2]
        return type(graph).from_dict(data)

    monkeypatch.setattr(torch_export, "simplify", wrong)
    with pytest.raises(AssertionError):
        compare(FlatFeedForward(), torch.randn(2, 3, 8))


class FinalStates(nn.Module):
    """Reads the final hidden states of a recurrent layer; `whole` keeps their shape."""

    def __init__(self, cell: str, whole: bool) -> None:
        super().__init__()
        self.rnn = getattr(nn, cell)(4, 6, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(6, 5)
        self.whole = whole

    def forward(self, x):
        _, state = self.rnn(x)
        hidden = state[0] if isinstance(state, tuple) else state
        return hidden.square().mean() if self.whole else self.head(hidden[-1])


def import_final_states(run, cell, whole):
    model, x = FinalStates(cell, whole).double(), torch.ones(3, 7, 4, dtype=torch.float64)
    if whole:
        return run(model, x)
    return run(model, x, loss=nn.functional.cross_entropy, targets=torch.tensor([0, 4, 2]))


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN"])
def test_final_states_compute_the_same_or_name_the_version(cell, whole):
    if cell == "LSTM" and torch.__version__ < "2.13":
        with pytest.raises(ImportModelError, match="use torch 2.13 or newer"):
            import_final_states(import_torch, cell, whole)
    else:
        import_final_states(compare, cell, whole)


@pytest.fixture
def old_lstm(monkeypatch):
    """Traced LSTMs as torch before 2.13 gives them: final states are (layers, 1, batch, hidden)."""
    export = torch_export._export

    def old(*args):
        program = export(*args)
        for node in program.graph.nodes:
            if node.target is torch.ops.aten.lstm.input:
                y, *states = node.meta["val"]
                states = [s.reshape(s.shape[0], 1, *s.shape[-2:]) for s in states]
                node.meta["val"] = (y, *states)
        return program

    monkeypatch.setattr(torch_export, "_export", old)
    monkeypatch.setattr(torch, "__version__", type(torch.__version__)("2.12.0"))


def test_wrongly_traced_final_states_are_refused(old_lstm):
    with pytest.raises(ImportModelError, match="states of LSTM 'rnn' .* use torch 2.13 or newer"):
        import_final_states(import_torch, "LSTM", True)


def test_a_failed_trace_names_wrong_final_states(old_lstm):
    model = FinalStates("LSTM", False)
    with pytest.raises(ImportModelError, match="cannot be traced: .* use torch 2.13 or newer"):
        import_torch(model, torch.zeros(3, 7, 9))


@pytest.mark.parametrize("bidirectional", [False, True])
def test_wrongly_traced_final_states_that_nothing_reads_are_put_right(old_lstm, bidirectional):
    lstm = nn.LSTM(4, 6, 2, batch_first=True, bidirectional=bidirectional).double()
    graph = import_torch(lstm, torch.zeros(3, 7, 4).double(), loss=lambda y: y[0].mean())
    [operator] = [o for o in graph.operators if o.family == "lstm"]
    directions = 2 if bidirectional else 1
    state = (2 * directions, 3, 6)
    shapes = [graph.tensors[name].shape for name in operator.outputs]
    assert shapes == [(3, 7, 6 * directions), state, state]
