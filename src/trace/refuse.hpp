// A file that cannot be used: which, for what, and what the system says about it.
#pragma once

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "contract/text.hpp"
#include "dosa/types.hpp"

namespace dosa {

/// Throws Error{io} with errno's reason.
[[noreturn]] inline void refuse(const std::filesystem::path& path, const char* action) {
  throw Error(ErrorKind::io,
              text::format("{}: cannot {}: {}", path.string(), action, std::generic_category().message(errno)));
}

}  // namespace dosa
