// Bits taken from the real kernel, as safetensors files (8-byte header size, JSON header, data).
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace dosa::test {

class VectorFile {
 public:
  explicit VectorFile(const std::filesystem::path& path) : name_(path.stem().string()) {
    std::ifstream in(path, std::ios::binary);
    if (!in) throw std::runtime_error("cannot open " + path.string());
    std::uint64_t header_size = 0;
    in.read(reinterpret_cast<char*>(&header_size), sizeof header_size);
    if (!in || header_size > (std::uint64_t{1} << 20U))
      throw std::runtime_error("no safetensors header in " + path.string());
    std::string header(header_size, '\0');
    in.read(header.data(), static_cast<std::streamsize>(header_size));
    header_ = nlohmann::json::parse(header);
    data_.assign(std::istreambuf_iterator<char>(in), {});
  }

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] bool has(const std::string& tensor) const { return header_.contains(tensor); }
  [[nodiscard]] std::vector<std::int64_t> shape(const std::string& tensor) const {
    return header_.at(tensor).at("shape").get<std::vector<std::int64_t>>();
  }

  template <class T>
  [[nodiscard]] std::vector<T> read(const std::string& tensor, const std::string& dtype) const {
    const auto& entry = header_.at(tensor);
    if (entry.at("dtype") != dtype) throw std::runtime_error(name_ + ": " + tensor + " is not " + dtype);
    const auto offsets = entry.at("data_offsets").get<std::vector<std::size_t>>();
    std::size_t count = 1;
    for (const std::int64_t extent : shape(tensor)) count *= static_cast<std::size_t>(extent);
    if (offsets.size() != 2 || offsets[1] - offsets[0] != count * sizeof(T) || offsets[1] > data_.size()) {
      throw std::runtime_error(name_ + ": " + tensor + " has offsets that do not fit its shape");
    }
    std::vector<T> values(count);
    std::memcpy(values.data(), data_.data() + offsets[0], count * sizeof(T));
    return values;
  }

 private:
  std::string name_;
  nlohmann::json header_;
  std::vector<char> data_;
};

/// One recorded call: F32 bits of `logits`, -inf outside a row's window.
struct RecordedLogits {
  explicit RecordedLogits(const VectorFile& file)
      : name(file.name()),
        q(file.read<std::uint8_t>("q", "F8_E4M3")),
        k(file.read<std::uint8_t>("k", "F8_E4M3")),
        k_scale(file.read<float>("k_scale", "F32")),
        weights(file.read<float>("weights", "F32")),
        ks(file.read<std::int32_t>("ks", "I32")),
        ke(file.read<std::int32_t>("ke", "I32")),
        logits(file.read<std::uint32_t>("logits", "F32")) {
    const auto shape = file.shape("q");
    queries = shape.at(0), heads = shape.at(1), head_dim = shape.at(2), keys = file.shape("k").at(0);
  }

  std::string name;
  std::int64_t queries = 0, heads = 0, head_dim = 0, keys = 0;
  std::vector<std::uint8_t> q, k;
  std::vector<float> k_scale, weights;
  std::vector<std::int32_t> ks, ke;
  std::vector<std::uint32_t> logits;
};

/// Files of a folder in order of name: accumulator files (acc_*) or all others.
inline std::vector<std::filesystem::path> vector_files(const std::filesystem::path& folder, bool accumulators) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".safetensors") continue;
    if ((entry.path().filename().string().rfind("acc_", 0) == 0) == accumulators) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace dosa::test
