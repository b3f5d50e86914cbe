#include "report.hpp"

#include <algorithm>
#include <cmath>
#include <map>

#include "contract/text.hpp"
#include "contract/window.hpp"
#include "explanation.hpp"

namespace dosa::app {

Quantiles quantiles(std::vector<double> values) {
  std::erase_if(values, [](double value) { return std::isnan(value); });
  std::sort(values.begin(), values.end());
  if (values.empty()) return {};
  const auto at = [&](double share) {
    const double place = share * static_cast<double>(values.size() - 1);
    const auto below = static_cast<std::size_t>(place);
    const std::size_t above = std::min(below + 1, values.size() - 1);
    // Equal neighbours first: infinities have no differences.
    if (values[below] == values[above]) return values[below];
    return values[below] + (place - static_cast<double>(below)) * (values[above] - values[below]);
  };
  return {values.size(), values.front(), at(0.25), at(0.5), at(0.75), values.back()};
}

Json to_json(const Quantiles& q) {
  if (q.count == 0) return nullptr;
  return {{"count", q.count}, {"min", q.min}, {"q1", q.q1}, {"median", q.median}, {"q3", q.q3}, {"max", q.max}};
}

Json to_json(const DeviceCounters& counters) {
  return {{"candidates", counters.candidates}, {"compactions", counters.compactions},
          {"repeats", counters.repeats},       {"sampled_rows", counters.sampled_rows},
          {"stages_tma", counters.stages_tma}, {"stages_plain", counters.stages_plain},
          {"status", counters.status}};
}

std::string text(const Quantiles& q, std::string_view unit) {
  if (q.count == 0) return "-";
  return text::format("{:.3g}{} median, {:.3g} to {:.3g}", q.median, unit, q.min, q.max);
}

void describe_input(const Trace& trace, Table& table, Json& json) {
  const Shape shape = shape_of(trace.problem());
  std::vector<double> sizes;
  for (std::int64_t t = 0; t < shape.rows; ++t) {
    sizes.push_back(
        static_cast<double>(window_of(*trace.problem().ks.at(t), *trace.problem().ke.at(t), shape.keys).size()));
  }
  const Quantiles windows = quantiles(sizes);
  table.row("input", text::format("{}, {}, {} of {}; rows see {} to {} keys", counted(shape.rows, "row"),
                                  counted(shape.keys, "key"), counted(shape.heads, "head"), shape.head_dim,
                                  human_count(windows.min), human_count(windows.max)));
  json["input"] = {{"file", trace.name()}, {"rows", shape.rows},         {"keys", shape.keys},
                   {"heads", shape.heads}, {"head_dim", shape.head_dim}, {"window", to_json(windows)}};
}

Json options_json(const Options& options) {
  Json json{{"top_k", options.top_k},
            {"model", name(options.model)},
            {"path", name(options.path)},
            {"order", name(options.order)},
            {"index_base", name(options.index_base)},
            {"always_first", options.always_first},
            {"always_last", options.always_last},
            {"scores", options.scores},
            {"retained_heads", options.retained_heads}};
  Json without = Json::array();
  const Ablation& ablation = options.ablation;
  if (!ablation.projection) without.push_back("projection");
  if (!ablation.joint_residual) without.push_back("joint-residual");
  if (!ablation.centred) without.push_back("centred");
  if (!ablation.aggregate) without.push_back("aggregate");
  if (!ablation.half_linear) without.push_back("half-linear");
  if (!ablation.second_aggregate) without.push_back("second-aggregate");
  if (!ablation.narrow) without.push_back("narrow");
  if (!ablation.seeds) without.push_back("seeds");
  if (!ablation.best_first) without.push_back("best-first");
  if (!ablation.prediction) without.push_back("prediction");
  json["without"] = without;
  json["absolute_form"] = ablation.absolute_form;
  return json;
}

void describe_engine(const Options& options, std::string_view why, Table& table, Json& json) {
  table.row("model", text::format("{}: {}", name(options.model),
                                  options.model == ScoreModel::f64 ? "exact dot products, binary64 sum"
                                                                   : "the bits of DeepGEMM on Hopper"));
  table.row("engine", std::string(why));
  json["options"] = options_json(options);
  json["engine"] = {
      {"backend", name(options.backend)}, {"isa", name(options.isa)}, {"threads", options.threads}, {"why", why}};
}

std::string rows_by_path(const Stats& stats) {
  std::string text;
  for (const auto& [count, path] : {std::pair{stats.rows_dosa, "dosa"}, std::pair{stats.rows_dense, "dense"},
                                    std::pair{stats.rows_model, "scored one by one"}}) {
    if (count != 0)
      text += text::format("{}{} {}", text.empty() ? "" : ", ", human_count(static_cast<double>(count)), path);
  }
  return text.empty() ? "none" : text;
}

void describe_stats(const Stats& stats, std::size_t workspace_bytes, const Explanation* looked, Table& table,
                    Json& json) {
  std::map<std::pair<std::string_view, std::string_view>, std::int64_t> reasons;
  std::vector<double> survivors, retained;
  for (const RowReport& row : stats.row_reports) {
    ++reasons[{name(row.path), name(row.reason)}];
    if (row.path != Path::dosa) continue;
    survivors.push_back(static_cast<double>(row.survivors));
    retained.push_back(static_cast<double>(row.retained_heads));
  }
  const Quantiles kept = quantiles(retained), left = quantiles(survivors);

  table.row("rows", rows_by_path(stats));
  Json reason_json = Json::array();
  for (const auto& [key, count] : reasons) {
    if (stats.rows_model < stats.rows)
      table.row("", text::format("{:>6} {}: {}", human_count(static_cast<double>(count)), key.first, key.second));
    reason_json.push_back({{"path", key.first}, {"reason", key.second}, {"rows", count}});
  }
  if (stats.rows_rescreened != 0)
    table.row("", text::format("{:>6} screened again: the predicted threshold was too high",
                               human_count(static_cast<double>(stats.rows_rescreened))));
  table.row("survivors",
            text::format("{} of {} visible keys ({})", human_count(static_cast<double>(stats.survivors)),
                         human_count(static_cast<double>(stats.visible)),
                         percent(static_cast<double>(stats.survivors), static_cast<double>(stats.visible))));
  if (left.count != 0) {
    table.row("", text::format("a dosa row: {} median, {} to {}; heads kept: {:.0f} median, {:.0f} to {:.0f}",
                               human_count(left.median), human_count(left.min), human_count(left.max), kept.median,
                               kept.min, kept.max));
  }
  if (looked != nullptr) describe_distances(*looked, table, json);
  table.row("exact scores", human_count(static_cast<double>(stats.exact)));
  table.row("dot products",
            text::format("{:.3f} of dense ({:.4g} of {:.4g})",
                         stats.dense_dot_products > 0 ? stats.dot_products / stats.dense_dot_products : 0.0,
                         stats.dot_products, stats.dense_dot_products));
  if (stats.device) {
    const auto count = [](std::uint64_t value) { return human_count(static_cast<double>(value)); };
    table.row("device", text::format("{} candidates, {} compactions, {} rows streamed again; key stages: {} by the "
                                     "tensor copy engine, {} by ordinary copies",
                                     count(stats.device->candidates), count(stats.device->compactions),
                                     count(stats.device->repeats), count(stats.device->stages_tma),
                                     count(stats.device->stages_plain)));
    json["device"] = to_json(*stats.device);
  }
  table.row("time", text::format("{} ({} a row)", human_seconds(stats.seconds),
                                 human_seconds(stats.rows > 0 ? stats.seconds / static_cast<double>(stats.rows) : 0)));
  table.row("workspace", human_bytes(static_cast<double>(workspace_bytes)));
  json["rows"] = {{"total", stats.rows},
                  {"dosa", stats.rows_dosa},
                  {"dense", stats.rows_dense},
                  {"model", stats.rows_model},
                  {"rescreened", stats.rows_rescreened},
                  {"why", reason_json}};
  json["visible"] = stats.visible;
  json["survivors"] = stats.survivors;
  json["survival"] =
      stats.visible > 0 ? static_cast<double>(stats.survivors) / static_cast<double>(stats.visible) : 0.0;
  json["survivors_per_dosa_row"] = to_json(left);
  json["retained_heads"] = to_json(kept);
  json["exact_scores"] = stats.exact;
  json["dot_products"] = stats.dot_products;
  json["dense_dot_products"] = stats.dense_dot_products;
  json["dot_products_vs_dense"] = stats.dense_dot_products > 0 ? stats.dot_products / stats.dense_dot_products : 0.0;
  json["seconds"] = stats.seconds;
  json["workspace_bytes"] = workspace_bytes;
}

std::vector<std::int64_t> spread_rows(std::int64_t rows, std::int64_t count) {
  std::vector<std::int64_t> chosen;
  count = std::min(rows, count);
  for (std::int64_t i = 0; i < count; ++i) chosen.push_back(rows * (2 * i + 1) / (2 * count));
  return chosen;
}

}  // namespace dosa::app
