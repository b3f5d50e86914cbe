// Traces: which tensors, dtypes and shapes make one, and that a written one reads back byte for byte.
#include "dosa/trace.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>

#include "dosa/types.hpp"

namespace {

using dosa::Error;
using dosa::ErrorKind;
using dosa::Trace;
using Json = nlohmann::ordered_json;

/// A header with one tensor after the other; `edit` may spoil it before the offsets are laid out.
struct Draft {
  struct Entry {
    std::string name, dtype;
    std::vector<std::int64_t> shape;
    std::size_t element;
  };
  std::vector<Entry> entries{{"k_scale", "F32", {5}, 4},   {"weights", "F32", {2, 3}, 4},
                             {"ks", "I32", {2}, 4},        {"ke", "I32", {2}, 4},
                             {"k", "F8_E4M3", {5, 32}, 1}, {"q", "F8_E4M3", {2, 3, 32}, 1}};

  Entry& operator[](const std::string& name) {
    for (auto& entry : entries) {
      if (entry.name == name) return entry;
    }
    throw std::out_of_range(name);
  }
  void drop(const std::string& name) {
    std::erase_if(entries, [&](const Entry& entry) { return entry.name == name; });
  }
  [[nodiscard]] std::vector<std::byte> bytes() const {
    Json header = Json::object();
    header["__metadata__"] = {{"model", "none"}};
    std::size_t offset = 0;
    for (const auto& entry : entries) {
      std::size_t size = entry.element;
      for (const auto axis : entry.shape) size *= static_cast<std::size_t>(axis);
      header[entry.name] = {{"dtype", entry.dtype}, {"shape", entry.shape}, {"data_offsets", {offset, offset + size}}};
      offset += size;
    }
    const std::string text = header.dump();
    const std::uint64_t length = text.size();
    std::vector<std::byte> out(8 + text.size() + offset);
    std::memcpy(out.data(), &length, 8);
    std::memcpy(out.data() + 8, text.data(), text.size());
    std::mt19937 random(7);
    for (std::size_t i = 8 + text.size(); i < out.size(); ++i) out[i] = static_cast<std::byte>(random());
    return out;
  }
};

void expect_refused(const Draft& draft, std::initializer_list<const char*> parts) {
  const auto bytes = draft.bytes();
  try {
    (void)Trace::from_bytes(bytes, "t.safetensors");
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::bad_input);
    const std::string message = error.what();
    EXPECT_EQ(message.rfind("t.safetensors: ", 0), 0U) << message;
    for (const char* part : parts) EXPECT_NE(message.find(part), std::string::npos) << message << "\n  lacks: " << part;
  }
}

template <class T, std::size_t Rank>
bool same(const dosa::TensorView<const T, Rank>& a, const dosa::TensorView<const T, Rank>& b) {
  std::size_t size = sizeof(T);
  for (const auto axis : a.shape) size *= static_cast<std::size_t>(axis);
  return a.shape == b.shape && a.strides == b.strides && std::memcmp(a.data, b.data, size) == 0;
}
bool same(const dosa::Problem& a, const dosa::Problem& b) {
  const auto& ka = std::get<dosa::ContiguousKeys>(a.keys);
  const auto& kb = std::get<dosa::ContiguousKeys>(b.keys);
  return same(a.q, b.q) && same(a.weights, b.weights) && same(a.ks, b.ks) && same(a.ke, b.ke) &&
         same(ka.codes, kb.codes) && same(ka.scales, kb.scales);
}

TEST(Trace, ReadsAndIgnoresOtherTensors) {
  Draft draft;
  draft.entries.push_back({"positions", "I64", {2}, 8});
  draft.entries.push_back({"future", "F2", {9}, 1});
  const auto bytes = draft.bytes();
  const Trace trace = Trace::from_bytes(bytes, "t");
  EXPECT_EQ(trace.problem().q.shape, (std::array<std::int64_t, 3>{2, 3, 32}));
  EXPECT_EQ(std::get<dosa::ContiguousKeys>(trace.problem().keys).codes.shape, (std::array<std::int64_t, 2>{5, 32}));
  EXPECT_EQ(trace.metadata().at("model"), "none");
  EXPECT_EQ(trace.name(), "t");
  EXPECT_TRUE(trace.problem().row_request.absent());
}

