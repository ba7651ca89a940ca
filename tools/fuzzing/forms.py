"""Expressions of programs, as texts in which {0}, {1}, ... stand for values; `lines.py` has products, reductions."""

from __future__ import annotations

UNARY = (
    "ab.tanh({0})", "ab.sigmoid({0})", "ab.softplus({0})", "ab.gelu({0})", "np.tanh({0})", "-{0}", "2 - {0}",
    "0.3 * {0} + {0}", "{0} * {0}", "{0} - 0.5 * {0}", "ab.log(1.5 + {0} * {0})", "ab.sqrt(0.5 + {0} * {0})",
    "ab.exp(ab.tanh({0}))", "1.0 / (2.0 + {0} ** 2)", "(1.5 + ab.tanh({0})) ** 1.5", "1.3 ** ab.tanh({0})",
    "ab.pow(1.5 + ab.tanh({0}), 3)", "{0} / 4", "{0} ** 3", "ab.sum_n([{0}, {0}])", "ab.div({0}, 2.0 + {0} * {0})",
    "ab.squared_error({0}, 0.5)", "ab.dropout({0}, 0.3)", "ab.dropout({0}, 0.0)",
    "ab.sin({0})", "ab.cos(2.0 * {0})", "abs(1.5 + {0} * {0})", "{0} + 0.1 * ab.normal(np.shape({0}))",
)  # fmt: skip
IDENTITIES = (
    "{0} * 0.0 + 1.0", "{0} * 0.0", "{0} - {0}", "-(-{0})", "{0} + 0.0", "0 + {0}", "{0} * 1.0", "{0} / 1.0",
    "{0} ** 1", "{0} ** 1.0", "{0} ** 0", "({0} + 1.5) - 1.5", "ab.log(ab.exp(ab.tanh({0})))", "2.0 * {0} * 0.5",
    "ab.exp(ab.log(1.5 + ab.tanh({0})))", "ab.transpose(ab.transpose({0}))", "ab.reshape({0}, np.shape({0}))",
    "{0} * 0.0 + 0.3", "(-{0}) * (-{0})", "{0} + -{0}", "ab.mean_n([{0}])", "ab.sum_n([{0}])",
)  # fmt: skip
BENT = (
    "ab.relu({0})", "ab.stop_gradient({0})", "ab.where({0} > 0.1, {0}, 2 * {0})", "ab.max_n([{0}, 0.3 * {0}])",
    "({0} < 0.2) * {0}", "ab.where(ab.less_equal({0}, 0.0), 0.1, {0})", "ab.stop_gradient({0}) * {0}",
    "ab.where({0}, {0}, 1.0)", "ab.not_equal({0}, 0.5) + {0}", "ab.equal({0}, 0.5) - {0}", "1.0 * ({0} >= -0.3)",
    "ab.abs({0})", "ab.clip({0}, -0.3, 0.4)", "ab.clip({0}, high=0.2)", "ab.maximum({0}, 0.1)", "ab.minimum(0.2, {0})",
    "((1 * {0} > 0.0) & (1 * {0} < 0.5)) * {0}", "ab.where(~(1 * {0} > 0.1) | (1 * {0} > 0.9), {0}, 0.5)",
)  # fmt: skip
BINARY = (
    "{0} + {1}", "{0} - {1}", "{0} * {1}", "{1} * {0}", "ab.squared_error({0}, {1})", "{0} / (2.0 + {1} * {1})",
    "ab.pow(1.5 + ab.tanh({0}), {1})", "np.add({0}, {1})", "ab.tanh({0} + {1}) * {1}", "{0} * {1} + {0}",
    "ab.sigmoid({0}) * {1}", "(1.0 - {0}) * {1}", "{0} + {1} * 0.0",
)  # fmt: skip
BENT_BINARY = (
    "ab.where({0} > {1}, {0}, {1})", "({0} >= {1}) * {1}", "ab.where({0} < {1}, {0} * {1}, 0.5)",
    "ab.where(0.2 < {0}, {1}, {0})", "ab.relu({0} - {1})", "ab.maximum({0}, {1})", "ab.minimum({0}, {1})",
)  # fmt: skip
SAME = (
    "ab.sum_n([{0}, {1}, {0}])", "ab.mean_n([{0}, {1}])", "ab.sum_n([{0}, {1}])", "ab.mean_n(({0}, {1}, {1}))",
    "sum([{0}, {1}, {0}])", "ab.stack([{0}, {1}])[1]", "ab.sum(ab.stack([{0}, {1}], -1), axis=-1)",
    "ab.logsumexp_n([{0}, {1}])", "ab.dot_n([0.5, 2.0], [{0}, {1}])", "ab.softmax_n([{0}, {1}])[0] * {1}",
)  # fmt: skip
BENT_SAME = ("ab.max_n([{0}, {1}])", "ab.max_n([{0}, {1}, {0}])")

# Views of a larger value with the wanted shape: the text, the least number of axes, and the larger shape as a function
# of the wanted one.
VIEWS = (
    ("{0}[::-1]", 1, lambda s: s),
    ("{0}[1:]", 1, lambda s: (s[0] + 1, *s[1:])),
    ("{0}[:-1]", 1, lambda s: (s[0] + 1, *s[1:])),
    ("{0}[::2]", 1, lambda s: (2 * s[0], *s[1:])),
    ("{0}[1]", 0, lambda s: (2, *s)),
    ("{0}[None, 0][0]", 0, lambda s: (3, *s)),
    ("{0}[..., 0]", 0, lambda s: (*s, 2)),
    ("{0}[..., ::-1]", 1, lambda s: s),
    ("{0}[..., 1:]", 1, lambda s: (*s[:-1], s[-1] + 1)),
    ("{0}[..., ::2]", 1, lambda s: (*s[:-1], max(2 * s[-1] - 1, 0))),
    ("ab.transpose({0})", 2, lambda s: s[::-1]),
    ("ab.transpose({0}[::-1])", 2, lambda s: s[::-1]),
    ("ab.transpose({0})[::-1]", 2, lambda s: s[::-1]),
)
COMPUTED = (
    "({0} * 0.5)",
    "(-{0})",
    "({0} + {0})",
    "ab.tanh({0})",
    "({0} * self.p0)",
    "({0} * 0.0 + 1.0)",
    "ab.exp({0})",
)
