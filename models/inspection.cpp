#include "models/inspection.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>

#include "autograd/grad.h"
#include "engine/arena.h"
#include "engine/io/file.h"
#include "engine/io/npy.h"
#include "engine/outline.h"
#include "engine/profile.h"
#include "models/language_model.h"

namespace nestgrad {

namespace {

using Json = nlohmann::ordered_json;
using ttt::Specimen;

constexpr std::int64_t kMostHeads = 4;    // that are drawn
constexpr std::int64_t kMostGroups = 40;  // of a graph that is drawn

Series line(std::string name, const std::vector<double>& y, double first = 0) {
  Series out{std::move(name), {}, y};
  for (std::size_t i = 0; i < y.size(); ++i) out.x.push_back(first + static_cast<double>(i));
  return out;
}

Array array_of(const std::vector<double>& values) {
  return Array::of(values, {static_cast<std::int64_t>(values.size())});
}

// One map of [.., rows, columns], of batch entry 0.
std::vector<double> map_of(const Array& maps, std::int64_t head) {
  const std::int64_t rows = maps.shape()[maps.shape().size() - 2], columns = maps.shape().back();
  const auto all = maps.as<double>().subspan(static_cast<std::size_t>(head * rows * columns),
                                             static_cast<std::size_t>(rows * columns));
  return {all.begin(), all.end()};
}

Heatmap token_map(std::string title, std::string value_label, const Array& maps, std::int64_t head = 0) {
  Heatmap out{.title = std::move(title),
              .x_label = "token that is learnt from",
              .y_label = "token that is answered",
              .value_label = std::move(value_label)};
  out.rows = maps.shape()[maps.shape().size() - 2];
  out.columns = maps.shape().back();
  out.values = map_of(maps, head);
  return out;
}

std::string head_title(const std::string& what, std::int64_t head, std::int64_t heads) {
  return heads > 1 ? fmt::format("{}, head {}", what, head) : what;
}

class Maker {
 public:
  Maker(const Specimen& specimen, const InspectionOptions& options)
      : specimen_(specimen), options_(options), heads_(std::min(kMostHeads, specimen.heads())) {}

  Inspection run() {
    const std::pair<const char*, void (Maker::*)()> stages[] = {
        {"inner losses", &Maker::losses},         {"contributions by step", &Maker::by_step},
        {"channels", &Maker::channels},           {"estimators", &Maker::estimators},
        {"curvature", &Maker::curvature},         {"effective attention", &Maker::attention},
        {"implicit attention", &Maker::implicit}, {"keys", &Maker::keys},
        {"one token", &Maker::one_token},         {"the graph", &Maker::graph},
        {"memory and time", &Maker::profile},     {"precision", &Maker::precision},
    };
    out_.title = "A look inside " + specimen_.name;
    out_.subtitle = fmt::format("{} tokens, inner mini-batches of {}, {} head{} of {} features",
                                specimen_.time(), specimen_.chunk(), specimen_.heads(),
                                specimen_.heads() == 1 ? "" : "s", specimen_.k.shape()[3]);
    out_.facts = {{"policy", specimen_.policy.str()},
                  {"inner steps", std::to_string(specimen_.chunks())},
                  {"outer loss", specimen_.outer_unit},
                  {"numbers", "f64, but for the precision view"}};
    double done = 0;
    for (const auto& [what, stage] : stages) {
      if (options_.progress) options_.progress(what, done / static_cast<double>(std::size(stages)));
      (this->*stage)();
      ++done;
    }
    if (options_.progress) options_.progress("done", 1);
    return std::move(out_);
  }

 private:
  ReportView& add(std::string id, std::string title, std::string question, std::string reading,
                  std::vector<Claim> claims = {}) {
    out_.views.push_back({.id = std::move(id),
                          .title = std::move(title),
                          .question = std::move(question),
                          .reading = std::move(reading),
                          .claims = std::move(claims)});
    return out_.views.back();
  }

