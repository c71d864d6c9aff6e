// CodeCache: machine code that was made of text before, in a folder of the user's: NESTGRAD_CACHE (an absolute path;
// with another nothing is kept), or nestgrad in XDG_CACHE_HOME or ~/.cache. A file there is used only if it is the
// user's own, nobody else may write it, and it ends with the right checksum. Files are written aside and renamed, so that several processes may do so at once. Of more than `most` of one kind
// the older half goes.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

namespace nestgrad {

class CodeCache {
 public:
  explicit CodeCache(std::string extension, std::size_t most = 400)  // ".so"
      : extension_(std::move(extension)), most_(most) {}

  // Of all that decides what the code is: its text, flags, compiler.
  static std::string key_of(const std::string& all);
  // Where what was kept under the key is, followed by its checksum. Empty: there is nothing.
  std::string path(const std::string& key) const;
  // Its bytes. Empty: there is nothing.
  std::string read(const std::string& key) const;
  // What cannot be kept is not.
  void keep(const std::string& key, const std::string& code) const;

 private:
  std::string extension_;
  std::size_t most_;
};

}  // namespace nestgrad
