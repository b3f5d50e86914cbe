// Where real traces and the vectors of the real kernel lie: $DOSA_SHARED, else ../shared beside the source tree.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace dosa::test {

/// The folder shared/<name>, or nothing where it is absent.
inline std::optional<std::filesystem::path> shared_folder(const std::string& name) {
  const char* given = std::getenv("DOSA_SHARED");
  const std::filesystem::path root = given != nullptr && *given != '\0'
                                         ? std::filesystem::path(given)
                                         : std::filesystem::path(DOSA_SOURCE_DIR) / ".." / "shared";
  std::error_code error;
  const std::filesystem::path folder = root / name;
  if (!std::filesystem::is_directory(folder, error)) return std::nullopt;
  return folder;
}

inline bool in_ci() {
  const char* ci = std::getenv("CI");
  return ci != nullptr && std::string_view(ci) == "true";
}

}  // namespace dosa::test

/// Declares `variable` as the path of shared/<name>. Absent data fails the test in CI (CI=true) and skips it elsewhere.
#define DOSA_SHARED_FOLDER(variable, name)                                                           \
  const auto variable##_found = ::dosa::test::shared_folder(name);                                   \
  if (!variable##_found) {                                                                           \
    if (::dosa::test::in_ci()) FAIL() << "shared/" << name << " is missing: set DOSA_SHARED";        \
    GTEST_SKIP() << "shared/" << name << " is missing: set DOSA_SHARED to the folder that holds it"; \
  }                                                                                                  \
  const std::filesystem::path variable = *variable##_found