  void losses() {
    const ttt::InnerLosses r = ttt::inner_losses(specimen_);
    ReportView& view = add(
        "losses", "The inner loss, token by token", "Does the layer learn while it reads?",
        "Each token is a training example of the inner model. Its loss is shown with the weights from before "
        "the first token, with the weights just before the step on that token, and just after it (Sun et al. "
        "2024, Figure 4). Where the second line falls below the first, the layer has learnt from earlier "
        "tokens; where the third falls below the second, the step itself helped.\n\n"
        "Below: the outer loss of the same tokens.",
        r.claims);
    view.pictures = {Chart{"Inner loss",
                           "token",
                           "inner loss",
                           {line("at the first weights", r.initial), line("before the step", r.before),
                            line("after the step", r.after)}},
                     Chart{"Outer loss",
                           "token",
                           fmt::format("outer loss ({})", specimen_.outer_unit),
                           {line("outer loss", r.outer)}}};
    out_.arrays["inner_loss_initial"] = array_of(r.initial);
    out_.arrays["inner_loss_before"] = array_of(r.before);
    out_.arrays["inner_loss_after"] = array_of(r.after);
    out_.arrays["outer_loss"] = array_of(r.outer);
  }

  void by_step() {
    const ttt::StepContributions r = ttt::contributions_by_step(specimen_);
    ReportView& view =
        add("by-step", "The meta-gradient by inner step", "Which inner steps shape the outer gradient?",
            "The outer gradient of the starting weights has a part that treats every inner gradient as a "
            "constant (first order) and one second-order part for each inner step t, -eta H_t lambda_t: how "
            "the loss moves because that step's gradient would have been another one.\n\n"
            "Projection: how much a part contributes in the direction of the full gradient; negative bars "
            "pull against it. All bars add up to the norm of the full gradient.",
            r.claims);
    std::vector<std::string> names{"first order"};
    std::vector<double> projections{r.first_order_projection};
    for (std::size_t t = 0; t < r.norm.size(); ++t) {
      names.push_back(fmt::format("step {}", t));
      projections.push_back(r.projection[t]);
    }
    const std::vector<std::string> steps(names.begin() + 1, names.end());
    view.pictures = {Bars{"Projection on the full gradient",
                          fmt::format("outer loss per weight ({})", specimen_.outer_unit),
                          names,
                          {{"projection", projections}}},
                     Bars{"The second-order terms alone",
                          "in the same unit",
                          steps,
                          {{"projection", r.projection}, {"norm", r.norm}}}};
    view.preformatted =
        fmt::format("full {:.6g} = first order {:.6g} + steps {:.6g}   (projections)\n", r.full_norm,
                    r.first_order_projection, std::accumulate(r.projection.begin(), r.projection.end(), 0.0));
    out_.arrays["step_projection"] = array_of(r.projection);
    out_.arrays["step_norm"] = array_of(r.norm);
  }

  void channels() {
    channels_ = ttt::channels(specimen_);
    const ttt::Channels& r = channels_;
    ReportView& view = add(
        "channels", "Two channels through time",
        "How does what is written at one token reach a later answer?",
        "A write is the gradient step on one token. It reaches later answers in two ways: it is a term of "
        "the sum that the weights are (cumsum channel), and it moves the points at which later gradients are "
        "taken (gradient channel; Sun et al. 2024, section 2.5).\n\n"
        "Row t, column s: by how much the outer loss at token t changes with the size of the write of token "
        "s, all heads together. Within one mini-batch the gradient channel is empty: its gradients are taken "
        "at the same weights.",
        r.claims);
    const std::string unit = fmt::format("change of the outer loss ({})", specimen_.outer_unit);
    for (const auto& [title, map] :
         {std::pair{"Cumsum channel", &r.cumsum}, {"Gradient channel", &r.gradient}}) {
      Heatmap picture = token_map(title, unit, *map);
      picture.diverging = true;
      view.pictures.push_back(picture);
    }
    const std::int64_t time = specimen_.time();
    std::vector<double> sums[2];
    for (int c = 0; c < 2; ++c) {
      sums[c].assign(static_cast<std::size_t>(time), 0);
      const Array& map = c == 0 ? r.cumsum : r.gradient;
      for (std::int64_t i = 0; i < map.size(); ++i)
        sums[c][static_cast<std::size_t>(i % time)] += std::abs(map.at(i));
    }
    view.pictures.push_back(Chart{"Reach of each write, all answers together",
                                  "token that is written",
                                  "sum of |change of the outer loss|",
                                  {line("cumsum channel", sums[0]), line("gradient channel", sums[1])},
                                  {},
                                  false,
                                  true});
    out_.arrays["channel_cumsum"] = r.cumsum;
    out_.arrays["channel_gradient"] = r.gradient;
  }

