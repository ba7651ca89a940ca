#include "record/decode.h"

#include "graph/words.h"
#include "record/handles.h"
#include "support/ints.h"

namespace autobatch {
namespace {

constexpr int32_t MOST_FIXED = 64;  // items with more int attributes than this are not read by offset

enum Status : int { FINE = 0, STALE = 1, TOO_LARGE = 2 };

// Where decoding stopped, and why.
struct Fault {
  Status status = FINE;
  int64_t instance = 0, node = -1, at = 0;
};

// One item of a form's code, with the lengths that a call logged for it.
struct Item {
  int32_t kind;
  int64_t length;   // of a list, or of data of any length; else 1
  int64_t n_parts;  // values per element
  int64_t n_words;  // ints in the log, including the length
  const int32_t* ports;
};

// Reads the item whose code begins at `code`, and moves `code` past it.
Item read_item(const int32_t*& code, const int64_t* log) {
  Item item = {code[0], 1, 1, 1, nullptr};
  switch (item.kind) {
    case WORDS:
      item.n_words = code[1];
      code += 2;
      return item;
    case ROWS:
      item.length = log[0];
      item.n_words = 1 + item.length * code[1];
      code += 2;
      return item;
    case EACH:
      item.length = log[0];
      item.n_parts = code[1];
      item.n_words = 1 + item.length * item.n_parts;
      code += 2;
      break;
    default:
      code += 1;
  }
  item.ports = code;
  for (int64_t part = 0; part < item.n_parts; part++) code += 1 + code[0];
  return item;
}

// Returns whether offsets start at 0, never decrease, and end at `last`.
bool rises(const Vec<int64_t>& ptr, int64_t last) {
  for (ptrdiff_t i = 0; i + 1 < ptr.size(); i++)
    if (ptr[i] > ptr[i + 1]) return false;
  return ptr.size() && ptr[0] == 0 && ptr[ptr.size() - 1] == last;
}

struct Decoder {
  const Log* log;
  Vec<int64_t> log_ptr, refs, slots, output_ptr;
  Span<const int32_t> owner;  // the instance of each node of earlier phases
  bool has_phases;
  Sizes sizes;
  NewGraph graph;
  Fault fault;
  int64_t first = 0;  // the first node of the current instance
  int64_t n = 0, e = 0, a = 0;

  // Counts nodes, edges and attribute words; returns false if a call is not of this phase, or does not fit its form.
  // These are the only checks of the log: `write` relies on them.
  bool count() {
    ptrdiff_t at = 0;
    for (ptrdiff_t i = 0; i + 1 < log_ptr.size(); i++) {
      while (at < log_ptr[i + 1]) {
        int64_t id = id_of(log->ints[at]), left = log->ints.size() - ++at;
        if (id != log->first_id + sizes.nodes++ || !log->has(id)) return false;
        const FixedForm& fixed = log->fixed[log->form_at(id)];
        if (fixed.is_fixed) {
          if (fixed.width > left) return false;
          sizes.edges += fixed.n_edges;
          sizes.attr += fixed.n_words;
          at += fixed.width;
          continue;
        }
        const int32_t* code = log->code.data() + log->code_ptr[log->form_at(id)] + 1;
        while (*code != END) {
          if (*code == EACH || *code == ROWS) {  // check the length here, before `read_item` multiplies by it
            if (!left || log->ints[at] < 0 || (code[1] && log->ints[at] > left / code[1])) return false;
          }
          Item item = read_item(code, log->ints.data() + at);
          if (item.n_words > left) return false;
          left -= item.n_words;
          if (item.kind == WORDS || item.kind == ROWS) {
            sizes.attr += item.n_words;
          } else {
            const int32_t* ports = item.ports;
            for (int64_t part = 0; part < item.n_parts; part++, ports += 1 + ports[0])
              for (int32_t k = 1; k <= ports[0]; k++) sizes.edges += ports[k] >= 0 ? item.length : 0;
          }
          at += item.n_words;
        }
      }
      if (at != log_ptr[i + 1]) return false;
    }
    return true;
  }

  // Finds the node of a ref; returns false if the ref belongs to another instance or recording. Nodes of earlier phases
  // are numbered backwards from -1.
  bool find(int64_t ref, int64_t instance, int64_t& node) const {
    int64_t id = id_of(ref);
    node = id - log->first_id;
    if (ref < 0 || node >= n) return false;
    if (node >= first) return true;
    if (!has_phases || node >= 0 || !log->has(id)) return false;
    int64_t earlier = log->node_of[id - log->n_forgotten];
    node = earlier - owner.size;
    return earlier >= 0 && owner[earlier] == instance;
  }

  bool stop(Status status, int64_t instance, int64_t node) {
    fault.status = status;
    fault.instance = instance;
    fault.node = node;
    return false;
  }

