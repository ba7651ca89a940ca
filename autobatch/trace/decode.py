"""Decoding: one compiled pass counts the nodes in the log of a recording, a second one writes the graph.

The log holds, per call: the ref of the new handle, whose id tells the form, then what the form's code says: the ref of
a value, or of the first output of a node (VALUE), attribute words (WORDS), a list (EACH: its length, then refs, element
by element), or data of any length (ROWS: its length, then the ints of each element).
Ids become nodes through `node_of[id]`; serial numbers that only ever grow tell a handle of this instance from one of an
earlier recording.
"""

from __future__ import annotations

from struct import error as StructError
from struct import pack_into
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autobatch.graph.words import OUTPUT, OUTPUT_BITS, words_size, write_header
from autobatch.jit.arrays import IntArray
from autobatch.jit.loops import compiled
from autobatch.trace.handles import ROW_BIT

LongArray: TypeAlias = NDArray[np.int64]

ID, ROW = (1 << (ROW_BIT - OUTPUT_BITS)) - 1, ROW_BIT - OUTPUT_BITS  # of a ref without its output: the id, and the row
VALUE, WORDS, EACH, ROWS, END = 0, 1, 2, 3, 4  # the codes of what a form logged
STALE, TOO_LARGE = 1, 2  # how decoding failed; 0 if it did not
INT32_MAX = 2**31 - 1


class FormTables(NamedTuple):
    """The forms of calls, as the decoder reads them.

    Attributes:
        of: the form that returns each handle, by id.
        code, ptr: the code of form f is code[ptr[f]:ptr[f + 1]]: its type, and items that end with END. These are
            VALUE, n, n ports; WORDS, n; ROWS, ints per element; or EACH, parts, and for each of them n, n ports. A port
            is -1 where the cell does not read the value.
    """

    of: IntArray
    code: IntArray
    ptr: IntArray


@compiled
def count_log(log: LongArray, form_of: IntArray, code: IntArray, code_ptr: IntArray) -> tuple[int, int, int]:
    """Count nodes, edges and attribute words in the log."""
    n = e = a = at = 0
    while at < log.size:
        c = code_ptr[form_of[log[at] >> OUTPUT_BITS]] + 1
        n, at = n + 1, at + 1
        while code[c] != END:
            if code[c] == WORDS or code[c] == ROWS:
                n_words = _count_words(log, at, code, c)
                a, at, c = a + n_words, at + n_words, c + 2
                continue
            length, n_parts = 1, 1
            if code[c] == EACH:
                length, n_parts = log[at], code[c + 1]
                at, c = at + 1, c + 1
            at, c = at + length * n_parts, c + 1
            for _ in range(n_parts):
                for k in range(code[c]):
                    e += length * (code[c + 1 + k] >= 0)
                c += 1 + code[c]
    return n, e, a


@compiled
def _count_words(log: LongArray, at: int, code: IntArray, c: int) -> int:
    """Count the words that an item of a form's code copies from log[at:]."""
    return int(code[c + 1] if code[c] == WORDS else 1 + log[at] * code[c + 1])


