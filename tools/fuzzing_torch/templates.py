"""Expressions in the bodies of drawn modules: a hole {f} is for floats, {i} for ints, {b} for conditions.

A hole {t} is for an int of the data, {m} for a mask of the data: bodies may depend on their contents.

A line is drawn again if torch raises an error for the values at hand, so templates need not always fit.
"""

from __future__ import annotations

ELEMENT = (
    "torch.tanh({f})", "{f}.sigmoid()", "{f}.exp().clamp(max=5.0)", "{f} + {f}", "{f} * {f}", "{f} - {f}", "-{f}",
    "{f} / (1 + {f}.abs())", "2 - {f}", "{f} * 0.5", "{f} ** 2", "{f}.abs().sqrt()", "F.relu({f})", "F.relu6({f} * 4)",
    "F.hardtanh({f} * 2)", "F.gelu({f})", "F.silu({f})", "F.elu({f})", "F.selu({f})", "F.softplus({f})", "F.mish({f})",
    "F.hardswish({f} * 3)", "F.leaky_relu({f})", "F.softshrink({f}, 0.3)", "F.logsigmoid({f})", "{f}.clamp(-0.5, 0.5)",
    "{f}.round()", "{f} + ({f}.round() - {f}).detach()", "{f}.floor()", "{f}.sin()", "{f}.sign() * {f}",
    "torch.maximum({f}, {f})", "torch.minimum({f}, {f})", "torch.where({b}, {f}, {f})", "{f}.masked_fill({b}, 0.5)",
    "torch.lerp({f}, {f}, 0.3)", "torch.addcmul({f}, {f}, {f})", "{f}.detach()", "{f}.fmod(0.7)", "{f} % 0.7",
    "torch.atan2({f}, {f})", "torch.hypot({f}, {f})", "{f}.erf()", "torch.logaddexp({f}, {f})", "Triple.apply({f})",
    "{f}.clone().mul_(2.0)", "F.dropout({f}, 0.0, self.training)", "{f} * self.scale", "{f} + self.shift",
)  # fmt: skip
SHAPED = (
    "{f}.sum()", "{f}.mean(-1)", "{f}.sum(0)", "{f}.sum(-1, keepdim=True)", "{f}.prod(-1)", "{f}.std(-1)", "{f}.norm()",
    "{f}.amax(-1)", "{f}.max(-1).values", "{f}.min(0).values", "{f}.max()", "{f}.logsumexp(-1)", "{f}.softmax(-1)",
    "{f}.softmax(0)", "F.log_softmax({f}, -1)", "{f}.cumsum(-1)", "{f}.sort(-1).values", "{f}.flip(0)",
    "{f}.roll(1, -1)",
    "{f}.reshape(-1)", "{f}.unsqueeze(0)", "{f}.unsqueeze(-1)", "{f}.squeeze()", "{f}.squeeze(0)", "{f}[0]", "{f}[1:]",
    "{f}[..., -1]", "{f}[..., :2]", "{f}[:, 0]", "{f}.mT", "{f}.t()", "{f}.expand(2, -1)", "{f}.repeat(2)",
    "torch.cat(({f}, {f}), -1)", "torch.cat(({f}, {f}))", "torch.stack(({f}, {f}))", "{f}.chunk(2, -1)[0]",
    "torch.outer({f}, {f})", "{f} @ {f}", "torch.einsum('i,j->ij', {f}, {f})", "F.layer_norm({f}, {f}.shape[-1:])",
    "F.normalize({f}, dim=-1)", "F.pad({f}, (1, 1))", "{f}.tril()", "{f}.diagonal()", "torch.zeros_like({f}) + {f}",
    "{f}[{i} % {f}.shape[0]]", "{f}.gather(-1, {f}.argsort(-1))", "{f}.topk(1).values", "F.glu({f}, -1)",
    "F.cosine_similarity({f}, {f}, dim=-1)", "F.mse_loss({f}, {f})", "F.smooth_l1_loss({f}, {f})", "F.unfold({f}, 1)",
    "F.cross_entropy({f}, {i} % {f}.shape[-1])", "{f}.var(-1, correction=0)", "{f}.median()", "{f}.view(-1, 1)",
    "F.one_hot({i} % 3, 3) * 0.5", "{f}.index_select(0, {i}.reshape(-1) % {f}.shape[0])", "F.kl_div({f}, {f}.exp())",
    "{f}.masked_fill({f}.isnan(), 0.0)", "{f}.nan_to_num()", "{f}.unbind(-1)[0]", "{f}.movedim(0, -1)",
)  # fmt: skip
CASTS = (
    "{b}.double()", "{b}.to({f}.dtype)", "{i}.double()", "{i} * {f}", "{b} * {f}", "{f}.float()", "{f}.half().double()",
    "{f}.to(torch.float32)", "{f}.long().double()", "{i} / 2", "{f}.bfloat16().to({f}.dtype)", "{f}.type_as({f})",
    "torch.full_like({f}, 1.7)", "{i}.float().log1p()", "({f} * 3).int().double()", "{b}.sum() * {f}",
)  # fmt: skip
INTS = (
    "{i} + {i}", "{i} * 2", "{i} // 2", "{i} % 3", "{i} & 1", "{i} | 2", "{i} ^ 1", "~{i}", "-{i}", "{f}.argmax()",
    "{f}.argmax(-1)", "({f} * 3).long()", "{f}.max(-1).indices", "{b}.sum()", "{b}.long()", "{b} + {b}.int()",
    "torch.full_like({f}, 2.7, dtype=torch.long)", "({f} > 0).int()", "{i}.clamp(0, 2)", "torch.where({b}, {i}, 1)",
    "{i}.abs()", "{f}.sort(-1).indices", "torch.arange({f}.shape[0])", "{i}.reshape(-1)", "{b}.int() - 1",
)  # fmt: skip
CONDITIONS = (
    "{f} > 0.1", "{f} <= {f}", "{b} & {b}", "{b} | {b}", "~{b}", "{b} ^ {b}", "{i} == {i}", "{i} > 1", "{f}.bool()",
    "{b}.any(-1)", "{b}.all()", "{b}.logical_not()", "{f}.isnan()", "torch.isclose({f}, {f})", "{b}[..., 0]",
    "{f}.ne(0)", "({f} > 0) + ({f} > 0.5)",
)  # fmt: skip
NUMBERS = (
    "{f} * int({t})", "sum({f} * k for k in range(int({t}) % 3 + 1))", "{f} if {t} > 1 else -{f}", "{f}[{m}].sum()",
    "{f} * 2 if {m}.any() else {f}", "{f}[..., : int({t}) % 2 + 1].sum(-1)", "{f}[..., {m}].sum(-1)",
    "torch.masked_select({f}, {m}).sum()", "{f}.repeat_interleave({m}.long() + 1, -1).sum(-1)",
    "{f}.repeat_interleave({t} % 2 + 1, 0).sum(0)", "F.one_hot({t} % 3).sum() * {f}", "{f}[{t} % {f}.shape[0], ...]",
    "torch.bincount({m}.long()).sum() * {f}", "{f}.tensor_split({t}.reshape(1) % 2 + 1, -1)[0].sum(-1)",
    "({f} * 2)[{m} & ({t} > 1)].sum()", "{f} * {m}.nonzero().numel()", "{f} * {m}.tolist()[0]",
)  # fmt: skip
WEIGHTED = 6, 7, 2, 2, 1, 1
KINDS = ELEMENT, SHAPED, CASTS, INTS, CONDITIONS, NUMBERS