  // Writes edge `at`, from the output that is `output` places after a ref.
  bool write_edge(int64_t ref, int32_t output, int32_t port, int64_t instance, int64_t at) {
    int64_t node;
    if (!find(ref, instance, node)) return stop(STALE, instance, n - first);
    graph.edge_src[at] = (int32_t)node;
    graph.edge_out[at] = (int32_t)(((ref & OUTPUT) + output) | (ref >> ROW_SHIFT) << OUTPUT_BITS);
    graph.edge_in[at] = port;
    return true;
  }

  bool write_word(int64_t word, int64_t instance) {
    if (word < INT32_MIN || word > INT32_MAX) return stop(TOO_LARGE, instance, n - first);
    graph.attr[a++] = (int32_t)word;
    return true;
  }

  bool write_fixed(const FixedForm& fixed, int64_t instance, ptrdiff_t& at) {
    const int64_t* ints = log->ints.data() + at + 1;
    graph.type_id[n] = fixed.type_id;
    const FixedEdge* edges = log->fixed_edges.data() + fixed.first_edge;
    int64_t first_edge = e;
    for (int32_t k = 0; k < fixed.n_edges; k++)
      if (!write_edge(ints[edges[k].offset], edges[k].output, edges[k].port, instance, first_edge + k)) return false;
    e += fixed.n_edges;
    for (int32_t k = fixed.first_word; k < fixed.first_word + fixed.n_words; k++)
      if (!write_word(ints[log->fixed_words[k]], instance)) return false;
    at += 1 + fixed.width;
    graph.edge_ptr[++n] = (int32_t)e;
    return true;
  }

  bool write_call(int64_t instance, ptrdiff_t& at) {
    fault.at = at;
    const int64_t* ints = log->ints.data();
    int32_t form = log->form_at(id_of(ints[at]));
    if (log->fixed[form].is_fixed) return write_fixed(log->fixed[form], instance, at);
    const int32_t* code = log->code.data() + log->code_ptr[form];
    graph.type_id[n] = *code++;
    at++;
    while (*code != END) {
      Item item = read_item(code, ints + at);
      if (item.kind == WORDS || item.kind == ROWS) {
        for (int64_t k = 0; k < item.n_words; k++)
          if (!write_word(ints[at + k], instance)) return false;
      } else {
        // A list is logged element by element, but its edges are written port by port.
        const int32_t* ports = item.ports;
        ptrdiff_t start = at + (item.kind == EACH), end = at + item.n_words;
        for (int64_t part = 0; part < item.n_parts; part++, ports += 1 + ports[0])
          for (int32_t k = 0; k < ports[0]; k++) {
            if (ports[1 + k] < 0) continue;
            for (ptrdiff_t place = start + part; place < end; place += item.n_parts)
              if (!write_edge(ints[place], k, ports[1 + k], instance, e++)) return false;
          }
      }
      at += item.n_words;
    }
    graph.edge_ptr[++n] = (int32_t)e;
    return true;
  }

