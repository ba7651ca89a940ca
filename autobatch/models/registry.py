"""Find a model by name: a model of autobatch, or a user's as `package.module:Class`."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from autobatch.arguments import refusal
from autobatch.errors import DataError
from autobatch.keywords import checked, nearest
from autobatch.models.data.own_files import FilesLoader
from autobatch.models.spec import ModelSpec
from autobatch.readers.files import Files
from autobatch.tracebacks import users_line

MODELS = {
    "tree-lstm": "autobatch.models.tree_lstm:SPEC",
    "tree-lstm-2type": "autobatch.models.tree_lstm:TWO_TYPE_SPEC",
    "tree-lstm-childsum": "autobatch.models.tree_lstm:CHILD_SUM_SPEC",
    "tree-transformer": "autobatch.models.tree_transformer:SPEC",
    "tree-gru": "autobatch.models.tree_rnn:GRU_SPEC",
    "tree-fc": "autobatch.models.tree_rnn:FC_SPEC",
    "mv-rnn": "autobatch.models.tree_rnn:MV_SPEC",
    "dag-rnn": "autobatch.models.dag_rnn:SPEC",
    "bilstm-tagger": "autobatch.models.bilstm_tagger:SPEC",
    "bilstm-char-tagger": "autobatch.models.bilstm_tagger:CHAR_SPEC",
    "bilstm-crf": "autobatch.models.bilstm_tagger:CRF_SPEC",
    "lattice-lstm": "autobatch.models.lattice_tagger:LSTM_SPEC",
    "lattice-gru": "autobatch.models.lattice_tagger:GRU_SPEC",
    "lattice-lstm-ner": "autobatch.models.lattice_lstm_ner:SPEC",
    "lstm-lm": "autobatch.models.lstm_lm:SPEC",
    "seq2seq": "autobatch.models.seq2seq:SPEC",
    "lstm-nmt": "autobatch.models.seq2seq:NMT_SPEC",
    "lstm-nmt-attention": "autobatch.models.seq2seq:ATTENTION_SPEC",
    "early-exit": "autobatch.models.early_exit:SPEC",
    "stack-lstm-parser": "autobatch.models.stack_lstm_parser:SPEC",
    "doubly-recurrent": "autobatch.models.doubly_recurrent:SPEC",
    "graph-network": "autobatch.models.graph_network:SPEC",
    "molecule-forces": "autobatch.models.molecule_forces:SPEC",
    "grid-lstm": "autobatch.models.grid_lstm:SPEC",
    "nested-rnn": "autobatch.models.nested_rnn:SPEC",
    "random-dag": "autobatch.models.random_dag:SPEC",
}


class ClassSpec(ModelSpec):
    """The spec of a user's class."""

    def lack_of(self, part: str) -> str:
        return f"{self.name} is a class, so make an autobatch.models.ModelSpec with {part} for it"


@checked()
def find_model(name: str) -> ModelSpec:
    """Find a model by its name, or by `package.module:Class`.

    A user's class is an `ab.Module` with a method `loss(instance)`. With an attribute `files`, an
    `autobatch.readers.Files`, it reads these files and is measured by its loss. Otherwise it reads the same data as
    `tree-lstm`, and has the same metrics if it has a method `scores(tree)` that returns the root's scores (n_classes,)
    and a list of the scores of all nodes in postorder. For other data, `package.module:name` may name a `ModelSpec`.

    Raises:
        DataError: the model is unknown or unusable.
    """
    if name in MODELS:
        return _spec(name, MODELS[name])
    if ":" in name:
        return _spec(name, name)
    raise _unknown(name)


def check_name(name: str) -> None:
    """Check the name of a model, without looking up user-defined models.

    Raises:
        DataError: the name is unknown.
    """
    if name not in MODELS and ":" not in name:
        raise _unknown(name)


def _unknown(name: str) -> DataError:
    meant = nearest(name, MODELS)
    return DataError(
        f"cannot find model {name!r}{f'; did you mean {meant}?' if meant else '.'} Give one of {', '.join(MODELS)}, or "
        f"package.module:Class for a model of your own."
    )


