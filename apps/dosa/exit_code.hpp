// What the process returns. Scripts depend on these numbers (docs/cli.md).
#pragma once

#include "dosa/types.hpp"

namespace dosa::app {

enum ExitCode : int { kSuccess = 0, kFailure = 1, kUsage = 2, kBadInput = 3, kMismatch = 4, kNotAvailable = 5 };

[[nodiscard]] constexpr ExitCode exit_code(ErrorKind kind) noexcept {
  switch (kind) {
    case ErrorKind::usage:
      return kUsage;
    case ErrorKind::bad_input:
      return kBadInput;
    case ErrorKind::not_available:
      return kNotAvailable;
    case ErrorKind::io:
    case ErrorKind::internal:
      break;
  }
  return kFailure;
}

}  // namespace dosa::app