TEST(Trace, MissingTensorsAreNamedWithWhatIsThere) {
  for (const char* name : {"q", "k", "k_scale", "weights", "ks", "ke"}) {
    Draft draft;
    draft.drop(name);
    expect_refused(draft, {(std::string("tensor \"") + name + "\": missing, wanted ").c_str(), "the file holds: "});
  }
}

TEST(Trace, DtypesAreTheContractsOnly) {
  const auto with = [](const char* name, const char* dtype) {
    Draft draft;
    draft[name].dtype = dtype;
    return draft;
  };
  expect_refused(with("q", "F8_E5M2"), {"tensor \"q\": found F8_E5M2 [2,3,32], wanted F8_E4M3 [Q,H,D]"});
  expect_refused(with("k", "U8"), {"tensor \"k\": found U8 [5,32], wanted F8_E4M3 [N,D] with D = 32"});
  expect_refused(with("k_scale", "I32"), {"tensor \"k_scale\": found I32 [5], wanted F32 [N] with N = 5"});
  expect_refused(with("weights", "U32"), {"tensor \"weights\": found U32 [2,3], wanted F32 [Q,H] with Q = 2, H = 3"});
  expect_refused(with("ks", "F32"), {"tensor \"ks\": found F32 [2], wanted I32 [Q] with Q = 2"});
  expect_refused(with("ke", "U32"), {"tensor \"ke\": found U32 [2], wanted I32 [Q] with Q = 2"});
}

TEST(Trace, RanksAndShapesMustAgree) {
  const auto with = [](const char* name, std::vector<std::int64_t> shape) {
    Draft draft;
    draft[name].shape = std::move(shape);
    return draft;
  };
  expect_refused(with("q", {2, 96}), {"tensor \"q\": found F8_E4M3 [2,96], wanted F8_E4M3 [Q,H,D]"});
  expect_refused(with("k", {160}), {"tensor \"k\": found F8_E4M3 [160]"});
  expect_refused(with("k", {5, 64}), {"tensor \"k\": found F8_E4M3 [5,64], wanted F8_E4M3 [N,D] with D = 32"});
  expect_refused(with("k_scale", {6}), {"tensor \"k_scale\": found F32 [6], wanted F32 [N] with N = 5"});
  expect_refused(with("k_scale", {5, 1}), {"tensor \"k_scale\": found F32 [5,1]"});
  expect_refused(with("weights", {3, 2}), {"tensor \"weights\": found F32 [3,2], wanted F32 [Q,H] with Q = 2, H = 3"});
  expect_refused(with("ks", {3}), {"tensor \"ks\": found I32 [3]"});
  expect_refused(with("ke", {}), {"tensor \"ke\": found I32 []"});
}

TEST(Trace, HeadsAndDimensionsHaveLimits) {
  const auto with = [](std::int64_t heads, std::int64_t head_dim) {
    Draft draft;
    draft["q"].shape = {2, heads, head_dim};
    draft["k"].shape = {5, head_dim};
    draft["weights"].shape = {2, heads};
    return draft;
  };
  expect_refused(with(0, 32), {"tensor \"q\": found F8_E4M3 [2,0,32]", "H in 1..128"});
  expect_refused(with(129, 32), {"tensor \"q\": found F8_E4M3 [2,129,32]", "H in 1..128"});
  for (const std::int64_t head_dim : {0, 16, 48, 288}) expect_refused(with(3, head_dim), {"multiple of 32 in 32..256"});
  for (const std::int64_t head_dim : {32, 64, 96, 256}) {
    const auto bytes = with(128, head_dim).bytes();
    EXPECT_EQ(Trace::from_bytes(bytes, "t").problem().q.shape[2], head_dim);
  }
}

TEST(Trace, NoRowsAndNoKeysAreTraces) {
  Draft draft;
  for (const char* name : {"q", "weights", "ks", "ke"}) draft[name].shape[0] = 0;
  for (const char* name : {"k", "k_scale"}) draft[name].shape[0] = 0;
  const auto bytes = draft.bytes();
  const Trace trace = Trace::from_bytes(bytes, "t");
  EXPECT_FALSE(trace.problem().q.absent());
  EXPECT_FALSE(trace.problem().ks.absent());
}

