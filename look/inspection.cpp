#include "look/inspection.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/io/file.h"
#include "engine/io/no_pipe.h"
#include "engine/io/npy.h"
#include "look/views.h"

namespace nestgrad {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// Empty for what is no drawing: tables, trees and images.
std::string svg_of(const Picture& picture) {
  return std::visit(
      []<class P>(const P& p) -> std::string {
        if constexpr (requires { svg(p); }) return svg(p);
        else return {};
      },
      picture);
}

std::string array_file(const std::string& name) { return fmt::format("views/{}.npy", name); }

// What is text of the files that report.html and summary.jsonl go with, by name.
std::map<std::string, std::string> beside_arrays(const Inspection& page) {
  std::map<std::string, std::string> out;
  for (const ReportView& view : page.views) {
    int number = 0;
    for (const Picture& picture : view.pictures)
      if (std::string image = svg_of(picture); !image.empty())
        out.emplace(fmt::format("views/{}-{}.svg", view.id, ++number), std::move(image));
  }
  for (const auto& [name, text] : {std::pair{"graph.dot", &page.graph_dot},
                                   {"graph.txt", &page.graph_text},
                                   {"trace.json", &page.trace}})
    if (!text->empty()) out.emplace(name, *text);
  return out;
}

std::string list_line(const std::vector<std::string>& names) { return Json{{"files", names}}.dump() + "\n"; }

// Whatever a list says, no other files are removed.
bool may_be_of_a_page(const std::string& name) {
  const fs::path path = name;
  if (name == "graph.dot" || name == "graph.txt" || name == "trace.json") return true;
  return path.parent_path() == "views" && (path.extension() == ".npy" || path.extension() == ".svg");
}

// A number that is not finite is written as null.
Json to_json(const Claim& c) {
  return {{"claim", c.claim},
          {"error", c.error},
          {"tolerance", c.tolerance},
          {"unit", c.unit},
          {"holds", c.holds()}};
}

}  // namespace

Inspection inspect(const look::InspectedLoop& loop, const InspectionOptions& options) {
  loop.check();
  Inspection out;
  out.title = "A look inside " + loop.name;
  out.subtitle = fmt::format("{} tokens, inner mini-batches of {}, {} head{} of {} features", loop.time(),
                             loop.chunk(), loop.heads(), loop.heads() == 1 ? "" : "s", loop.k.shape()[3]);
  out.facts = {{"policy", loop.policy.str()},
               {"inner steps", std::to_string(loop.chunks())},
               {"outer loss", loop.outer_loss.size() == 1
                                  ? fmt::format("{:.3g} {}", loop.outer_loss[0], loop.outer_unit)
                                  : loop.outer_unit},
               {"numbers", "f64, but for the precision view"}};
  look::ViewContext context(loop, options, out);
  const auto report = [&](const char* what, double done) {
    if (options.progress) options.progress(what, done);
  };
  const std::span<const look::View> views = look::views();
  for (std::size_t i = 0; i < views.size(); ++i) {
    if (views[i].of_images && !loop.patches) continue;
    report(views[i].what, static_cast<double>(i) / static_cast<double>(views.size()));
    out.views.push_back(views[i].make(context));
  }
  report("done", 1);
  return out;
}

bool Inspection::holds() const {
  return std::ranges::all_of(
      views, [](const ReportView& v) { return std::ranges::all_of(v.claims, &Claim::holds); });
}

std::string Inspection::html() const { return html_report(title, subtitle, facts, views); }

std::string Inspection::summary() const {
  std::string out;
  for (const ReportView& v : views) {
    Json invariants = Json::array();
    for (const Claim& c : v.claims) invariants.push_back(to_json(c));
    out += Json{{"view", v.id}, {"title", v.title}, {"question", v.question}, {"invariants", invariants}}
               .dump() +
           "\n";
  }
  return out;
}

void Inspection::save(const std::string& folder) const {
  std::error_code error;
  if (!folder.empty()) fs::create_directories(folder + "/views", error);
  if (folder.empty() || error)
    throw IoError(fmt::format("[inspect] no folder '{}' for the page can be made{}{}; give another",
                              printable(folder), error ? ": " : "", error ? error.message() : ""));
  const std::map<std::string, std::string> pictures = beside_arrays(*this);
  std::vector<std::string> names;
  for (const auto& [name, text] : pictures) names.push_back(name);
  for (const auto& [name, array] : arrays) names.push_back(array_file(name));
  std::vector<std::string> left_over;  // of an earlier page
  for (const std::string& name : inspected_files(folder).value_or(std::vector<std::string>()))
    if (std::ranges::find(names, name) == names.end()) left_over.push_back(name);
  // The summary comes first: whatever ends this half way, all files that are there are in its list.
  std::vector<std::string> there = names;
  there.insert(there.end(), left_over.begin(), left_over.end());
  const std::string path = folder + "/summary.jsonl";
  write_file_atomically(path, summary() + list_line(there));
  for (const auto& [name, array] : arrays) write_npy(folder + "/" + array_file(name), array);
  for (const auto& [name, text] : pictures) write_file_atomically(folder + "/" + name, text);
  write_file_atomically(folder + "/report.html", html());
  for (const std::string& name : left_over) fs::remove(folder + "/" + name, error);
  if (!left_over.empty()) write_file_atomically(path, summary() + list_line(names));
}

std::optional<std::vector<std::string>> inspected_files(const std::string& folder) try {
  std::istringstream lines(read_found_file(folder + "/summary.jsonl"));
  std::vector<std::string> out;
  std::size_t views = 0;
  for (std::string line; std::getline(lines, line);) {
    const Json json = Json::parse(line, nullptr, false);
    if (json.is_object() && json.size() == 1 && json.contains("files")) {
      for (const Json& name : json["files"])
        if (name.is_string() && may_be_of_a_page(name)) out.push_back(name);
    } else if (json.is_object() && json.contains("view") && json.contains("question") &&
               json.contains("invariants")) {
      ++views;
    } else {
      return std::nullopt;
    }
  }
  if (views == 0) return std::nullopt;
  return out;
} catch (const IoError&) {
  return std::nullopt;
}

}  // namespace nestgrad