  void estimators() {
    const ttt::Estimators r = ttt::estimators(specimen_);
    ReportView& view = add(
        "estimators", "First order, truncated, full",
        "What does a cheaper meta-gradient lose, and what does it save?",
        "First order treats inner gradients as constants. Truncated after k steps cuts the weights from "
        "their "
        "past every k inner steps. Cosine 1: the same direction as the full gradient. Costs are those of one "
        "forward and backward pass of this inner loop on this machine.\n\n"
        "The smaller the inner steps, the less the second-order terms matter: the curve below ends at 0.",
        r.claims);
    Table table{.title = "Estimators",
                .columns = {"estimator", "norm", "1 - cosine with full", "time (ms)", "memory (kB)",
                            "flops (k)", "graph (nodes)"}};
    for (const ttt::Estimate& e : r.estimates)
      table.rows.push_back({e.name, format_number(e.norm), format_number(std::max(0.0, 1 - e.cosine)),
                            format_number(e.seconds * 1e3), format_number(static_cast<double>(e.bytes) / 1e3),
                            format_number(e.flops / 1e3), std::to_string(e.nodes)});
    Table parameters{.title = "First order against full, by what the outer model trains",
                     .columns = {"tensor", "norm, full", "1 - cosine", "ratio of norms"}};
    for (std::size_t i = 0; i < r.estimates[0].parameters.size(); ++i) {
      const auto &full = r.estimates[0].parameters[i], &first = r.estimates[1].parameters[i];
      parameters.rows.push_back({full.name, format_number(full.norm),
                                 format_number(std::max(0.0, 1 - first.cosine)), format_number(first.ratio)});
    }
    std::vector<double> gap;
    for (double c : r.cosine) gap.push_back(std::max(1 - c, 1e-16));  // what is less is rounding
    view.pictures = {table, parameters,
                     Chart{.title = "Smaller inner steps",
                           .x_label = "inner steps, times those of the layer",
                           .y_label = "1 - cosine of first order and full (at least 1e-16)",
                           .series = {{"starting weights", r.scale, gap}},
                           .log_x = true,
                           .log_y = true}};
  }

  void curvature() {
    const ttt::Curvature r = ttt::curvature(specimen_);
    ReportView& view = add(
        "curvature", "Curvature along the inner trajectory", "Are the inner steps too long?",
        "eta H is the inner loss's curvature times the step size, where each step takes its gradient. A step "
        "multiplies a deviation by I - eta H. Its spectral radius, found by power iteration: below 1 the "
        "step "
        "contracts, above 1 it throws deviations further away in some direction, and meta-gradients through "
        "many such steps explode.\n\n"
        "Along lambda: the same in the one direction that the outer loss asks for. 0: flat; 1: the step goes "
        "straight to the minimum along it; above 2: it overshoots further than it came.",
        r.claims);
    const auto by_head = [&](const Array& map, const std::string& title, const std::string& label) {
      Chart chart{title, "inner step", label, {}};
      for (std::int64_t h = 0; h < heads_; ++h) {
        std::vector<double> y;
        for (std::int64_t t = 0; t < specimen_.chunks(); ++t) y.push_back(map.at(t * specimen_.heads() + h));
        chart.series.push_back(line(fmt::format("head {}", h), y));
      }
      return chart;
    };
    Chart radius = by_head(r.radius, "Spectral radius of I - eta H", "largest |1 - eta eigenvalue|");
    radius.reference_lines = {{"expands above", 1}};
    radius.too_much = 1;
    view.pictures = {radius,
                     by_head(r.along, "Curvature along lambda", "lambda' eta H lambda / lambda' lambda")};
    const std::vector<double> all = r.radius.to_vector();
    const auto above = std::ranges::count_if(all, [](double x) { return x > 1 + 1e-9; });
    view.preformatted =
        above == 0 ? "no step expands\n"
                   : fmt::format("{} of {} steps (of all heads) expand: radius above 1\n", above, all.size());
    out_.arrays["curvature_along_lambda"] = r.along;
    out_.arrays["spectral_radius"] = r.radius;
  }

