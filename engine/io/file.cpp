#include "engine/io/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <limits>
#include <new>
#include <system_error>
#include <utility>

namespace nestgrad {

static_assert(std::endian::native == std::endian::little,
              "the readers copy little-endian numbers as they are");

namespace {

// One transfer; Linux moves at most 2 GiB at a time.
constexpr std::size_t kTransfer = std::size_t{1} << 30;

std::string reason(int error) { return std::generic_category().message(error); }

std::string_view advice(int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return "check the path, and that its folder exists";
    case EACCES:
    case EPERM:
    case EROFS:
      return "check the permissions of the file and of its folder";
    case ENOSPC:
    case EDQUOT:
      return "free some space on that disk";
    case EFBIG:
      return "the file is larger than the system allows here; raise the limit (ulimit -f)";
    case EMFILE:
    case ENFILE:
      return "too many files are open; close some";
    case ENOMEM:
      return "the file does not fit into memory";
    case EISDIR:
      return "give the path of a file";
    case ELOOP:
      return "its symbolic links lead round in a circle; remove them";
    default:
      return "check the disk and try again";
  }
}

[[noreturn]] void fail_to(std::string_view action, const std::string& path, int error,
                          std::string_view state = "") {
  throw IoError(fmt::format("[io] cannot {} {}: {}; {}{}", action, printable(path), reason(error), state,
                            advice(error)));
}

// An open file that is closed on every way out.
struct Descriptor {
  int value = -1;
  ~Descriptor() {
    if (value >= 0) ::close(value);
  }
};

// Repeats a system call that a signal interrupted.
template <class Call>
auto retry(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

// write(), which fails with EFBIG at the limit of file sizes: the signal that comes with it, and would end
// the process, is taken back.
ssize_t write_within_limit(int descriptor, const void* bytes, std::size_t size) {
  sigset_t limit, before;
  sigemptyset(&limit);
  sigaddset(&limit, SIGXFSZ);
  ::pthread_sigmask(SIG_BLOCK, &limit, &before);
  const ssize_t put = retry([&] { return ::write(descriptor, bytes, size); });
  const int error = errno;
  if (put < 0 && error == EFBIG && !sigismember(&before, SIGXFSZ)) {
    const timespec now{};
    retry([&] { return ::sigtimedwait(&limit, nullptr, &now); });
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = error;
  return put;
}

// Where a chain of links leads, whether or not there is a file yet; a link where it leads round in a circle.
std::string end_of_links(std::filesystem::path at) {
  constexpr int kMostLinks = 40;  // as many as the system follows
  std::error_code ignored;
  for (int links = 0; links < kMostLinks && std::filesystem::is_symlink(at, ignored); ++links)
    at = at.parent_path() / std::filesystem::read_symlink(at, ignored);
  return at.string();
}

bool is_temporary(const std::string& name) {
  return name.starts_with(".nestgrad-") && name.ends_with(".tmp");
}

}  // namespace

std::string read_file(const std::string& path) try {
  const Descriptor file{retry([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC); })};
  if (file.value < 0) fail_to("read", path, errno);
  struct stat info {};
  if (::fstat(file.value, &info) != 0) fail_to("read", path, errno);
  if (S_ISDIR(info.st_mode)) fail_to("read", path, EISDIR);
  if (S_ISCHR(info.st_mode) || S_ISBLK(info.st_mode))
    throw IoError(
        fmt::format("[io] cannot read {}: it is a device; give the path of a file", printable(path)));

  // The size is a first guess only: it is 0 for pipes and /proc, and a file may grow while it is read.
  std::string bytes(static_cast<std::size_t>(info.st_size) + 1, '\0');
  std::size_t have = 0;
  while (true) {
    if (have == bytes.size()) bytes.resize(bytes.size() * 2 + 4096);
    const std::size_t room = std::min(bytes.size() - have, kTransfer);
    const ssize_t got = retry([&] { return ::read(file.value, bytes.data() + have, room); });
    if (got < 0) fail_to("read", path, errno);
    if (got == 0) break;
    have += static_cast<std::size_t>(got);
  }
  bytes.resize(have);
  return bytes;
} catch (const std::bad_alloc&) {
  fail_to("read", path, ENOMEM);
}

AtomicFile::AtomicFile(const std::string& path) : target_(end_of_links(path)) {
  if (std::error_code ignored; std::filesystem::is_symlink(target_, ignored)) fail(ELOOP);
  const auto parent = std::filesystem::path(target_).parent_path();
  folder_ = parent.empty() ? "." : parent.string();

  struct stat old {};
  const bool exists = ::stat(target_.c_str(), &old) == 0;
  if (exists && S_ISDIR(old.st_mode)) fail(EISDIR);
  if (exists && !S_ISREG(old.st_mode))
    throw IoError(fmt::format(
        "[io] cannot write {}: it is a device or a pipe, which must not be replaced; give the path of a file",
        printable(path)));
  if (exists && ::access(target_.c_str(), W_OK) != 0) fail(errno);

  static std::atomic<unsigned> counter{0};
  do {
    const auto name = fmt::format(".nestgrad-{}-{}.tmp", ::getpid(), counter.fetch_add(1));
    temporary_ = (std::filesystem::path(folder_) / name).string();
    descriptor_ =
        retry([&] { return ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666); });
  } while (descriptor_ < 0 && errno == EEXIST);
  if (descriptor_ < 0) {
    const int error = errno;
    temporary_.clear();  // not ours to remove
    fail(error);
  }
  // Says that its owner lives; where files cannot be locked, nothing says so.
  static_cast<void>(retry([&] { return ::flock(descriptor_, LOCK_EX | LOCK_NB); }));
  if (exists && ::fchmod(descriptor_, old.st_mode & 07777) != 0) fail(errno);
}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::fail(int error) {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
  temporary_.clear();
  fail_to("write", target_, error, "what was there is unchanged; ");
}