TEST(Trace, RowsAreCopiedInTheOrderAsked) {
  Draft draft;
  const auto bytes = draft.bytes();
  const Trace whole = Trace::from_bytes(bytes, "t");
  const std::vector<std::int64_t> order{1, 0, 1};
  const Trace some = whole.rows(order);
  ASSERT_EQ(some.problem().q.shape[0], 3);
  for (std::size_t i = 0; i < order.size(); ++i) {
    EXPECT_EQ(std::memcmp(some.problem().q.at(i), whole.problem().q.at(order[i]), 96), 0);
    EXPECT_EQ(std::memcmp(some.problem().weights.at(i), whole.problem().weights.at(order[i]), 12), 0);
    EXPECT_EQ(*some.problem().ks.at(i), *whole.problem().ks.at(order[i]));
    EXPECT_EQ(*some.problem().ke.at(i), *whole.problem().ke.at(order[i]));
  }
  const auto refused = [&](std::int64_t row) {
    try {
      (void)whole.rows(std::span(&row, 1));
    } catch (const Error& error) {
      return error.kind() == ErrorKind::usage && std::string(error.what()).find("0 <= row < 2") != std::string::npos;
    }
    return false;
  };
  EXPECT_TRUE(refused(2));
  EXPECT_TRUE(refused(-1));
}

TEST(Trace, WrittenTracesReadBackByteForByte) {
  const auto bytes = Draft().bytes();
  const Trace trace = Trace::from_bytes(bytes, "t");
  const auto path =
      std::filesystem::temp_directory_path() / ("dosa-trace-" + std::to_string(::getpid()) + ".safetensors");
  write_trace(path, trace.problem(), {{"made", "by a test"}});
  {
    const Trace again = Trace::open(path);
    EXPECT_TRUE(same(trace.problem(), again.problem()));
    EXPECT_EQ(again.metadata().at("made"), "by a test");
  }

  // Strides that a file cannot hold are gathered: every head the same codes, keys two apart, rows backwards.
  dosa::Problem strided = trace.problem();
  auto& keys = std::get<dosa::ContiguousKeys>(strided.keys);
  keys.codes.shape[0] = 3;
  keys.codes.strides[0] *= 2;
  keys.scales.shape[0] = 3;
  keys.scales.strides[0] = 2;
  strided.q.strides[1] = 0;
  strided.ks.data += 1;
  strided.ks.strides[0] = -1;
  write_trace(path, strided);
  {
    const Trace again = Trace::open(path);
    const auto& found = std::get<dosa::ContiguousKeys>(again.problem().keys);
    EXPECT_EQ(std::memcmp(found.codes.at(2), std::get<dosa::ContiguousKeys>(trace.problem().keys).codes.at(4), 32), 0);
    EXPECT_EQ(std::memcmp(found.scales.at(1), std::get<dosa::ContiguousKeys>(trace.problem().keys).scales.at(2), 4), 0);
    EXPECT_EQ(std::memcmp(again.problem().q.at(1, 2), trace.problem().q.at(1, 0), 32), 0);
    EXPECT_EQ(*again.problem().ks.at(0), *trace.problem().ks.at(1));
  }
  std::filesystem::remove(path);

  dosa::Problem paged = trace.problem();
  paged.keys = dosa::PagedKeys{};
  EXPECT_THROW(write_trace(path, paged), Error);
  dosa::Problem torn = trace.problem();
  torn.ks.shape[0] = 1;
  EXPECT_THROW(write_trace(path, torn), Error);
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(Trace, TheSampleIsWhatItsReadmeSays) {
  const Trace trace = Trace::open(std::filesystem::path(DOSA_SOURCE_DIR) / "data" / "sample_en_l03_h32.safetensors");
  EXPECT_EQ(trace.problem().q.shape, (std::array<std::int64_t, 3>{32, 32, 128}));
  EXPECT_EQ(std::get<dosa::ContiguousKeys>(trace.problem().keys).codes.shape, (std::array<std::int64_t, 2>{8192, 128}));
  EXPECT_EQ(*trace.problem().ke.at(0), 6145);
  EXPECT_EQ(*trace.problem().ke.at(31), 8192);
  EXPECT_EQ(trace.metadata().at("model_license"), "Apache-2.0");
  EXPECT_EQ(trace.metadata().at("text_license"), "public domain");
}

}  // namespace