  void attention() {
    const ttt::AttentionMaps r = ttt::attention_maps(specimen_);
    ReportView& view = add(
        "attention", "The learner as attention", "Which tokens does an answer come from?",
        "A learner whose last layer is linear answers like linear attention with keys, values and queries "
        "of its own making: row t holds the weights of the values of earlier tokens in the answer to t. "
        "Beside it, softmax attention of the same q and k.",
        r.claims);
    if (!r.effective.defined())
      view.preformatted = "This learner has no effective attention matrix: " + r.why_not + "\n";
    for (std::int64_t h = 0; h < heads_; ++h) {
      if (r.effective.defined()) {
        Heatmap picture = token_map(head_title("Effective attention", h, specimen_.heads()),
                                    "weight (no unit)", r.effective, h);
        picture.diverging = true;
        view.pictures.push_back(picture);
      }
      view.pictures.push_back(
          token_map(head_title("Softmax attention", h, specimen_.heads()), "weight (share)", r.softmax, h));
    }
    if (r.effective.defined()) out_.arrays["effective_attention"] = r.effective;
    out_.arrays["softmax_attention"] = r.softmax;
  }

  void implicit() {
    const ttt::ImplicitAttention r = ttt::implicit_attention(specimen_);
    ReportView& view =
        add("implicit-attention", "Implicit attention", "How much does each answer depend on each value?",
            "|d o_t / d v_s|, for any learner, however deep: "
            "row t, column s is the size of the derivative of "
            "the answer to token t by the value of token s.",
            r.claims);
    if (!specimen_.policy.causal())
      view.reading += "\n\nThis learner is not causal: answers may depend on later values.";
    for (std::int64_t h = 0; h < heads_; ++h)
      view.pictures.push_back(token_map(head_title("Implicit attention", h, specimen_.heads()),
                                        "|d answer / d value| (no unit)", r.map, h));
    out_.arrays["implicit_attention"] = r.map;
  }

  void keys() {
    const ttt::KeyStatistics r = ttt::key_statistics(specimen_);
    ReportView& view =
        add("keys", "Keys, queries, values, answers", "Do queries ask where keys have been learnt?",
            "Two principal components of queries and keys together, and of values and answers together. A "
            "learner can only answer well where queries lie among the keys it was trained on.\n\n"
            "Shift ratio |mean k| / mean |k|: 0 when keys lie around the origin, 1 when all are the same.",
            r.claims);
    const auto column = [](const Array& plane, std::int64_t which) {
      std::vector<double> out;
      for (std::int64_t i = 0; i < plane.shape()[0]; ++i) out.push_back(plane.at(2 * i + which));
      return out;
    };
    const auto picture = [&](const std::string& title, const ttt::KeyStatistics::Plane& plane,
                             const std::string& first, const std::string& second) {
      return Points{.title = fmt::format("{} ({:.0f} % of the variance)", title, 100 * plane.explained),
                    .x_label = "component 1 (no unit)",
                    .y_label = "component 2 (no unit)",
                    .groups = {{first, column(plane.first, 0), column(plane.first, 1)},
                               {second, column(plane.second, 0), column(plane.second, 1)}}};
    };
    for (std::int64_t h = 0; h < heads_; ++h) {
      const auto at = static_cast<std::size_t>(h);
      view.pictures.push_back(picture(head_title("Queries and keys", h, specimen_.heads()),
                                      r.queries_keys[at], "queries", "keys"));
      view.pictures.push_back(picture(head_title("Values and answers", h, specimen_.heads()),
                                      r.values_outputs[at], "values", "answers"));
    }
    for (std::size_t h = 0; h < r.shift.size(); ++h)
      view.preformatted += fmt::format("key shift ratio, head {}: {:.3f}\n", h, r.shift[h]);
    out_.arrays["key_shift_ratio"] = array_of(r.shift);
  }