def _spec(name: str, place: str) -> ModelSpec:
    import autobatch as ab

    found = _import(place)
    if isinstance(found, ModelSpec):
        return found
    if not (isinstance(found, type) and issubclass(found, ab.Module) and callable(getattr(found, "loss", None))):
        raise DataError(
            f"model {name!r} must be a subclass of autobatch.Module with a method loss(instance), or a ModelSpec, got "
            f"{_describe(found)}."
        )
    summary, files = (found.__doc__ or name).strip().splitlines()[0], getattr(found, "files", None)
    if files is not None and not isinstance(files, Files):
        raise refusal(f"files of {name}", "an autobatch.readers.Files", files)
    if files is not None:
        return ClassSpec(
            name=name, summary=summary, model=found, generators=(), reads="the files of its class", default_data="",
            load=FilesLoader(files), count_correct=_mean_loss, predictor="loss", costs=("loss",),
        )  # fmt: skip
    from autobatch.models.tree_lstm import SPEC

    return ClassSpec(
        name=name,
        summary=summary,
        model=found,
        generators=SPEC.generators,
        reads=SPEC.reads,
        default_data=SPEC.default_data,
        load=SPEC.load,
        load_inputs=SPEC.load_inputs,
        count_correct=_of_scores(name, SPEC.count_correct) if hasattr(found, "scores") else None,
        predict=_of_scores(name, SPEC.predict) if hasattr(found, "scores") else None,
        label=SPEC.label,
        probabilities=_of_scores(name, SPEC.probabilities) if hasattr(found, "scores") else None,
    )


def _mean_loss(outputs: Any, instances: Sequence[Any], vocabularies: Any) -> dict[str, tuple[float, float]]:
    """Sum the losses on development data, and count them."""
    return {"loss": (float(np.sum(outputs, dtype=np.float64)), len(instances))}


def _of_scores(name: str, function: Any) -> Any:
    """Wrap a function of the results of a user's batched `scores`, so that it checks them first."""

    def call(outputs: Any, trees: Sequence[Any], vocabularies: Any) -> Any:
        if not _are_scores(outputs, trees):
            raise DataError(
                f"scores(tree) of {name} must return a tuple of the root's scores, of shape (n_classes,), and a list "
                f"of the scores of all nodes in postorder."
            )
        return function(outputs, trees, vocabularies)

    return call


def _are_scores(outputs: Any, trees: Sequence[Any]) -> bool:
    """Return whether outputs are root logits (B, C), and for each of the B trees the logits (C,) of its nodes."""
    if type(outputs) is not tuple or len(outputs) != 2:
        return False
    root, of_trees = outputs
    if not isinstance(root, np.ndarray) or root.ndim != 2 or type(of_trees) is not list or len(of_trees) != len(trees):
        return False
    if any(type(of_nodes) is not list for of_nodes in of_trees):
        return False
    n_nodes = [sum(1 for _ in tree.postorder()) for tree in trees]
    shapes = {getattr(scores, "shape", None) for of_nodes in of_trees for scores in of_nodes}
    return [*map(len, of_trees)] == n_nodes and shapes == {root.shape[1:]}


def _import(place: str) -> Any:
    module_name, _, attribute = place.rpartition(":")
    if not all(part.isidentifier() for part in module_name.split(".")) or module_name.endswith(".py"):
        raise DataError(
            f"a model of your own must be package.module:Class, not a path, got {place!r}; run in the folder of its "
            f"file, and give the name of the file without .py."
        )
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # the user's module may raise any error
        failed = f"cannot load model {place!r}: importing {module_name!r} failed"
        # The named module or a package around it is missing, not a module that it imports.
        is_absent = isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}.")
        where = "" if is_absent or isinstance(error, SyntaxError) else f" at {users_line(error)}"
        advice = "run in a directory from which it can be imported" if is_absent else "correct that module"
        raise DataError(f"{failed}{where} ({type(error).__name__}: {error}); {advice}.") from error
    if not hasattr(module, attribute):
        raise DataError(
            f"cannot load model {place!r}: module {module_name!r} has no {attribute!r}; name a class that it defines."
        )
    return getattr(module, attribute)


def _describe(found: Any) -> str:
    return f"class {found.__name__}" if isinstance(found, type) else f"an object of type {type(found).__name__}"
