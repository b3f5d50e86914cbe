#include "trace/output_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <system_error>

#include "trace/refuse.hpp"

namespace dosa {
OutputFile::OutputFile(const std::filesystem::path& path) : asked_(path), target_(path) {
  std::error_code ignored;
  if (std::filesystem::is_symlink(path, ignored)) {
    const auto resolved = std::filesystem::weakly_canonical(path, ignored);
    if (!ignored) target_ = resolved;
  }
  const auto status = std::filesystem::status(target_, ignored);
  if (std::filesystem::is_directory(status)) {
    errno = EISDIR;
    refuse(asked_, "write");
  }
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    fd_ = ::open(target_.c_str(), O_WRONLY | O_CLOEXEC);
    if (fd_ < 0) refuse(asked_, "open for writing");
    return;
  }
  // A rename needs no right to write the target, so a file somebody made read-only would vanish without this question.
  if (std::filesystem::exists(status) && ::access(target_.c_str(), W_OK) != 0) refuse(asked_, "write");
  for (int attempt = 0; fd_ < 0; ++attempt) {
    temporary_ = target_;
    temporary_ += text::format(".tmp-{}-{}", ::getpid(), attempt);
    fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd_ < 0 && (errno != EEXIST || attempt == 100)) {
      temporary_.clear();
      refuse(asked_, "create");
    }
  }
}

void OutputFile::check_writable(const std::filesystem::path& path) {
  std::error_code ignored;
  const auto status = std::filesystem::status(path, ignored);
  const bool special = std::filesystem::exists(status) && !std::filesystem::is_regular_file(status) &&
                       !std::filesystem::is_directory(status);
  if (!special) const OutputFile probe(path);
}

OutputFile::~OutputFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void OutputFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    // One call of write() moves at most 2 GiB on Linux.
    const auto written = ::write(fd_, bytes.data(), std::min<std::size_t>(bytes.size(), std::size_t{1} << 30));
    if (written < 0) {
      if (errno == EINTR) continue;
      refuse(asked_, "write");
    }
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void OutputFile::commit() {
  const int fd = fd_;
  fd_ = -1;
  // Some file systems (NFS, quotas) report a failed write only here.
  if (::close(fd) != 0) refuse(asked_, "write");
  if (temporary_.empty()) return;
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) refuse(asked_, "rename the finished file to this name");
  temporary_.clear();
}

}  // namespace dosa
