// Of files that are found in a folder, and that nobody named.
#pragma once

#include <filesystem>
#include <string>

namespace nestgrad {

// IoError where something is there that is neither a file nor a folder, or a link to one: a pipe, which someone may well
// give by its name, would be waited for without an end.
void check_no_pipe(const std::filesystem::path& path);
// read_file (engine/io/file.h), but of no pipe.
std::string read_found_file(const std::string& path);

}  // namespace nestgrad
