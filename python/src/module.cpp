// dosa._core: the library as Python sees it. Arguments are checked and named here; the rules are the library's.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "arguments.hpp"
#include "contract/text.hpp"
#include "contract/validate.hpp"
#include "memory.hpp"
#include "overlap.hpp"
#include "problem.hpp"
#include "register.hpp"
#if __has_include("dosa/cuda.hpp")
#include "dosa/cuda.hpp"
#endif

namespace dosa::python {
namespace {

nb::object optional_number(double value) { return value == value ? nb::cast(value) : nb::none(); }

ScoreModel model_for(nb::handle model, Backend backend, bool on_device) {
  if (!model.is_none()) return word(model, parse_score_model);
  return backend == Backend::cuda || on_device ? ScoreModel::sm90 : ScoreModel::f64;
}

Options make_options(nb::handle top_k, nb::handle model, nb::handle backend, nb::handle path, nb::handle isa,
                     nb::handle order, nb::handle index_base, nb::handle always_first, nb::handle always_last,
                     nb::handle scores, nb::handle threads, nb::handle retained_heads, nb::handle shard,
                     bool on_device) {
  Options options;
  options.top_k = integer(top_k, "top_k");
  options.backend = backend.is_none() ? Backend::automatic : word(backend, parse_backend);
  options.model = model_for(model, options.backend, on_device);
  options.path = word(path, parse_path);
  options.isa = word(isa, parse_isa);
  options.order = word(order, parse_order);
  options.index_base = word(index_base, parse_index_base);
  options.always_first = integer(always_first, "always_first");
  options.always_last = integer(always_last, "always_last");
  options.scores = flag(scores, "return_scores");
  options.threads = small_integer(threads, "threads");
  options.retained_heads = small_integer(retained_heads, "retained_heads");
  options.shard = shard_argument(shard);
  return options;
}

Plan make_plan(nb::handle rows, nb::handle heads, nb::handle head_dim, nb::handle keys, nb::handle requests,
               nb::handle pages, nb::handle page_size, nb::handle row_request, nb::handle cuda_device,
               const Options& options) {
  Shape shape{.rows = integer(rows, "rows"),
              .heads = integer(heads, "heads"),
              .head_dim = integer(head_dim, "head_dim"),
              .keys = integer(keys, "keys")};
  shape.page_size = small_integer(page_size, "page_size");
  shape.paged = shape.page_size != 0;
  const std::int64_t tables = integer(requests, "requests"), cache = integer(pages, "pages");
  const bool named = flag(row_request, "row_request");
  if (shape.paged) {
    shape.requests = tables;
    shape.pages = cache;
    shape.row_request = named;
    if (shape.page_size > 0 && shape.keys % shape.page_size != 0)
      throw Error(ErrorKind::bad_input, text::format("keys: found {} with pages of {}, wanted a multiple (the columns "
                                                     "of the block table times page_size)",
                                                     shape.keys, shape.page_size));
  } else if (tables != 1 || cache != 0 || named) {
    throw Error(ErrorKind::usage, "pages, requests, row_request: found without page_size, wanted paged keys");
  }
  if (!cuda_device.is_none()) shape.device = {DeviceKind::cuda, small_integer(cuda_device, "cuda_device")};
  return plan(shape, options);
}

/// What run() counted, with the words of the plan.
struct RunStats {
  Stats stats;
  std::string_view model, backend;
};

Selection outputs(nb::handle indices, nb::handle lengths, nb::handle scores, const nb::object& stream,
                  std::array<Array, 3>& arrays) {
  arrays[0] = Array(indices, "out.indices", stream);
  arrays[1] = Array(lengths, "out.lengths", stream);
  arrays[2] = optional_array(scores, "out.scores", stream);
  Selection selection;
  selection.indices = arrays[0].output<std::int32_t, 2>("int32 [Q, top_k]");
  selection.lengths = arrays[1].output<std::int32_t, 1>("int32 [Q]");
  if (!arrays[2].absent()) selection.scores = arrays[2].output<float, 2>("float32 [Q, top_k]");
  return selection;
}

/// Device tensors: queued on the stream, nothing read back, so the counters that a host run fills stay zero.
void queue(const Plan& plan, const Inputs& inputs, const Selection& selection, const BorrowedBytes& workspace,
           const BorrowedBytes& carry) {
  if (workspace.absent() && plan.workspace_bytes() > 0)
    throw Error(ErrorKind::bad_input,
                text::format("workspace: found none, wanted uint8 [{}] on the device of q", plan.workspace_bytes()));
  if (!workspace.absent()) detail::check_device("workspace", workspace.device(), plan.shape().device);
  if (!carry.absent()) throw Error(ErrorKind::usage, "carry: found one for tensors on a device, wanted None");
#if __has_include("dosa/cuda.hpp")
  void* const stream = inputs.stream_handle();
  const nb::gil_scoped_release unlocked;
  run_on_stream(plan, inputs.problem(), selection, workspace.bytes().data(), workspace.bytes().size(), stream);
#else
  (void)inputs;
  (void)selection;
  throw Error(ErrorKind::not_available, "tensors on a device: this build has no backend for them");
#endif
}

RunStats run_plan(const Plan& plan, const Inputs& inputs, nb::handle indices, nb::handle lengths, nb::handle scores,
                  nb::handle workspace, nb::handle carry, nb::handle row_reports) {
  const bool reports = flag(row_reports, "row_reports");
  std::array<Array, 3> arrays;
  const Selection selection = outputs(indices, lengths, scores, inputs.stream(), arrays);
  const BorrowedBytes lent(workspace, "workspace", inputs.stream());
  const BorrowedBytes kept(carry, "carry", inputs.stream());
  refuse_shared_memory({&arrays[0], &arrays[1], &arrays[2], &lent.array(), &kept.array()}, inputs.arrays());
  RunStats result;
  result.model = name(plan.options().model);
  result.backend = name(plan.options().backend);
  if (plan.shape().device.kind != DeviceKind::cpu) {
    result.stats.rows = plan.shape().rows;
    queue(plan, inputs, selection, lent, kept);
    return result;
  }
  detail::check_device("workspace", lent.device(), {});
  detail::check_device("carry", kept.device(), {});
  std::optional<Memory> own;
  if (lent.absent()) own.emplace(static_cast<std::int64_t>(plan.workspace_bytes()));
  if (reports) result.stats.row_reports.resize(static_cast<std::size_t>(plan.shape().rows));
  {
    const nb::gil_scoped_release unlocked;
    run(plan, inputs.problem(), selection, own ? own->bytes() : lent.bytes(), kept.bytes(), &result.stats);
  }
  return result;
}

void run_scores(const Inputs& inputs, const Options& options, nb::handle out) {
  const Array array(out, "out", inputs.stream());
  const auto view = array.output<float, 2>("float32 [Q, N]");
  refuse_shared_memory({&array}, inputs.arrays());
  const nb::gil_scoped_release unlocked;
  scores(inputs.problem(), options, view);
}

RunStats merge_parts(const std::vector<std::tuple<nb::object, nb::object, nb::object>>& parts, nb::handle ks,
                     nb::handle ke, nb::handle total, const Options& options, nb::handle indices, nb::handle lengths,
                     nb::handle scores_out, nb::handle k, nb::handle block_table, nb::handle row_request) {
  const std::int64_t total_keys = integer(total, "total_keys");
  const nb::object none = nb::none();
  std::vector<std::array<Array, 3>> held(parts.size());
  std::vector<Partial> partials;
  const auto on_host = [](const Array& array) {
    if (array.device().kind != DeviceKind::cpu)
      throw Error(ErrorKind::not_available,
                  text::format("{}: found an array on a device, merge wants host memory", array.name()));
  };
  for (std::size_t p = 0; p < parts.size(); ++p) {
    held[p] = {Array(std::get<0>(parts[p]), text::format("part {} indices", p).c_str(), none),
               Array(std::get<1>(parts[p]), text::format("part {} lengths", p).c_str(), none),
               Array(std::get<2>(parts[p]), text::format("part {} scores", p).c_str(), none)};
    for (const Array& array : held[p]) on_host(array);
    partials.push_back({held[p][0].input<std::int32_t, 2>("int32 [Q, K]"),
                        held[p][1].input<std::int32_t, 1>("int32 [Q]"), held[p][2].input<float, 2>("float32 [Q, K]")});
  }
  const Array first(ks, "ks", none), last(ke, "ke", none);
  on_host(first);
  on_host(last);
  const Array cache = optional_array(k, "k", none), table = optional_array(block_table, "block_table", none),
              requests = optional_array(row_request, "row_request", none);
  std::optional<PagedKeys> paged;
  if (!cache.absent()) paged = paged_keys(cache, table);
  TensorView<const std::int32_t, 1> request_view{};
  if (!requests.absent()) request_view = requests.input<std::int32_t, 1>("int32 [Q]");
  std::array<Array, 3> arrays;
  const Selection selection = outputs(indices, lengths, scores_out, none, arrays);
  std::vector<const Array*> read = {&first, &last, &cache, &table, &requests};
  for (const auto& part : held)
    for (const Array& array : part) read.push_back(&array);
  refuse_shared_memory({&arrays[0], &arrays[1], &arrays[2]}, read);
  const auto ks_view = first.input<std::int32_t, 1>("int32 [Q]");
  const auto ke_view = last.input<std::int32_t, 1>("int32 [Q]");
  const nb::gil_scoped_release unlocked;
  merge(partials, ks_view, ke_view, total_keys, options, selection, paged ? &*paged : nullptr, request_view);
  RunStats result;
  result.stats.rows = ks_view.shape[0];
  result.model = name(options.model);
  return result;
}

nb::dict report_columns(const RunStats& run) {
  const auto column = [&](auto&& value) {
    nb::list list;
    for (const RowReport& report : run.stats.row_reports) list.append(value(report));
    return list;
  };
  nb::dict columns;
  columns["path"] = column([](const RowReport& r) { return nb::cast(name(r.path)); });
  columns["reason"] = column([](const RowReport& r) { return nb::cast(name(r.reason)); });
  columns["retained_heads"] = column([](const RowReport& r) { return nb::cast(r.retained_heads); });
  columns["aggregates"] = column([](const RowReport& r) { return nb::cast(r.aggregates); });
  columns["visible"] = column([](const RowReport& r) { return nb::cast(r.visible); });
  columns["survivors"] = column([](const RowReport& r) { return nb::cast(r.survivors); });
  columns["exact"] = column([](const RowReport& r) { return nb::cast(r.exact); });
  columns["seeds"] = column([](const RowReport& r) { return nb::cast(r.seeds); });
  columns["first_threshold"] = column([](const RowReport& r) { return nb::cast(r.first_threshold); });
  columns["threshold"] = column([](const RowReport& r) { return nb::cast(r.threshold); });
  columns["last_score"] = column([](const RowReport& r) { return optional_number(static_cast<double>(r.last_score)); });
  columns["predicted"] = column([](const RowReport& r) { return nb::cast(r.predicted); });
  columns["rescreened"] = column([](const RowReport& r) { return nb::cast(r.rescreened); });
  columns["dot_products"] = column([](const RowReport& r) { return nb::cast(r.dot_products); });
  return columns;
}

nb::dict info_words() {
  const Info found = info();
  nb::dict words;
  words["version"] = found.version;
  words["processor"] = found.processor;
  words["threads"] = found.threads;
  nb::dict backends, isas;
  for (const BackendInfo& backend : found.backends)
    backends[nb::cast(name(backend.backend))] = nb::make_tuple(backend.available, backend.why);
  for (const IsaInfo& isa : found.isas) isas[nb::cast(name(isa.isa))] = nb::make_tuple(isa.available, isa.why);
  words["backends"] = backends;
  words["isas"] = isas;
  words["isa"] = nb::cast(name(found.chosen));
  words["isa_why"] = found.chosen_why;
  return words;
}

void translate_errors() {
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const Error& error) {
      const char* type = "InternalError";
      switch (error.kind()) {
        case ErrorKind::usage:
          type = "UsageError";
          break;
        case ErrorKind::bad_input:
          type = dynamic_cast<const TypeMismatch*>(&error) != nullptr ? "InputTypeError" : "BadInputError";
          break;
        case ErrorKind::not_available:
          type = "NotAvailableError";
          break;
        case ErrorKind::io:
          type = "IoError";
          break;
        case ErrorKind::internal:
          break;
      }
      const nb::object exception = nb::module_::import_("dosa._errors").attr(type);
      // Messages quote names of files and tensors, whose bytes need not be UTF-8.
      const std::string_view message = error.what();
      const nb::object words =
          nb::steal(PyUnicode_DecodeUTF8(message.data(), static_cast<Py_ssize_t>(message.size()), "backslashreplace"));
      if (words.is_valid()) PyErr_SetObject(exception.ptr(), words.ptr());
    }
  });
}

}  // namespace