  void one_token() {
    const std::int64_t token = options_.token >= 0 ? options_.token : specimen_.time() / 2;
    const ttt::StepCard card = ttt::explain_step(specimen_, token, channels_);
    ReportView& view =
        add("one-token", fmt::format("One step: token {}", token), "What happens when one token is read?",
            "The weights that the step finds, what it does to "
            "them, and who reads them next. Norms are taken "
            "over all weights of all heads; losses are means.",
            card.claims);
    view.preformatted = card.str();
  }

  void graph() {
    program_ = ttt::meta_program(specimen_);
    out_.graph_dot = program_.function.dot();
    out_.graph_text = program_.function.str();
    const Outline all = outline(program_.function);
    ReportView& view = add(
        "graph", "The program", "What is computed, and which gradient wrote it?",
        "The graph of this inner loop with its full meta-gradient, in groups. Level 0 is the program as "
        "written, level 1 what the inner gradient added, level 2 and above what the outer gradient added, "
        "the gradient of the inner gradient included. Arrows are coloured by the gradient that they belong "
        "to; where a gradient is stopped on purpose the arrow is cut.\n\n"
        "Unfold a group to see its nodes: id, op, shape, and the line of code that wrote it.");
    Claim sum{"the groups hold every node once", 0, 0, "nodes"};
    std::size_t counted = 0;
    for (const Outline::Group& g : all.groups) counted += g.nodes.size();
    sum.error = std::abs(static_cast<double>(counted) - static_cast<double>(program_.function.live_nodes()));
    view.claims = {sum};
    if (static_cast<std::int64_t>(all.groups.size()) <= kMostGroups) view.pictures.push_back(diagram(all));
    view.pictures.push_back(tree(all, 0));
    view.pictures.push_back(levels(all.groups[0]));
  }

  static int busiest_level(const Outline::Group& g) {
    return static_cast<int>(std::ranges::max_element(g.nodes_by_level) - g.nodes_by_level.begin());
  }

  static Table levels(const Outline::Group& root) {
    Table out{.title = "Nodes by level", .columns = {"level", "nodes"}};
    for (std::size_t i = 0; i < root.nodes_by_level.size(); ++i)
      out.rows.push_back({level_name(static_cast<int>(i), static_cast<int>(root.nodes_by_level.size())),
                          std::to_string(root.nodes_by_level[i])});
    return out;
  }

  static Diagram diagram(const Outline& all) {
    Diagram out{.title = "Groups of the program"};
    std::vector<int> box(all.groups.size(), -1);
    for (std::size_t i = 0; i < all.groups.size(); ++i) {
      const Outline::Group& g = all.groups[i];
      if (g.nodes.empty()) continue;
      box[i] = static_cast<int>(out.boxes.size());
      out.boxes.push_back({g.name, fmt::format("{} nodes", g.nodes.size()), busiest_level(g)});
    }
    for (const Outline::Edge& e : all.edges) {
      const int from = box[static_cast<std::size_t>(e.from)], to = box[static_cast<std::size_t>(e.to)];
      if (from < 0 || to < 0 || (from == to && !e.cut)) continue;
      using Kind = Diagram::Arrow::Kind;
      const Kind kind = e.kind == EdgeKind::forward          ? Kind::forward
                        : e.kind == EdgeKind::inner_gradient ? Kind::inner_gradient
                                                             : Kind::meta_gradient;
      out.arrows.push_back({from, to, kind, e.cut, std::to_string(e.count)});
    }
    return out;
  }

