#include "models/images/invented.h"

#include "models/images/pen.h"

namespace nestgrad {

namespace {

using detail::Draws;

constexpr std::uint32_t kCharacter = 0x69'6e'76'01, kHand = 0x69'6e'76'02;  // purposes of draws
constexpr int kColumns = 4, kRows = 5;  // of places that a pen goes through

// The strokes of a character, which `Character` only looks at.
struct Strokes {
  std::vector<std::vector<detail::ControlPoint>> points;

  explicit Strokes(Draws& draws) {
    const int count = 2 + draws.below(3);
    for (int s = 0; s < count; ++s) {
      std::vector<detail::ControlPoint> stroke;
      if (s > 0 && draws.unit() < 0.6) {  // it begins at a point of the one before
        const std::vector<detail::ControlPoint>& before = points.back();
        stroke.push_back(before[static_cast<std::size_t>(draws.below(static_cast<int>(before.size())))]);
        stroke.back().corner = false;
      }
      const int length = static_cast<int>(stroke.size()) + 2 + draws.below(2);
      while (static_cast<int>(stroke.size()) < length) {
        const double column = draws.below(kColumns), row = draws.below(kRows);
        const detail::ControlPoint next{0.68 * column / (kColumns - 1), row / (kRows - 1),
                                        draws.unit() < 0.3};
        if (stroke.empty() || next.x != stroke.back().x || next.y != stroke.back().y) stroke.push_back(next);
      }
      points.push_back(std::move(stroke));
    }
  }
};

// The pose of a character whose middle is near the middle of the image.
detail::Affine in_the_middle(const std::vector<detail::Line>& lines, const GlyphOptions& o, Draws& draws) {
  const auto size = static_cast<double>(o.size);
  detail::Posed at = detail::posed(lines, o, draws);
  at.pose.x = 0.5 * (size - at.left - at.right) + draws.around(0.03 * size);
  at.pose.y = 0.5 * (size - at.top - at.bottom) + draws.around(0.03 * size);
  return at.pose;
}

}  // namespace

Array invented(std::uint64_t alphabet, std::uint64_t character, std::uint64_t hand, std::int64_t size) {
  const GlyphOptions options{.size = size,
                             .distractors = 0,
                             .smallest = 0.7,
                             .largest = 0.8,
                             .rotation = 0.15,
                             .shear = 0.15,
                             .thinnest = 0.06,
                             .thickest = 0.09,
                             .jitter = 0.04};
  detail::check_options(options, "invented");
  Draws of_character(alphabet, kCharacter, character);
  const Strokes strokes(of_character);
  const std::vector<detail::Stroke> looked_at(strokes.points.begin(), strokes.points.end());
  // 2^20 hands of each character have numbers of their own.
  Draws draws(alphabet, kHand, (character << 20) + hand);
  const double half = 0.5 * static_cast<double>(size) * draws.between(options.thinnest, options.thickest);
  const std::vector<detail::Line> lines = written({"", looked_at}, options.jitter, draws);
  const detail::Affine pose = in_the_middle(lines, options, draws);
  Array out = Array::zeros(DType::f32, {size, size, 1});
  detail::Ink ink(size);
  for (const detail::Line& line : lines) ink.draw(transformed(pose, line), half, out.as<float>().data());
  return out;
}

}  // namespace nestgrad