NB_MODULE(_core, module) {
  translate_errors();

  nb::class_<Memory>(
      module, "Memory",
      "Host bytes that a caller keeps between calls (workspace, carry), uninitialised. One call at a time.")
      .def(nb::init<nb::handle>(), nb::arg("nbytes").none())
      .def_prop_ro("nbytes", &Memory::size, "Size in bytes.");

  nb::class_<Options>(module, "Options")
      .def_prop_ro("top_k", [](const Options& o) { return o.top_k; })
      .def_prop_ro("model", [](const Options& o) { return name(o.model); })
      .def_prop_ro("backend", [](const Options& o) { return name(o.backend); })
      .def_prop_ro("path", [](const Options& o) { return name(o.path); })
      .def_prop_ro("isa", [](const Options& o) { return name(o.isa); })
      .def_prop_ro("order", [](const Options& o) { return name(o.order); })
      .def_prop_ro("index_base", [](const Options& o) { return name(o.index_base); })
      .def_prop_ro("always_first", [](const Options& o) { return o.always_first; })
      .def_prop_ro("always_last", [](const Options& o) { return o.always_last; })
      .def_prop_ro("scores", [](const Options& o) { return o.scores; })
      .def_prop_ro("threads", [](const Options& o) { return o.threads; })
      .def_prop_ro("retained_heads", [](const Options& o) { return o.retained_heads; });

  module.def("options", &make_options, nb::arg("top_k").none(), nb::arg("model").none(), nb::arg("backend").none(),
             nb::arg("path").none(), nb::arg("isa").none(), nb::arg("order").none(), nb::arg("index_base").none(),
             nb::arg("always_first").none(), nb::arg("always_last").none(), nb::arg("scores").none(),
             nb::arg("threads").none(), nb::arg("retained_heads").none(), nb::arg("shard").none(),
             nb::arg("on_device"));

  nb::class_<Inputs>(module, "Inputs")
      .def(nb::init<nb::handle, nb::handle, nb::handle, nb::handle, nb::handle, nb::handle, nb::handle, nb::handle,
                    const nb::object&, nb::object>(),
           nb::arg("q").none(), nb::arg("k").none(), nb::arg("k_scale").none(), nb::arg("weights").none(),
           nb::arg("ks").none(), nb::arg("ke").none(), nb::arg("block_table").none(), nb::arg("row_request").none(),
           nb::arg("rows_per_request").none(), nb::arg("stream").none())
      .def_prop_ro("rows", [](const Inputs& i) { return i.shape().rows; })
      .def_prop_ro("heads", [](const Inputs& i) { return i.shape().heads; })
      .def_prop_ro("head_dim", [](const Inputs& i) { return i.shape().head_dim; })
      .def_prop_ro("keys", [](const Inputs& i) { return i.shape().keys; })
      .def_prop_ro("on_device", [](const Inputs& i) { return i.shape().device.kind != DeviceKind::cpu; })
      .def(
          "plan", [](const Inputs& i, const Options& options) { return plan(i.shape(), options); }, nb::arg("options"))
      .def("scores", &run_scores, nb::arg("options"), nb::arg("out"));

  nb::class_<Plan>(module, "Plan")
      .def_prop_ro("options", [](const Plan& p) { return p.options(); })
      .def_prop_ro("rows", [](const Plan& p) { return p.shape().rows; })
      .def_prop_ro("heads", [](const Plan& p) { return p.shape().heads; })
      .def_prop_ro("head_dim", [](const Plan& p) { return p.shape().head_dim; })
      .def_prop_ro("keys", [](const Plan& p) { return p.shape().keys; })
      .def_prop_ro("on_device", [](const Plan& p) { return p.shape().device.kind != DeviceKind::cpu; })
      .def_prop_ro("workspace_bytes", &Plan::workspace_bytes)
      .def_prop_ro("carry_bytes", &Plan::carry_bytes)
      .def_prop_ro("why", &Plan::why)
      .def("run", &run_plan, nb::arg("inputs"), nb::arg("indices").none(), nb::arg("lengths").none(),
           nb::arg("scores").none(), nb::arg("workspace").none(), nb::arg("carry").none(), nb::arg("reports").none());

  module.def("plan", &make_plan, nb::arg("rows").none(), nb::arg("heads").none(), nb::arg("head_dim").none(),
             nb::arg("keys").none(), nb::arg("requests").none(), nb::arg("pages").none(), nb::arg("page_size").none(),
             nb::arg("row_request").none(), nb::arg("cuda_device").none(), nb::arg("options"));

  nb::class_<DeviceCounters>(module, "DeviceCounters",
                             "What the CUDA backend counted in one call over arrays in host memory.")
      .def_ro("candidates", &DeviceCounters::candidates, "(row, key) pairs that reached a candidate buffer.")
      .def_ro("compactions", &DeviceCounters::compactions,
              "Candidate buffers cut back to the best K because they were full.")
      .def_ro("repeats", &DeviceCounters::repeats, "Rows streamed again because a predicted threshold was too high.")
      .def_ro("sampled_rows", &DeviceCounters::sampled_rows,
              "Rows whose first threshold came from a sample of their keys.")
      .def_ro("stages_tma", &DeviceCounters::stages_tma, "Key stages that the tensor copy engine brought.")
      .def_ro("stages_plain", &DeviceCounters::stages_plain, "Key stages that ordinary copies brought.")
      .def_ro("status", &DeviceCounters::status,
              "Bit 0: a row_request out of range (an empty row); bit 1: a visible page out of range.")
      .def("__repr__", [](const DeviceCounters& c) {
        return text::format(
            "dosa.DeviceCounters(candidates={}, compactions={}, repeats={}, sampled_rows={}, stages_tma={}, "
            "stages_plain={}, status={})",
            c.candidates, c.compactions, c.repeats, c.sampled_rows, c.stages_tma, c.stages_plain, c.status);
      });

  nb::class_<RunStats>(module, "Stats",
                       "Counters of one call: plain sums over rows, the same at every thread count that memory has "
                       "room for,\nexcept for "
                       "`seconds`.\n\nA call over arrays on a device is queued and reads nothing back: of its counters "
                       "only `rows` is set.")
      .def_prop_ro(
          "model", [](const RunStats& s) { return s.model; },
          "The score model whose bits were ranked: \"f64\" or \"sm90\".")
      .def_prop_ro(
          "backend", [](const RunStats& s) { return s.backend; }, "Who computed: \"reference\", \"cpu\" or \"cuda\".")
      .def_prop_ro(
          "rows", [](const RunStats& s) { return s.stats.rows; }, "Q.")
      .def_prop_ro(
          "rows_dense", [](const RunStats& s) { return s.stats.rows_dense; },
          "Rows whose keys were all screened with all heads.")
      .def_prop_ro(
          "rows_dosa", [](const RunStats& s) { return s.stats.rows_dosa; },
          "Rows whose keys were screened with the certificate's bound.")
      .def_prop_ro(
          "rows_model", [](const RunStats& s) { return s.stats.rows_model; },
          "Rows whose keys were all scored under the model, one by one: those of the CPU backend whose constants are "
          "not\nfinite, and every row of the reference and of CUDA over arrays in host memory.")
      .def_prop_ro(
          "rows_rescreened", [](const RunStats& s) { return s.stats.rows_rescreened; },
          "Rows that were screened again because their predicted threshold was too high.")
      .def_prop_ro(
          "visible", [](const RunStats& s) { return s.stats.visible; }, "Keys in the windows.")
      .def_prop_ro(
          "survivors", [](const RunStats& s) { return s.stats.survivors; },
          "Keys that the screen could not reject (dense rows: all that are visible).")
      .def_prop_ro(
          "exact", [](const RunStats& s) { return s.stats.exact; }, "Keys scored under the model, bit by bit.")
      .def_prop_ro(
          "dot_products", [](const RunStats& s) { return s.stats.dot_products; },
          "q . k products done, in units of one head and one key.")
      .def_prop_ro(
          "dense_dot_products", [](const RunStats& s) { return s.stats.dense_dot_products; },
          "What all heads of all visible keys would take.")
      .def_prop_ro(
          "seconds", [](const RunStats& s) { return s.stats.seconds; }, "Wall time of the call in the library.")
      .def_prop_ro(
          "device", [](const RunStats& s) { return s.stats.device; },
          "What the CUDA backend counted over arrays in host memory; None for every other call.")
      .def("row_reports", &report_columns,
           "What happened to each row, as columns; empty lists unless Plan.run(row_reports=True).")
      .def("__repr__", [](const RunStats& s) {
        return text::format(
            "dosa.Stats(model='{}', backend='{}', rows={}, rows_dosa={}, visible={}, survivors={}, exact={}, "
            "seconds={:.6f})",
            s.model, s.backend, s.stats.rows, s.stats.rows_dosa, s.stats.visible, s.stats.survivors, s.stats.exact,
            s.stats.seconds);
      });

  module.def("merge", &merge_parts, nb::arg("parts"), nb::arg("ks").none(), nb::arg("ke").none(),
             nb::arg("total_keys").none(), nb::arg("options"), nb::arg("indices").none(), nb::arg("lengths").none(),
             nb::arg("scores").none(), nb::arg("k").none(), nb::arg("block_table").none(),
             nb::arg("row_request").none());
  module.def("info", &info_words);
  register_certificate(module);
  register_trace(module);
}

}  // namespace dosa::python