  static Tree tree(const Outline& all, int group) {
    const Outline::Group& g = all.groups[static_cast<std::size_t>(group)];
    const std::int64_t nodes =
        std::accumulate(g.nodes_by_level.begin(), g.nodes_by_level.end(), std::int64_t{0});
    std::string detail = fmt::format("{} nodes; by level", nodes);
    for (std::int64_t n : g.nodes_by_level) detail += fmt::format(" {}", n);
    Tree out{g.name, detail, busiest_level(g), {}};
    for (int child : g.children) out.children.push_back(tree(all, child));
    for (const Outline::Node& n : g.nodes) {
      std::string text = fmt::format("{} {}", n.spec, n.line);
      if (!n.attrs.empty()) text = n.attrs + " " + text;
      for (const Outline::Cut& cut : n.cuts) text += fmt::format("; cut: {}", cut.why);
      out.children.push_back({fmt::format("{} = {}", n.name, n.op), text, n.level, {}});
    }
    return out;
  }

  void profile() {
    constexpr double kMillion = 1e6;
    const int segment = std::max(1, static_cast<int>(std::lround(std::sqrt(specimen_.chunks()))));
    const ttt::MetaProgram kept = ttt::meta_program(specimen_, DType::f64, segment);
    const Profile p = program_.function.plan({.device = Device::cpu()}).profile(program_.inputs),
                  q = kept.function.plan({.device = Device::cpu()}).profile(kept.inputs);
    out_.trace = chrome_trace(p, specimen_.name);

    const double apart =
                     std::abs(static_cast<double>(p.predicted_peak) - static_cast<double>(p.measured_peak)),
                 spare = static_cast<double>(p.spare_on_top);
    ReportView& memory =
        add("memory", "Memory over the run", "What fills the memory, and did the planner know?",
            "Bytes that are live while each instruction of the outermost program runs, by the level of what "
            "wrote them. Stacks of the inner loop's steps are what a meta-gradient stores; checkpointing "
            "trades them for computing the steps again.\n\n"
            "The planner predicts the peak before the run. It is measured by painting the memory and finding "
            "the highest byte that changed.");
    memory.claims = {{"predicted peak = highest byte written, but for padding and unused scratch on top",
                      std::max(0.0, apart - spare), static_cast<double>(kArenaAlignment), "bytes"}};
    Chart chart{"Live memory", "instruction", "memory (MB)", {}};
    for (int level = 0; level < p.levels; ++level) {
      Series s{level_name(level, p.levels), {}, {}};
      for (const MemoryPoint& m : p.memory) {
        s.x.push_back(static_cast<double>(s.x.size()));
        const auto at = static_cast<std::size_t>(level);
        s.y.push_back(at < m.bytes_by_level.size() ? static_cast<double>(m.bytes_by_level[at]) / kMillion
                                                   : 0);
      }
      chart.series.push_back(s);
    }
    chart.reference_lines = {{"predicted peak", static_cast<double>(p.predicted_peak) / kMillion}};
    Table peaks{.title = "Peaks",
                .columns = {"plan", "predicted (kB)", "measured (kB)", "recomputed (% of time)"}};
    const auto kilo = [](std::size_t bytes) { return format_number(static_cast<double>(bytes) / 1e3); };
    for (const auto& [name, x] : {std::pair{std::string("every step stored"), &p},
                                  {fmt::format("every {} steps stored", segment), &q}})
      peaks.rows.push_back(
          {name, kilo(x->predicted_peak), kilo(x->measured_peak), format_number(100 * x->recompute_share)});
    memory.pictures = {chart, peaks};

    ReportView& time =
        add("time", "Time by op and level", "Where does the time go?",
            "Own time of the instructions of one run, one thread, added up by op and by the level "
            "that wrote them. Ops that run as one instruction are joined by +.");
    std::map<std::string, std::vector<double>> by_op;
    std::vector<double> by_level(static_cast<std::size_t>(p.levels), 0);
    double total = 0;
    for (const InstructionProfile& i : p.instructions) {
      auto& row = by_op[i.ops];
      row.resize(static_cast<std::size_t>(p.levels), 0);
      row[static_cast<std::size_t>(i.level)] += i.seconds;
      by_level[static_cast<std::size_t>(i.level)] += i.seconds;
      total += i.seconds;
    }
    time.claims = {{"the instructions' own times are within the run's",
                    std::max(0.0, total - p.seconds) / p.seconds, 1e-9}};
    std::vector<std::pair<double, std::string>> order;
    for (const auto& [op, row] : by_op) order.emplace_back(std::accumulate(row.begin(), row.end(), 0.0), op);
    std::ranges::sort(order, std::greater<>());
    constexpr std::size_t kMostOps = 12;
    Bars bars{.title = "Time by op", .y_label = "time (us)", .stacked = true};
    for (int level = 0; level < p.levels; ++level) bars.groups.push_back({level_name(level, p.levels), {}});
    for (std::size_t i = 0; i < std::min(kMostOps, order.size()); ++i) {
      const std::string& op = order[i].second;
      bars.names.push_back(op.size() > 28 ? op.substr(0, 25) + "..." : op);
      for (std::size_t level = 0; level < bars.groups.size(); ++level)
        bars.groups[level].values.push_back(by_op[op][level] * kMillion);
    }
    Table levels{.title = "Time by level", .columns = {"level", "time (us)", "share (%)"}};
    for (std::size_t level = 0; level < by_level.size(); ++level)
      levels.rows.push_back({level_name(static_cast<int>(level), p.levels),
                             format_number(by_level[level] * kMillion),
                             format_number(100 * by_level[level] / total)});
    time.pictures = {bars, levels};
  }