LAYERS = {
    "nn.Linear({d}, {e})": "{f}",
    "nn.Linear({d}, {e}, bias=False)": "{f}",
    "nn.LayerNorm({d})": "{f}",
    "nn.Dropout(0.0)": "{f}",
    "nn.PReLU()": "{f}",
    "nn.Sequential(nn.Linear({d}, {e}), nn.Tanh(), nn.Linear({e}, {d}))": "{f}",
    "nn.GRUCell({d}, {d})": "{f}, {f}",
    "nn.RNNCell({d}, {d})": "{f}, {f}",
    "nn.Bilinear({d}, {d}, {e})": "{f}, {f}",
    "nn.Embedding(9, {d})": "{i}.abs() % 9",
    "Norm({d})": "{f}.reshape(1, -1)",
    "nn.GroupNorm(1, {d})": "{f}.reshape(1, -1)",
    "nn.Conv1d(1, 2, 2)": "{f}.reshape(1, -1)",
    "nn.utils.parametrizations.weight_norm(nn.Linear({d}, {e}))": "{f}",
    "nn.MultiheadAttention({d}, 1)": "{f}.reshape(1, -1), {f}.reshape(1, -1), {f}.reshape(1, -1)",
}
"""Layers of width {d}, and their arguments."""

HOOKS = (
    "{m}.register_forward_hook(lambda m, a, y: y * 1.5 if isinstance(y, torch.Tensor) else y)",
    "{m}.register_forward_pre_hook(lambda m, a: tuple(x * 0.5 if x.is_floating_point() else x for x in a))",
    "{m}.register_full_backward_hook(lambda m, given, got: tuple(2 * g if is_float(g) else g for g in given))",
)
CHANGES = (
    "model.train()", "model.eval()", "model.zero_grad()", "model.requires_grad_(False)", "model.requires_grad_(True)",
    "{p}.requires_grad_(False)", "{p}.requires_grad_(True)", "if {p}.requires_grad: {p}.register_hook(lambda g: g * 2)",
    "model.load_state_dict(weaker(model))", "model.load_state_dict(weaker(model), assign=True)",
    "{p}.data = {p}.data * 1.1", "nn.init.constant_({p}, 0.3)", "{p}.grad = None", "{c}.scale = 0.7", "{c}.flag = True",
    "{c}.shift = {c}.shift * 0.5", "{c}.shift.mul_(-1.0)", "model = model.float().double()",
    "model = copy.deepcopy(model)",
)  # fmt: skip
"""Changes of a model's state between its calls."""
