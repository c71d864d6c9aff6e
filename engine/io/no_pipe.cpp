#include "engine/io/no_pipe.h"

#include <fmt/format.h>

#include "engine/io/file.h"

namespace nestgrad {

void check_no_pipe(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (!std::filesystem::is_other(status)) return;
  throw IoError(
      fmt::format("[io] cannot read {}: it is a pipe or a device among files; put a file there, or remove it",
                  printable(path.string())));
}

std::string read_found_file(const std::string& path) {
  check_no_pipe(path);
  return read_file(path);
}

}  // namespace nestgrad