  void precision() {
    const ttt::PrecisionProbe r = options_.precision ? options_.precision() : ttt::precision(specimen_);
    ReportView& view =
        add("precision", "Precision", "Is f32 enough for this gradient?",
            "The same outer gradient in f32 and in f64. 1 - cosine says how far the direction is off; "
            "the worst tensor is the first suspect when training in f32 goes wrong.");
    Table table{.title = "f32 against f64",
                .columns = {"tensor", "norm, f64", "1 - cosine", "largest relative error"}};
    for (const auto& e : r.entries)
      table.rows.push_back(
          {e.name, format_number(e.norm), format_number(1 - e.cosine), format_number(e.error)});
    view.pictures = {table};
    if (!r.entries.empty())
      view.preformatted = fmt::format("all tensors as one vector: 1 - cosine = {:.2e}; worst: {}\n",
                                      1 - r.cosine, r.entries[r.worst].name);
  }

  const Specimen& specimen_;
  const InspectionOptions& options_;
  std::int64_t heads_;
  Inspection out_;
  ttt::Channels channels_;
  ttt::MetaProgram program_;
};

// Empty for what is no drawing: tables and trees.
std::string svg_of(const Picture& picture) {
  return std::visit(
      []<class P>(const P& p) -> std::string {
        if constexpr (std::is_same_v<P, Table> || std::is_same_v<P, Tree>) return {};
        else return svg(p);
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

Inspection inspect(const ttt::Specimen& specimen, const InspectionOptions& options) {
  specimen.check();
  return Maker(specimen, options).run();
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
  std::filesystem::create_directories(folder + "/views");
  for (const auto& [name, array] : arrays) write_npy(fmt::format("{}/views/{}.npy", folder, name), array);
  for (const ReportView& view : views) {
    int number = 0;
    for (const Picture& picture : view.pictures)
      if (const std::string image = svg_of(picture); !image.empty())
        write_file_atomically(fmt::format("{}/views/{}-{}.svg", folder, view.id, ++number), image);
  }
  write_file_atomically(folder + "/graph.dot", graph_dot);
  write_file_atomically(folder + "/graph.txt", graph_text);
  write_file_atomically(folder + "/trace.json", trace);
  write_file_atomically(folder + "/summary.jsonl", summary());
  write_file_atomically(folder + "/report.html", html());
}

// ---- of a language model ----

namespace {

// Numbers of a checkpoint as f64 or f32, by name.
StateDict cast_to(const StateDict& params, DType dtype) {
  StateDict out;
  for (const auto& [name, value] : params) out.emplace(name, value.cast(dtype));
  return out;
}

}  // namespace

ttt::Specimen layer_specimen(const Checkpoint& checkpoint, const Array& tokens, std::int64_t layer) {
  const LanguageModelConfig& config = checkpoint.config;
  if (layer < 0 || layer >= config.num_hidden_layers)
    throw ConfigError(fmt::format("[inspect] there is no layer {}; the model has {}, counted from 0", layer,
                                  config.num_hidden_layers));
  if (config.ttt_layer_type == "attention" || config.ttt_layer_type == kEndToEnd)
    throw ConfigError(
        fmt::format("[inspect] the model's layers are '{}', which have no inner loop of their "
                    "own; inspect a model with a learner",
                    config.ttt_layer_type));
  const ttt::System& system = learner_system(config.ttt_layer_type);
  const std::string name = fmt::format("layers.{}.seq_modeling_block", layer);
  const ttt::SystemSizes sizes{config.num_attention_heads, config.hidden_size / config.num_attention_heads,
                               config.mini_batch_size};

  std::vector<std::string> gates;
  bool position = false;
  const TracedModel model =
      trace_model(DType::f64, {tokens.spec()}, [&](ParamTable& table, const std::vector<Tensor>& in) {
        const LanguageModel lm(config, Params(table));
        ttt::Stream stream;
        stream.tap_inner_loops = true;
        const Tensor losses = next_token_loss(lm, in[0], stream);
        const auto& taps = stream.taps();
        const Tensor answers = taps.at(name + ".answers");
        std::vector<Tensor> out{losses, grad(mean(losses), {answers})[0], taps.at(name + ".q"),
                                taps.at(name + ".k"), taps.at(name + ".v")};
        const std::string prefix = name + ".gates.";
        for (const auto& [key, value] : taps)
          if (key.starts_with(prefix)) gates.push_back(key.substr(prefix.size())), out.push_back(value);
        if (const auto at = taps.find(name + ".position"); at != taps.end())
          position = true, out.push_back(at->second);
        return out;
      });
  check_fits(model.params, checkpoint.params, "the checkpoint");
  const StateDict params = cast_to(checkpoint.params, DType::f64);
  const std::vector<Array> r = model.function(model.bind({tokens}, {&params}));

  ttt::Specimen out;
  out.name = fmt::format("layer {} of a {} language model", layer, system.name);
  out.learner = [&system, sizes](const Params& p) { return system.learner(p, sizes); };
  out.policy = system.policy(sizes);
  out.outer_loss = r[0].to_vector();
  out.outer_unit = "nats per token";
  out.cotangent = r[1], out.q = r[2], out.k = r[3], out.v = r[4];
  for (std::size_t i = 0; i < gates.size(); ++i) out.gates[gates[i]] = r[5 + i];
  if (position) out.position = r.back();
  const std::string prefix = "model." + name + ".";
  for (const auto& [key, value] : params)
    if (key.starts_with(prefix)) out.params[key.substr(prefix.size())] = value;
  return out;
}

ttt::PrecisionProbe model_precision(const Checkpoint& checkpoint, const Array& tokens) {
  std::vector<std::string> names;
  const auto gradients = [&](DType dtype) {
    const TracedModel model =
        trace_model(dtype, {tokens.spec()}, [&](ParamTable& table, const std::vector<Tensor>& in) {
          ttt::Stream stream;
          const Tensor loss = mean(next_token_loss(checkpoint.config, Params(table), in[0], stream));
          return grad(loss, table.tensors(), {.allow_zero = true});
        });
    names.clear();
    for (const ParamSpec& p : model.params) names.push_back(p.name);
    const StateDict params = cast_to(checkpoint.params, dtype);
    return model.function(model.bind({tokens}, {&params}));
  };
  const std::vector<Array> low = gradients(DType::f32), high = gradients(DType::f64);
  return ttt::compare_precision(names, low, high);
}

}  // namespace nestgrad
