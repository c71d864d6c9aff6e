#include "engine/plan/code_cache.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>
#include <vector>

#include "engine/core/hash.h"

namespace nestgrad {

namespace fs = std::filesystem;

namespace {

std::string footer_of(std::string_view code) { return fmt::format("nestgrad{:016x}", fnv1a(code)); }
constexpr std::size_t kFooter = 24;

// Nobody but the user may write what is opened as code.
bool is_private(const fs::path& path, bool folder) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) return false;
  return (folder ? S_ISDIR(info.st_mode) : S_ISREG(info.st_mode)) && info.st_uid == geteuid() &&
         (info.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

// The user's cache folder, made if it is not there. Empty: there is none that is the user's alone.
fs::path cache_folder() {
  const auto value = [](const char* name) { return std::string(std::getenv(name) ? std::getenv(name) : ""); };
  fs::path folder = value("NESTGRAD_CACHE");
  if (folder.empty() && !value("XDG_CACHE_HOME").empty())
    folder = fs::path(value("XDG_CACHE_HOME")) / "nestgrad";
  if (folder.empty() && !value("HOME").empty()) folder = fs::path(value("HOME")) / ".cache" / "nestgrad";
  if (folder.empty() || !folder.is_absolute()) return {};
  std::error_code failed;
  fs::create_directories(folder.parent_path(), failed);
  mkdir(folder.c_str(), 0700);
  return is_private(folder, true) ? folder : fs::path();
}

// Those that were made first, if there are more than `most`.
void drop_oldest(const fs::path& folder, const std::string& extension, std::size_t most) {
  std::error_code ignored;
  std::vector<std::pair<fs::file_time_type, fs::path>> files;
  for (fs::directory_iterator at(folder, ignored), end; at != end; at.increment(ignored))
    if (at->path().extension() == extension) files.emplace_back(at->last_write_time(ignored), at->path());
  if (files.size() <= most) return;
  std::ranges::sort(files);
  for (std::size_t i = 0; i < files.size() / 2; ++i) fs::remove(files[i].second, ignored);
}

// A whole file of the cache, without its checksum. Empty: it is not there, not the user's, or cut off.
std::string read_whole(const fs::path& path) {
  if (!is_private(path, false)) return {};
  std::ifstream in(path, std::ios::binary);
  std::ostringstream all;
  all << in.rdbuf();
  std::string bytes = std::move(all).str();
  if (bytes.size() < kFooter) return {};
  const std::string_view code(bytes.data(), bytes.size() - kFooter);
  if (std::string_view(bytes).substr(code.size()) != footer_of(code)) return {};
  bytes.resize(code.size());
  return bytes;
}

}  // namespace

std::string CodeCache::key_of(const std::string& all) {
  return fmt::format("{:016x}{:016x}", fnv1a(all), fnv1a(all, 0x9e3779b97f4a7c15));
}

std::string CodeCache::path(const std::string& key) const {
  const fs::path folder = cache_folder();
  if (folder.empty()) return {};
  const fs::path path = folder / (key + extension_);
  return read_whole(path).empty() ? "" : path.string();
}

std::string CodeCache::read(const std::string& key) const {
  const fs::path folder = cache_folder();
  return folder.empty() ? "" : read_whole(folder / (key + extension_));
}

void CodeCache::keep(const std::string& key, const std::string& code) const {
  const fs::path folder = cache_folder();
  if (folder.empty()) return;
  static std::atomic<int> number = 0;
  const fs::path part = folder / fmt::format("{}.{}.{}.part", key, getpid(), number++);
  {
    std::ofstream out(part, std::ios::binary);
    out << code << footer_of(code);
    out.flush();
    if (!out) {
      std::error_code ignored;
      fs::remove(part, ignored);
      return;
    }
  }
  chmod(part.c_str(), 0600);
  std::error_code failed;
  fs::rename(part, folder / (key + extension_), failed);
  if (failed) fs::remove(part, failed);
  drop_oldest(folder, extension_, most_);
}

}  // namespace nestgrad
