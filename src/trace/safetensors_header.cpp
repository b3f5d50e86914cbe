#include "trace/safetensors_header.hpp"

#include <fmt/ranges.h>

#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "contract/text.hpp"
#include "dosa/types.hpp"

namespace dosa::safetensors {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxRank = 16;
constexpr int kMaxIgnoredDepth = 16;

/// Reads the header event by event: no tree is built, so duplicate keys are seen and memory stays in proportion to the
/// text.
class HeaderReader final : public nlohmann::json_sax<json> {
 public:
  HeaderReader(Header& header, const std::string& file) : header_(header), file_(file) {}

  bool null() override { return scalar("null"); }
  bool boolean(bool) override { return scalar("a boolean"); }
  bool number_integer(number_integer_t value) override {
    return number_in_list() ? refuse(text::format("found {}, wanted a size that is not negative", value))
                            : scalar("a number");
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (!number_in_list()) return scalar("a number");
    if (value > static_cast<std::uint64_t>(INT64_MAX)) {
      return refuse(text::format("found {}, wanted a size below 2^63", value));
    }
    return take(value);
  }
  bool number_float(number_float_t, const string_t& text) override {
    return number_in_list() ? refuse(text::format("found {}, wanted an integer below 2^63", text.substr(0, 40)))
                            : scalar("a number");
  }
  bool string(string_t& value) override {
    if (state_ == State::metadata) {
      header_.metadata.emplace(key_, std::move(value));
      return true;
    }
    if (state_ == State::tensor && key_ == "dtype") {
      tensor_.dtype = std::move(value);
      return true;
    }
    return scalar("a string");
  }
  bool binary(binary_t&) override { return scalar("binary data"); }

  bool start_object(std::size_t) override {
    switch (state_) {
      case State::outside:
        state_ = State::top;
        return true;
      case State::top:
        field_names_.clear();
        if (key_ == "__metadata__") {
          state_ = State::metadata;
        } else {
          state_ = State::tensor;
          tensor_ = HeaderTensor{.name = key_, .dtype = {}, .shape = {}};
          offsets_.clear();
        }
        return true;
      default:
        return open_nested("an object");
    }
  }
  bool key(string_t& value) override {
    if (state_ == State::ignored) return true;
    auto& names = state_ == State::top ? top_names_ : field_names_;
    if (!names.insert(value).second) {
      if (state_ == State::top) return fail(text::format("tensor \"{}\" is named twice", shorten(value)));
      return refuse(text::format("\"{}\" is given twice", shorten(value)));
    }
    key_ = std::move(value);
    return true;
  }
  bool end_object() override {
    switch (state_) {
      case State::ignored:
        return close_nested();
      case State::metadata:
        state_ = State::top;
        return true;
      case State::tensor:
        state_ = State::top;
        return finish_tensor();
      default:
        state_ = State::outside;
        return true;
    }
  }
  bool start_array(std::size_t) override {
    if (state_ == State::tensor && key_ == "shape") {
      state_ = State::shape;
      return true;
    }
    if (state_ == State::tensor && key_ == "data_offsets") {
      state_ = State::offsets;
      return true;
    }
    return open_nested("an array");
  }
  bool end_array() override {
    if (state_ == State::ignored) return close_nested();
    state_ = State::tensor;
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const json::exception& error) override {
    // The library's message repeats the text it stumbled over: any length, any bytes. The place is enough.
    return fail(text::format("header is not valid JSON at byte {} (nlohmann error {})", position, error.id));
  }

 private:
  enum class State { outside, top, metadata, tensor, shape, offsets, ignored };

  static std::string shorten(const std::string& text) { return text.size() <= 80 ? text : text.substr(0, 77) + "..."; }
  [[noreturn]] bool fail(const std::string& what) const {
    throw Error(ErrorKind::bad_input, text::format("{}: {}", file_, what));
  }
  [[noreturn]] bool refuse(const std::string& what) const {
    switch (state_) {
      case State::metadata:
        fail(text::format("__metadata__: {}", what));
      case State::shape:
        fail(text::format("tensor \"{}\": shape: {}", shorten(tensor_.name), what));
      case State::offsets:
        fail(text::format("tensor \"{}\": data_offsets: {}", shorten(tensor_.name), what));
      case State::tensor:
        fail(text::format("tensor \"{}\": {}", shorten(tensor_.name), what));
      default:
        fail(what);
    }
  }

  [[nodiscard]] bool number_in_list() const { return state_ == State::shape || state_ == State::offsets; }
  bool take(std::uint64_t value) {
    auto& list = state_ == State::shape ? tensor_.shape : offsets_;
    const std::size_t most = state_ == State::shape ? kMaxRank : 2;
    if (list.size() == most) refuse(text::format("found more than {} numbers", most));
    list.push_back(value);
    return true;
  }

