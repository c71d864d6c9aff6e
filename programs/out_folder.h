// The folders that programs write into, and which files there they may replace: one rule for all of them. A file that is there
// already is replaced only where its own content, or that of the folder, says that the same kind of run wrote it.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace nestgrad {

// IoError if it cannot be there. option: where another folder can be given.
void make_folder(const std::string& folder, std::string_view option = "--out");

struct FolderRule {
  std::string_view kind;                                  // of what is written: "a training run"
  std::function<bool(const std::string& name)> concerns;  // what would be replaced, or taken for a part of it
  std::function<bool(const std::string& name)> may_replace;  // asked of what is there
  std::string_view option = "--out";
};
// ConfigError that names the first file of the folder which the rule protects. A folder that is not there holds none.
void check_replaceable(const std::string& folder, const FolderRule& rule);

// A page of inspect takes the place of another one, and of nothing else.
FolderRule inspection_rule(const std::string& folder);
// A model of images (vision::write_checkpoint) that of another one.
FolderRule image_model_rule(const std::string& folder, std::string_view option);

// IoError where one of these files could not be written: before the work that goes into it. The folder is there.
void check_writable(const std::string& folder, const std::vector<std::string>& names);

}  // namespace nestgrad
