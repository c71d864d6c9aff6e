// The views of an inspection, each a file of look/views/ with its numbers, claims, prose and pictures. A new
// view is such a file, which defines `ReportView NAME_view(ViewContext&)`, and its line in the table of
// look/views.cpp.
#pragma once

#include <optional>
#include <span>

#include "engine/run/profile.h"
#include "look/inspection.h"

namespace nestgrad::look {

// What views are made from. It lives as long as one call of inspect().
class ViewContext {
 public:
  ViewContext(const InspectedLoop& of, const InspectionOptions& with, Inspection& result);

  const InspectedLoop& inspected;
  const InspectionOptions& options;
  Inspection& out;           // for what is saved beside the page: arrays, graph and trace
  std::int64_t drawn_heads;  // views with a picture for each head draw this many

  std::int64_t token() const;  // whose step is shown

  // Numbers of several views, made for the first that asks.
  const InnerLosses& losses();
  const Channels& channels();
  const ImplicitAttention& implicit();
  const MetaProgram& program();
  const Profile& profile();  // of one run of program()

 private:
  std::optional<InnerLosses> losses_;
  std::optional<Channels> channels_;
  std::optional<ImplicitAttention> implicit_;
  std::optional<MetaProgram> program_;
  std::optional<Profile> profile_;
};

struct View {
  const char* what;  // for a progress line: "inner losses"
  ReportView (*make)(ViewContext& context);
  bool of_images = false;  // shown where tokens are patches of an image alone
};
std::span<const View> views();  // in the order of the page

ReportView view_of(const PrecisionProbe& probe);

// ---- pieces of pictures ----

// A line over 0, 1, ..
Series line(std::string name, const std::vector<double>& y);
Array array_of(const std::vector<double>& values);
// One map of [.., rows, columns]: how tokens that are answered depend on those that are learnt from.
Heatmap token_map(std::string title, std::string value_label, const Array& maps, std::int64_t head = 0);
// "WHAT, head 1", or only WHAT where there is one head.
std::string head_title(const std::string& what, std::int64_t head, std::int64_t heads);

}  // namespace nestgrad::look
