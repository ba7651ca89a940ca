"""From the log of ints that a recording appended to, to the encoded graph: one compiled pass to count, one to fill.

The log holds, per call: the ref of the new handle, whose id tells the form, then what the form's code says: a
handle's ref (HANDLE), attribute words (WORDS), or a list (EACH: its length, then for each part that is read one ref
per element). Handles become nodes through `node_of[handle id]`; serial numbers that only ever grow tell a handle of
this instance from one of an earlier recording.
"""

from __future__ import annotations

from struct import error as StructError
from struct import pack_into
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autobatch.graph.words import words_size, write_header
from autobatch.jit.arrays import IntArray
from autobatch.jit.loops import compiled

LongArray: TypeAlias = NDArray[np.int64]

HANDLE, WORDS, EACH, END = 0, 1, 2, 3  # the codes of what a form logged
ITEMS = 4  # where they begin in the code of a form, after its type and its sizes
STALE, TOO_LARGE = 1, 2  # how decoding failed; 0 if it did not
INT32_MAX = 2**31 - 1


@compiled
def count_log(log: LongArray, form_of: IntArray, code: IntArray, code_ptr: IntArray) -> tuple[int, int, int]:
    """Count nodes, edges and attribute words in the log."""
    n = e = a = at = 0
    while at < log.size:
        c = code_ptr[form_of[log[at] >> 8]]
        n += 1
        if code[c + 1]:
            at, e, a = at + code[c + 1], e + code[c + 2], a + code[c + 3]
            continue
        at += 1
        c += ITEMS
        while code[c] != END:
            if code[c] == HANDLE:
                e += code[c + 1]
                at += 1
                c += 2 + 2 * code[c + 1]
            elif code[c] == WORDS:
                a += code[c + 1]
                at += code[c + 1]
                c += 2
            else:
                length, n_parts = log[at], code[c + 1]
                at += 1 + length * n_parts
                c += 2
                for _ in range(n_parts):
                    e += length * code[c]
                    c += 1 + 2 * code[c]
    return n, e, a


@compiled
def decode_log(
    log: LongArray,
    log_ptr: LongArray,
    out_ref: LongArray,
    out_slot: LongArray,
    output_ptr: LongArray,
    form_of: IntArray,
    code: IntArray,
    code_ptr: IntArray,
    node_of: LongArray,
    base: int,
    n_floats: int,
) -> tuple[IntArray, LongArray]:
    """Encode the recorded instances as one graph.

    Args:
        log, log_ptr: what was logged; instance i logged log[log_ptr[i]:log_ptr[i + 1]].
        out_ref, out_slot, output_ptr: what instance i returned is out_ref[output_ptr[i]:output_ptr[i + 1]].
        form_of: the form that gives out each handle; code, code_ptr: the codes of all forms.
        node_of: serial number of the node that last had each handle; updated.
        base: serial number of this graph's first node.
        n_floats: float attributes logged.

    Returns:
        The words, and (status, instance, node within it, place in the log) of the first fault.
    """
    n, e, a = count_log(log, form_of, code, code_ptr)
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
            own = log[at] >> 8
            c = code_ptr[form_of[own]]
            type_id[n] = code[c]
            c += ITEMS
            at += 1
            while code[c] != END:
                if code[c] == WORDS:
                    if not _copy_words(log, at, attr, a, code[c + 1]):
                        fault[0], fault[1], fault[2] = TOO_LARGE, i, n - first
                        return words, fault
                    a, at, c = a + code[c + 1], at + code[c + 1], c + 2
                    continue
                length, n_parts = 1, 1
                if code[c] == EACH:
                    length, n_parts = log[at], code[c + 1]
                    at += 1
                    c += 1
                c += 1
                for _ in range(n_parts):
                    for k in range(code[c]):
                        port, out = code[c + 1 + 2 * k], code[c + 2 + 2 * k]
                        for position in range(at, at + length):
                            ref = log[position]
                            node = node_of[ref >> 8] - base
                            if node < first:
                                fault[0], fault[1], fault[2] = STALE, i, n - first
                                return words, fault
                            edge_src[e], edge_in[e] = node, port
                            edge_out[e] = (ref & 255) if out < 0 else out
                            e += 1
                    at += length
                    c += 1 + 2 * code[c]
            node_of[own] = base + n
            n += 1
            edge_ptr[n] = e
        graph.instance_ptr[i + 1] = n
        outputs = slice(output_ptr[i], output_ptr[i + 1])
        if not _find_outputs(out_ref[outputs], node_of, base, first, graph.out_node[outputs], graph.out_port[outputs]):
            fault[0], fault[1], fault[2] = STALE, i, -1
            return words, fault
    ends, slots = graph.output_ptr, graph.out_slot
    for i in range(output_ptr.size):
        ends[i] = output_ptr[i]
    for o in range(out_slot.size):
        slots[o] = out_slot[o]
    return words, fault


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
    refs: LongArray, node_of: LongArray, base: int, first: int, out_node: IntArray, out_port: IntArray
) -> bool:
    """Write which nodes an instance returned, before their handles go to another; False if one is stale."""
    for o in range(refs.size):
        out_node[o] = node_of[refs[o] >> 8] - base
        out_port[o] = refs[o] & 255
        if out_node[o] < first:
            return False
    return True


def as_longs(values: list[int]) -> LongArray:
    """A logged list as an array; OverflowError if an int needs more than 64 bits."""
    array = np.empty(len(values), np.int64)
    try:
        pack_into(f"{len(values)}q", array.data, 0, *values)  # takes two thirds of the time of np.array
    except StructError:
        raise OverflowError("an int needs more than 64 bits") from None
    return array


def make_code(type_id: int, items: list[tuple[int, ...]]) -> tuple[int, ...]:
    """The code of a form: its type; ints that a call logs, edges, and attribute words, or 0 if it has lists; its items.

    Args:
        items: (HANDLE, n, n pairs), (WORDS, n), or (EACH, parts, and for each of them n, n pairs); a pair is a port and
            an output, or -1 for the one that the ref names.
    """
    handles, words = ([item[1] for item in items if item[0] == kind] for kind in (HANDLE, WORDS))
    has_lists = len(handles) + len(words) < len(items)
    sizes = (0, 0, 0) if has_lists else (1 + len(handles) + sum(words), sum(handles), sum(words))
    return type_id, *sizes, *(word for item in items for word in item), END


def form_tables(codes: list[tuple[int, ...]]) -> tuple[IntArray, IntArray]:
    """The codes of all forms one after another, and where each starts."""
    lengths: list[Any] = [len(c) for c in codes]
    ptr = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    return np.array([word for c in codes for word in c], np.int32), ptr
