// A file that appears under its name whole or not at all.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

namespace dosa {

/// Writes beside the target and renames on commit(), so that a reader never sees half a file. A target that exists and
/// is not a regular file (/dev/null, a FIFO) is written directly; a symbolic link keeps pointing where it points.
class OutputFile {
 public:
  /// Throws Error{io}.
  explicit OutputFile(const std::filesystem::path& path);
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile();  ///< without commit(): the temporary file is removed, the target is as it was

  /// Throws Error{io} where a file of that name could not be written: asked before long work. Leaves nothing behind,
  /// and does not open special files (a FIFO's reader would see an end).
  static void check_writable(const std::filesystem::path& path);

  void write(std::span<const std::byte> bytes);  ///< throws Error{io}
  void write(std::string_view text) { write(std::as_bytes(std::span(text.data(), text.size()))); }
  void commit();  ///< throws Error{io}

 private:
  std::filesystem::path asked_, target_, temporary_;  ///< temporary_ empty: written directly
  int fd_ = -1;
};

}  // namespace dosa
