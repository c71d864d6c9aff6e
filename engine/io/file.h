// Whole files in, whole files out: what every reader and writer of a file format in this folder is built on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/error.h"

namespace nestgrad {

// All bytes of a file, or of a pipe until it is closed. Throws IoError, which names the path and the reason;
// a folder is refused, and so is a device, which may never end.
std::string read_file(const std::string& path);

// A file that appears under its name complete or not at all. Bytes go to a temporary file in the
// same folder (.nestgrad-<process>-<number>.tmp); commit() brings them to the disk (fsync),
// renames the temporary over `path` and brings the folder to the disk. Whatever fails before the
// rename, and a destructor without a commit(), removes the temporary and leaves the old file as
// it was; a killed process leaves the temporary behind, for FolderLock::remove_temporaries().
// Permissions of the old file are kept, and a symbolic link is followed.
//
//   AtomicFile file("weights.bin");
//   file.write(header);
//   file.write(body);
//   file.commit();
//
// Every failure is an IoError that names path, reason and what to do. One thread at a time.
class AtomicFile {
 public:
  explicit AtomicFile(const std::string& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::string_view bytes);
  void write(std::span<const std::byte> bytes);
  void commit();

 private:
  [[noreturn]] void fail(int error);

  std::string target_;     // links resolved
  std::string folder_;     // of the target
  std::string temporary_;  // empty when there is none
  int descriptor_ = -1;
};

// While it exists, no other FolderLock of that folder does, in any process; one that is killed lets go.
// Nothing is written for it. Throws IoError if another process has it, or the folder cannot be opened.
class FolderLock {
 public:
  explicit FolderLock(const std::string& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  // Temporaries of AtomicFiles that killed processes left in the folder. Those that a living process writes,
  // also one without this lock, stay.
  void remove_temporaries() const;

 private:
  std::string folder_;
  int descriptor_ = -1;
};

void write_file_atomically(const std::string& path, std::string_view bytes);

// Text from a file or a path, fit for one line of an error message: control characters are escaped, and
// anything longer than `limit` bytes is cut.
std::string printable(std::string_view text, std::size_t limit = 200);

// The first few of some names and how many more there are, likewise: 'a', 'b' and 3 more.
std::string listed(const std::vector<std::string>& names);

// Copies to.size() little-endian 64-bit integers from `from` (no alignment needed) into 32 bits. Returns the
// index of the first value that does not fit, or nothing when all do.
std::optional<std::size_t> narrow_to_i32(const std::byte* from, std::span<std::int32_t> to);

}  // namespace nestgrad