  /// A value where the format wants something else, or of a field the format does not know (ignored).
  bool scalar(const char* found) {
    switch (state_) {
      case State::ignored:
        return true;
      case State::outside:
        fail(text::format("header: found {}, wanted a JSON object", found));
      case State::top:
        fail(text::format("\"{}\": found {}, wanted an object", shorten(key_), found));
      case State::metadata:
        refuse(text::format("\"{}\": found {}, wanted a string", shorten(key_), found));
      case State::shape:
      case State::offsets:
        refuse(text::format("found {}, wanted a number", found));
      case State::tensor:
        break;
    }
    if (key_ == "dtype") refuse(text::format("dtype: found {}, wanted a string", found));
    if (key_ == "shape" || key_ == "data_offsets") refuse(text::format("{}: found {}, wanted an array", key_, found));
    return true;
  }
  bool open_nested(const char* found) {
    if (state_ != State::ignored) {
      scalar(found);
      state_ = State::ignored;
      ignored_depth_ = 0;
    }
    if (++ignored_depth_ > kMaxIgnoredDepth) fail(text::format("header nests deeper than {} levels", kMaxIgnoredDepth));
    return true;
  }
  bool close_nested() {
    if (--ignored_depth_ == 0) state_ = State::tensor;
    return true;
  }

  bool finish_tensor() {
    for (const char* field : {"dtype", "shape", "data_offsets"}) {
      if (!field_names_.contains(field)) {
        fail(text::format("tensor \"{}\": {} is missing", shorten(tensor_.name), field));
      }
    }
    if (offsets_.size() != 2) {
      fail(text::format("tensor \"{}\": data_offsets: found {} numbers, wanted [begin, end]", shorten(tensor_.name),
                        offsets_.size()));
    }
    tensor_.begin = offsets_[0];
    tensor_.end = offsets_[1];
    header_.tensors.push_back(std::move(tensor_));
    return true;
  }

  Header& header_;
  const std::string& file_;
  State state_ = State::outside;
  int ignored_depth_ = 0;
  std::string key_;
  std::set<std::string> top_names_, field_names_;
  HeaderTensor tensor_;
  std::vector<std::uint64_t> offsets_;
};

}  // namespace

Header parse_header(std::string_view text, const std::string& file) {
  // The format says that the first byte is '{' (no blank, no byte-order mark). nlohmann's lexer takes a NUL for the end
  // of the text and would ignore what follows.
  if (text.empty() || text.front() != '{') {
    throw Error(
        ErrorKind::bad_input,
        text::format("{}: header: found {}, wanted a JSON object that begins with '{{'", file,
                     text.empty() ? "nothing" : text::format("byte 0x{:02x}", static_cast<unsigned char>(text[0]))));
  }
  if (const auto nul = text.find('\0'); nul != std::string_view::npos) {
    throw Error(ErrorKind::bad_input, text::format("{}: header holds a NUL byte at byte {}", file, nul));
  }
  Header header;
  HeaderReader reader(header, file);
  json::sax_parse(text.begin(), text.end(), &reader);
  return header;
}

unsigned element_bits(std::string_view dtype) noexcept {
  static constexpr std::array<std::pair<std::string_view, unsigned>, 22> kBits{{
      {"BOOL", 8},    {"U8", 8},      {"I8", 8},          {"F8_E4M3", 8},     {"F8_E5M2", 8}, {"F8_E8M0", 8},
      {"U16", 16},    {"I16", 16},    {"F16", 16},        {"BF16", 16},       {"U32", 32},    {"I32", 32},
      {"F32", 32},    {"U64", 64},    {"I64", 64},        {"F64", 64},        {"C64", 64},    {"F4", 4},
      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8},
  }};
  for (const auto& [word, bits] : kBits) {
    if (word == dtype) return bits;
  }
  return 0;
}

bool tensor_bytes(const std::vector<std::uint64_t>& shape, unsigned bits, std::uint64_t& bytes) noexcept {
  std::uint64_t total = bits;
  bool zero = false;
  for (const std::uint64_t size : shape) {
    zero = zero || size == 0;
    if (size != 0 && __builtin_mul_overflow(total, size, &total)) return false;
  }
  // Sizes whose product overflows are refused even beside a zero: nothing may multiply them later.
  bytes = zero ? 0 : total / 8;
  return total / 8 <= static_cast<std::uint64_t>(INT64_MAX) && (zero || total % 8 == 0);
}

}  // namespace dosa::safetensors
