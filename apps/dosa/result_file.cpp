#include "result_file.hpp"

#include <charconv>

#include "contract/text.hpp"
#include "trace/safetensors.hpp"

namespace dosa::app {
namespace {

template <class T>
void copy(const safetensors::File& file, const safetensors::Tensor& tensor, std::vector<T>& into) {
  std::vector<std::shared_ptr<const void>> owners;
  const T* data = file.data<T>(tensor, owners);
  into.assign(data, data + tensor.data.size() / sizeof(T));
}

constexpr const char* kFormat = "dosa selection";

}  // namespace

std::map<std::string, std::string> result_metadata(const Options& options, const std::string& rows) {
  std::map<std::string, std::string> metadata{{"format", kFormat},
                                              {"model", std::string(name(options.model))},
                                              {"order", std::string(name(options.order))},
                                              {"index_base", std::string(name(options.index_base))},
                                              {"top_k", std::to_string(options.top_k)},
                                              {"always_first", std::to_string(options.always_first)},
                                              {"always_last", std::to_string(options.always_last)}};
  if (!rows.empty()) metadata["rows"] = rows;
  return metadata;
}

void write_result(const std::filesystem::path& path, const OwnedSelection& selection, const Options& options,
                  const std::string& rows) {
  std::vector<safetensors::Spec> specs{{"indices", "I32", {selection.rows, selection.top_k}},
                                       {"lengths", "I32", {selection.rows}}};
  if (options.scores) specs.push_back({"scores", "F32", {selection.rows, selection.top_k}});
  safetensors::Writer writer(path, std::move(specs), result_metadata(options, rows));
  writer.append(std::span<const std::int32_t>(selection.indices));
  writer.append(std::span<const std::int32_t>(selection.lengths));
  if (options.scores) writer.append(std::span<const float>(selection.scores));
  writer.commit();
}

std::string rows_of_result(const std::filesystem::path& path) {
  const auto file = safetensors::File::open(path);
  const auto word = [&](const char* key) {
    const auto found = file.metadata().find(key);
    return found == file.metadata().end() ? std::string() : found->second;
  };
  return word("format") == kFormat ? word("rows") : std::string();  // other files mean other things by it
}

OwnedSelection read_result(const std::filesystem::path& path, std::int64_t rows, Options& options) {
  const auto file = safetensors::File::open(path);
  OwnedSelection selection;
  const auto& indices = file.require("indices", "I32", {{"Q", rows}, {"K"}});
  selection.rows = rows;
  selection.top_k = options.top_k = indices.shape[1];
  copy(file, indices, selection.indices);
  copy(file, file.require("lengths", "I32", {{"Q", rows}}), selection.lengths);
  options.scores = file.find("scores") != nullptr;
  if (options.scores)
    copy(file, file.require("scores", "F32", {{"Q", rows}, {"K", selection.top_k}}), selection.scores);

  const auto with = [&](const char* key, auto&& take) {
    const auto found = file.metadata().find(key);
    if (found == file.metadata().end()) return;
    try {
      take(found->second);
    } catch (const Error& error) {
      throw Error(ErrorKind::bad_input, text::format("{}: metadata \"{}\": {}", path.string(), key, error.what()));
    }
  };
  const auto number = [](const std::string& text) {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < 0) {
      throw Error(ErrorKind::bad_input, text::format("found '{}', wanted a count", text));
    }
    return value;
  };
  with("model", [&](const std::string& word) { options.model = parse_score_model(word); });
  with("order", [&](const std::string& word) { options.order = parse_order(word); });
  with("index_base", [&](const std::string& word) { options.index_base = parse_index_base(word); });
  with("always_first", [&](const std::string& word) { options.always_first = number(word); });
  with("always_last", [&](const std::string& word) { options.always_last = number(word); });
  return selection;
}

}  // namespace dosa::app