@compiled
def decode_log(
    log: LongArray, forms: FormTables, node_of: LongArray, base: int, owner: IntArray, n_floats: int
) -> tuple[IntArray, LongArray]:
    """Encode the recorded instances as one graph.

    Args:
        log: from `encode_log`.
        node_of: serial number of the last node of each handle; updated.
        base: serial number of this graph's first node.
        owner: the instances of the nodes before it that may be read, numbered backwards from -1; see
            `autobatch.graph.growing`.
        n_floats: float attributes logged.

    Returns:
        The words, and (status, instance, node within it, position in the log) of the first fault.
    """
    (ints, log_ptr, out_ref, out_slot, out_ptr), (form_of, code, code_ptr) = _parts_of(log), forms
    n, e, a = count_log(ints, form_of, code, code_ptr)
    n_instances = log_ptr.size - 1
    words = np.empty(words_size(n_instances, n, e, a, out_ref.size), np.int32)
    graph = write_header(words, n_instances, n, e, a, out_ref.size, n_floats)
    type_id, edge_ptr, attr = graph.type_id, graph.edge_ptr, graph.attr
    edge_src, edge_out, edge_in = graph.edge_src, graph.edge_out, graph.edge_in
    fault = np.zeros(4, np.int64)
    n = e = a = 0
    for i in range(n_instances):
        first = n
        at, end = log_ptr[i], log_ptr[i + 1]
        while at < end:
            fault[3] = at
            own = ints[at] >> OUTPUT_BITS
            c = code_ptr[form_of[own]]
            type_id[n] = code[c]
            at, c = at + 1, c + 1
            while code[c] != END:
                if code[c] == WORDS or code[c] == ROWS:
                    n_words = _count_words(ints, at, code, c)
                    if not _copy_words(ints, at, attr, a, n_words):
                        fault[0], fault[1], fault[2] = TOO_LARGE, i, n - first
                        return words, fault
                    a, at, c = a + n_words, at + n_words, c + 2
                    continue
                length, n_parts = 1, 1
                if code[c] == EACH:
                    length, n_parts = ints[at], code[c + 1]
                    at, c = at + 1, c + 1
                c += 1
                for part in range(n_parts):
                    for k in range(code[c]):
                        port = code[c + 1 + k]
                        if port < 0:
                            continue
                        for position in range(at + part, at + length * n_parts, n_parts):
                            output, ref = ints[position] & OUTPUT, ints[position] >> OUTPUT_BITS
                            node = node_of[ref & ID] - base
                            if node < first and not _is_earlier(node, owner, i):
                                fault[0], fault[1], fault[2] = STALE, i, n - first
                                return words, fault
                            edge_src[e], edge_out[e], edge_in[e] = node, output + k | ref >> ROW << OUTPUT_BITS, port
                            e += 1
                    c += 1 + code[c]
                at += length * n_parts
            node_of[own] = base + n
            n += 1
            edge_ptr[n] = e
        graph.instance_ptr[i + 1] = n
        outputs = slice(out_ptr[i], out_ptr[i + 1])
        if not _find_outputs(
            out_ref[outputs], node_of, base, first, graph.out_node[outputs], graph.out_port[outputs], owner, i
        ):
            fault[0], fault[1], fault[2] = STALE, i, -1
            return words, fault
    graph.output_ptr[:] = out_ptr
    graph.out_slot[:] = out_slot
    return words, fault


@compiled
def _is_earlier(node: int, owner: IntArray, instance: int) -> bool:
    """Whether a node is one of those before the graph, and of this instance."""
    return -owner.size <= node < 0 and owner[owner.size + node] == instance


@compiled
def _copy_words(log: LongArray, at: int, attr: IntArray, a: int, n_words: int) -> bool:
    """Copy a node's int attributes from log[at:] to attr[a:]; False if one does not fit 32 bits."""
    for k in range(n_words):
        if not -INT32_MAX <= log[at + k] <= INT32_MAX:
            return False
        attr[a + k] = log[at + k]
    return True


@compiled
def _find_outputs(
    refs: LongArray, node_of: LongArray, base: int, first: int, out_node: IntArray, out_port: IntArray,
    owner: IntArray, instance: int,
) -> bool:  # fmt: skip
    """Write the nodes that an instance returned, before other instances reuse the handles; False if one is stale."""
    for o in range(refs.size):
        output, ref = refs[o] & OUTPUT, refs[o] >> OUTPUT_BITS
        out_node[o] = node_of[ref & ID] - base
        out_port[o] = output | ref >> ROW << OUTPUT_BITS
        if out_node[o] < first and not _is_earlier(out_node[o], owner, instance):
            return False
    return True


def encode_log(
    ints: list[int], ptr: list[int], out_ref: list[int], out_slot: list[int], out_ptr: list[int]
) -> LongArray:
    """The log of a recorded mini-batch as one array, headed by the numbers of ints, instances and outputs.

    Args:
        ints, ptr: instance i logged ints[ptr[i]:ptr[i + 1]].
        out_ref, out_slot, out_ptr: instance i returned out_ref[out_ptr[i]:out_ptr[i + 1]], in the slots out_slot.

    Raises:
        OverflowError: an int needs more than 64 bits.
    """
    values = [len(ints), len(ptr) - 1, len(out_ref), *ints, *ptr, *out_ref, *out_slot, *out_ptr]
    array = np.empty(len(values), np.int64)
    try:
        pack_into(f"{len(values)}q", array.data, 0, *values)  # takes two thirds of the time of np.array
    except StructError:
        raise OverflowError("an int needs more than 64 bits") from None
    return array


@compiled
def _parts_of(log: LongArray) -> tuple[LongArray, LongArray, LongArray, LongArray, LongArray]:
    """View the lists that `encode_log` encoded."""
    n_ints, n_instances, n_outputs = log[0], log[1], log[2]
    ptr = 3 + n_ints
    refs = ptr + n_instances + 1
    slots = refs + n_outputs
    ends = slots + n_outputs
    return log[3:ptr], log[ptr:refs], log[refs:slots], log[slots:ends], log[ends:]


def form_tables(form_of: list[int], codes: list[tuple[int, ...]]) -> FormTables:
    """The tables of these forms."""
    ptr = np.cumsum([0, *map(len, codes)]).astype(np.int32)
    return FormTables(np.array(form_of, np.int32), np.array([word for c in codes for word in c], np.int32), ptr)