void AtomicFile::write(std::string_view bytes) {
  if (descriptor_ < 0)
    throw IoError(fmt::format("[io] cannot write {}: this AtomicFile is already closed; make a new one",
                              printable(target_)));
  while (!bytes.empty()) {
    const std::size_t part = std::min(bytes.size(), kTransfer);
    const ssize_t put = write_within_limit(descriptor_, bytes.data(), part);
    if (put < 0) fail(errno);
    bytes.remove_prefix(static_cast<std::size_t>(put));
  }
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  write(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

void AtomicFile::commit() {
  write(std::string_view());  // refuses a second commit
  if (retry([&] { return ::fsync(descriptor_); }) != 0) fail(errno);
  // Open until it has its name: closed, it would be nobody's, and whoever removes temporaries would take it.
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) fail(errno);
  temporary_.clear();
  // All is on the disk: an error has nothing more to say. (Linux closes the descriptor also then.)
  ::close(std::exchange(descriptor_, -1));

  const Descriptor folder{retry([&] { return ::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); })};
  // A folder that may be written but not read cannot be opened, and some file systems cannot sync one
  // (EINVAL); the file itself is complete either way.
  if (folder.value < 0 || retry([&] { return ::fsync(folder.value); }) == 0 || errno == EINVAL) return;
  fail_to("sync the folder of", target_, errno, "the new file is in place but may not survive a power cut; ");
}

void write_file_atomically(const std::string& path, std::string_view bytes) {
  AtomicFile file(path);
  file.write(bytes);
  file.commit();
}

FolderLock::FolderLock(const std::string& folder) : folder_(folder) {
  descriptor_ = retry([&] { return ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
  if (descriptor_ < 0) fail_to("open", folder, errno);
  if (retry([&] { return ::flock(descriptor_, LOCK_EX | LOCK_NB); }) == 0) return;
  const int error = errno;
  ::close(descriptor_);
  if (error == EWOULDBLOCK)
    throw IoError(
        fmt::format("[io] {} is in use by another process; wait for it to end, or choose another folder",
                    printable(folder)));
  fail_to("lock", folder, error);
}

FolderLock::~FolderLock() { ::close(descriptor_); }

void FolderLock::remove_temporaries() const {
  std::error_code ignored;
  for (std::filesystem::directory_iterator at(folder_, ignored), end; at != end; at.increment(ignored)) {
    const std::filesystem::directory_entry& entry = *at;
    if (!is_temporary(entry.path().filename().string())) continue;
    const Descriptor file{
        retry([&] { return ::open(entry.path().c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC); })};
    const bool in_use = file.value >= 0 &&
                        retry([&] { return ::flock(file.value, LOCK_EX | LOCK_NB); }) != 0 &&
                        errno == EWOULDBLOCK;
    if (!in_use) std::filesystem::remove(entry.path(), ignored);
  }
}

std::string printable(std::string_view text, std::size_t limit) {
  std::string out;
  for (const char c : text.substr(0, limit)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) out += fmt::format("\\x{:02x}", byte);
    else out += c;
  }
  if (text.size() > limit) {
    // Do not end inside of a UTF-8 sequence (continuation bytes are 10xxxxxx).
    std::size_t cut = limit;
    while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xc0) == 0x80) --cut, out.pop_back();
    out += "...";
  }
  return out;
}

std::string listed(const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 6;
  std::string out;
  for (std::size_t i = 0; i < std::min(names.size(), kMost); ++i)
    out += fmt::format("{}'{}'", i == 0 ? "" : i + 1 == names.size() ? " and " : ", ", printable(names[i]));
  if (names.size() > kMost) out += fmt::format(" and {} more", names.size() - kMost);
  return out;
}

std::optional<std::size_t> narrow_to_i32(const std::byte* from, std::span<std::int32_t> to) {
  for (std::size_t i = 0; i < to.size(); ++i) {
    std::int64_t value;
    std::memcpy(&value, from + 8 * i, 8);
    if (value < std::numeric_limits<std::int32_t>::min() || value > std::numeric_limits<std::int32_t>::max())
      return i;
    to[i] = static_cast<std::int32_t>(value);
  }
  return std::nullopt;
}

}  // namespace nestgrad
