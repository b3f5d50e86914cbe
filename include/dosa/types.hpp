// Words of the contract: kinds of score models, backends, paths, orders and errors.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

#include "dosa/export.hpp"

namespace dosa DOSA_PUBLIC {

/// Which F32 bits a score has (docs/contract.md, "Score models"). A result always names the model it used.
enum class ScoreModel : std::uint8_t {
  f64,   ///< exact dot products, binary64 chain over the heads, one rounding to binary32
  sm90,  ///< the bits that DeepGEMM's fp8_mqa_logits writes on Hopper
};

/// Who computes. Every backend returns the same bytes for the same model.
enum class Backend : std::uint8_t {
  automatic,  ///< chosen by plan(); the plan says which and why
  reference,  ///< scores everything under the model and sorts: the oracle
  cpu,        ///< oneTBB and the best instruction set the processor and the kernel allow
  cuda,       ///< Hopper; an error where it is not built in or no such GPU is there
};

/// Family of work a row may take. Rows that a certified path cannot help go dense and are counted.
enum class Path : std::uint8_t {
  automatic,  ///< for each row by a measured cost model
  dense,      ///< all heads of all keys in fast arithmetic with a proven error
  dosa,       ///< DoSA's certificate (arXiv 2610.13990) rejects keys before they are scored
};

/// Instruction set of the CPU backend.
enum class Isa : std::uint8_t { automatic, portable, avx2, avx512, avx512bf16, amx };

/// Order in which a row's selected keys are written.
enum class Order : std::uint8_t {
  index,  ///< ascending key index
  score,  ///< the total order: higher score first, equal scores by smaller index
};

/// What a written index counts from.
enum class IndexBase : std::uint8_t {
  absolute,  ///< the key's index i
  window,    ///< i - max(ks, 0)
  slot,      ///< paged keys only: block_table[request][i / P] * P + i % P
};

enum class ErrorKind : std::uint8_t {
  usage,          ///< an option is outside its range
  bad_input,      ///< a tensor, a view or a file does not say what the contract asks for
  not_available,  ///< a backend or an instruction set that this build or machine lacks
  io,             ///< the operating system refused a file operation
  internal,       ///< a broken promise of ours
};

/// The one exception type of the library. what() says what was found and what was wanted.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  [[nodiscard]] ErrorKind kind() const noexcept { return kind_; }

 private:
  ErrorKind kind_;
};

/// Names as the command line writes them ("f64", "auto", "avx512", ...).
[[nodiscard]] std::string_view name(ScoreModel model) noexcept;
[[nodiscard]] std::string_view name(Backend backend) noexcept;
[[nodiscard]] std::string_view name(Path path) noexcept;
[[nodiscard]] std::string_view name(Isa isa) noexcept;
[[nodiscard]] std::string_view name(Order order) noexcept;
[[nodiscard]] std::string_view name(IndexBase base) noexcept;

/// The inverse of name(). Throws Error{usage} that lists the accepted words.
[[nodiscard]] ScoreModel parse_score_model(std::string_view word);
[[nodiscard]] Backend parse_backend(std::string_view word);
[[nodiscard]] Path parse_path(std::string_view word);
[[nodiscard]] Isa parse_isa(std::string_view word);
[[nodiscard]] Order parse_order(std::string_view word);
[[nodiscard]] IndexBase parse_index_base(std::string_view word);

}  // namespace DOSA_PUBLIC
