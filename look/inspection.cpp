#include "look/inspection.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/io/file.h"
#include "engine/io/npy.h"
#include "look/views.h"

namespace nestgrad {

namespace {

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
  if (!folder.empty()) std::filesystem::create_directories(folder + "/views", error);
  if (folder.empty() || error)
    throw IoError(fmt::format("[inspect] no folder '{}' for the page can be made{}{}; give another",
                              printable(folder), error ? ": " : "", error ? error.message() : ""));
  for (const auto& [name, array] : arrays) write_npy(fmt::format("{}/views/{}.npy", folder, name), array);
  for (const ReportView& view : views) {
    int number = 0;
    for (const Picture& picture : view.pictures)
      if (const std::string image = svg_of(picture); !image.empty())
        write_file_atomically(fmt::format("{}/views/{}-{}.svg", folder, view.id, ++number), image);
  }
  for (const auto& [name, text] :
       {std::pair{"graph.dot", &graph_dot}, {"graph.txt", &graph_text}, {"trace.json", &trace}})
    if (!text->empty()) write_file_atomically(fmt::format("{}/{}", folder, name), *text);
  write_file_atomically(folder + "/summary.jsonl", summary());
  write_file_atomically(folder + "/report.html", html());
}

}  // namespace nestgrad