  bool write() {
    ptrdiff_t at = 0;
    for (ptrdiff_t i = 0; i + 1 < log_ptr.size(); i++) {
      first = n;
      while (at < log_ptr[i + 1])
        if (!write_call(i, at)) return false;
      graph.instance_ptr[i + 1] = (int32_t)n;
      graph.output_ptr[i + 1] = (int32_t)output_ptr[i + 1];
      for (int64_t o = output_ptr[i]; o < output_ptr[i + 1]; o++) {
        int64_t node;
        if (!find(refs[o], i, node)) return stop(STALE, i, -1);
        graph.out_node[o] = (int32_t)node;
        graph.out_port[o] = (int32_t)((refs[o] & OUTPUT) | (refs[o] >> ROW_SHIFT) << OUTPUT_BITS);
        graph.out_slot[o] = (int32_t)slots[o];
      }
    }
    return true;
  }
};

}  // namespace

bool is_code(Span<const int32_t> code) {
  if (code.size < 2 || code[0] < 0) return false;
  ptrdiff_t c = 1;
  while (c < code.size && code[c] != END) {
    int32_t kind = code[c++];
    if (kind < VALUE || kind > ROWS || c >= code.size || code[c] < 0) return false;
    if (kind == WORDS || kind == ROWS) {
      c++;
      continue;
    }
    int32_t n_parts = kind == EACH ? code[c++] : 1;
    for (int32_t part = 0; part < n_parts; part++) {
      if (c >= code.size || code[c] < 0) return false;
      c += 1 + (ptrdiff_t)code[c];
    }
  }
  return c == code.size - 1 && code[c] == END;
}

bool add_fixed(Log* log, Span<const int32_t> code) {
  FixedForm found = {true, code[0], 0, (int32_t)log->fixed_edges.size(), 0, (int32_t)log->fixed_words.size(), 0};
  const int32_t* at = code.data + 1;
  while (*at != END && found.is_fixed) {
    if (*at == WORDS && at[1] <= MOST_FIXED) {
      for (int32_t k = 0; k < at[1]; k++)
        if (!log->fixed_words.push(found.width + k)) return false;
      found.n_words += at[1];
      found.width += at[1];
      at += 2;
    } else if (*at == VALUE) {
      for (int32_t k = 0; k < at[1]; k++) {
        if (at[2 + k] < 0) continue;
        if (!log->fixed_edges.push({found.width, k, at[2 + k]})) return false;
        found.n_edges++;
      }
      found.width++;
      at += 2 + at[1];
    } else {
      found.is_fixed = false;
    }
  }
  return log->fixed.push(found);
}

bool fits_code(const Log* log, int32_t form, Span<const int64_t> ints) {
  const int32_t* code = log->code.data() + log->code_ptr[form] + 1;
  ptrdiff_t at = 0;
  while (*code != END) {
    if (*code != WORDS && (at >= ints.size || ints[at] < 0 || (*code != VALUE && ints[at] > INT32_MAX))) return false;
    int64_t n_words = read_item(code, ints.data + at).n_words;
    if (n_words > ints.size - at) return false;
    at += (ptrdiff_t)n_words;
  }
  return at == ints.size;
}

PyObject* decode(PyObject* self, PyObject* const* args, Py_ssize_t n_args) {
  Log* log = reinterpret_cast<Log*>(self);
  if (n_args != 5) return PyErr_SetString(PyExc_TypeError, "decode takes four lists and the owners"), nullptr;
  Decoder decoder;
  decoder.log = log;
  decoder.has_phases = args[4] != Py_None;
  if (!read_ints(args[0], "log_ptr", decoder.log_ptr) || !read_ints(args[1], "refs", decoder.refs) ||
      !read_ints(args[2], "slots", decoder.slots) || !read_ints(args[3], "output_ptr", decoder.output_ptr))
    return nullptr;
  if (decoder.has_phases && !read<int32_t>(args[4], "owner", decoder.owner)) return nullptr;
  if (refuse_if_busy(log)) return nullptr;  // reading the lists may have run Python code
  if (!rises(decoder.log_ptr, log->ints.size()) || !rises(decoder.output_ptr, decoder.refs.size()) ||
      decoder.slots.size() != decoder.refs.size() || decoder.output_ptr.size() != decoder.log_ptr.size()) {
    PyErr_Format(PyExc_ValueError,
                 "log_ptr must rise to the %zd ints of the log, and output_ptr, of equal length, to the %zd refs, with "
                 "a slot each, got %zd offsets in log_ptr, %zd in output_ptr and %zd slots",
                 log->ints.size(), decoder.refs.size(), decoder.log_ptr.size(), decoder.output_ptr.size(),
                 decoder.slots.size());
    return nullptr;
  }
  if (decoder.has_phases && log->n_nodes > decoder.owner.size) {
    PyErr_Format(PyExc_ValueError, "owner must name the instance of each of %lld earlier nodes, got %zd",
                 (long long)log->n_nodes, decoder.owner.size);
    return nullptr;
  }
  if (decoder.has_phases ? log->n_forgotten + log->node_of.size() != log->first_id : log->first_id != 0) {
    PyErr_SetString(PyExc_ValueError, "owner must be given for all phases of a recording, or for none");
    return nullptr;
  }
  decoder.sizes.instances = decoder.log_ptr.size() - 1;
  decoder.sizes.outputs = decoder.refs.size();
  decoder.sizes.floats = log->floats.size();
  if (!decoder.count()) {
    PyErr_Format(PyExc_ValueError,
                 "log_ptr must lie between calls, each with the ints of its form, got %zd offsets in %zd ints",
                 decoder.log_ptr.size(), log->ints.size());
    return nullptr;
  }
  Ref words = make_words(decoder.sizes, decoder.graph);
  if (!words) return nullptr;
  bool is_written;
  log->busy.set();  // no other thread may change the log while the interpreter lock is released
  {
    Unlocked unlocked;
    is_written = decoder.write();
  }
  log->busy.remove();
  if (is_written && decoder.has_phases) {
    if (!log->node_of.reserve(decoder.n)) return PyErr_NoMemory();
    for (int64_t k = 0; k < decoder.n; k++) log->node_of.append((int32_t)(decoder.owner.size + k));
    if (decoder.n) log->n_nodes = decoder.owner.size + decoder.n;
  }
  Ref floats = to_array<double>(log->floats);
  if (!floats) return nullptr;
  if (is_written) return Py_BuildValue("OOO", words.get(), floats.get(), Py_None);
  const Fault& fault = decoder.fault;
  return Py_BuildValue("OO(iLLL)", words.get(), floats.get(), (int)fault.status, (long long)fault.instance,
                       (long long)fault.node, (long long)fault.at);
}

}  // namespace autobatch
