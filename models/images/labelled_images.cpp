#include "models/images/labelled_images.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <span>
#include <utility>

#include "engine/core/index.h"
#include "engine/core/random.h"
#include "engine/io/file.h"
#include "engine/io/idx.h"
#include "engine/io/no_pipe.h"
#include "engine/io/png.h"

namespace nestgrad {

namespace {

namespace fs = std::filesystem;

constexpr std::int32_t kDigits = 10;

// A set may be put together by hand. ShapeError, DTypeError: its arrays are not those of labelled images.
void check(const LabelledImages& all) {
  if (all.images.dtype() != DType::f32 || all.labels.dtype() != DType::i32)
    throw DTypeError(fmt::format("[images] images are {}, labels {}; they must be f32 and i32",
                                 to_string(all.images.spec()), to_string(all.labels.spec())));
  if (all.images.shape().size() != 4 || all.labels.shape() != Shape{all.images.shape()[0]})
    throw ShapeError(fmt::format(
        "[images] images are {}, labels {}; they must be [count, height, width, channels] and [count]",
        to_string(all.images.spec()), to_string(all.labels.spec())));
}

bool is_hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }
bool is_png(const fs::path& path) {
  std::string end = path.extension().string();
  std::ranges::transform(end, end.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return end == ".png";
}

// What lies in a folder and is not hidden, sorted.
std::vector<fs::path> inside(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> out;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    if (!is_hidden(at->path())) out.push_back(at->path());
  if (error)
    throw IoError(fmt::format("[image folder] {}: {}; give a folder of folders of PNG files",
                              printable(folder.string()), error.message()));
  std::ranges::sort(out, {}, [](const fs::path& path) { return path.filename().string(); });
  return out;
}

using Class = std::pair<std::string, std::vector<fs::path>>;  // name, files

// The classes below a folder, of which `name` is the name.
void find_classes(const fs::path& folder, const std::string& name, std::vector<Class>& out) {
  const std::size_t before = out.size();
  std::vector<fs::path> files;
  for (const fs::path& path : inside(folder)) {
    std::error_code none;  // a link that leads nowhere, or to itself, is no folder
    if (fs::is_directory(path, none) && !fs::is_symlink(path, none))
      find_classes(path, (name.empty() ? "" : name + "/") + path.filename().string(), out);
    else if (is_png(path)) files.push_back(path);
  }
  for (const fs::path& path : files) check_no_pipe(path);
  if (!files.empty() && name.empty())
    throw ConfigError(fmt::format("[image folder] {} lies in no class; put it into a folder of that name",
                                  printable(files[0].string())));
  if (!files.empty()) out.emplace_back(name, std::move(files));
  if (out.size() == before)
    throw IoError(
        fmt::format("[image folder] {}: there is no PNG file in it; remove it, or give another folder",
                    printable(folder.string())));
}

Array of_labels(const std::vector<std::int32_t>& labels) {
  Array out(DType::i32, {std::ssize(labels)});
  std::ranges::copy(labels, out.as<std::int32_t>().begin());
  return out;
}

}  // namespace

LabelledImages read_mnist(const fs::path& images, const fs::path& labels) {
  const Array pixels = read_idx(images.string()), digits = read_idx(labels.string());
  const auto check = [](const Array& read, const fs::path& path, std::size_t axes, std::string_view what) {
    if (read.shape().size() != axes || read.size() == 0)
      throw IoError(fmt::format("[mnist] {}: {} is no shape of {}; give the file of the {}",
                                printable(path.string()), to_string(read.shape()), what, what));
  };
  check(pixels, images, 3, "images");
  check(digits, labels, 1, "labels");
  if (pixels.shape()[0] != digits.shape()[0])
    throw ConfigError(fmt::format(
        "[mnist] {} has {} images, {} has {} labels; give two files that belong together",
        printable(images.string()), pixels.shape()[0], printable(labels.string()), digits.shape()[0]));
  for (const std::int32_t digit : digits.as<std::int32_t>())
    if (digit >= kDigits)
      throw ConfigError(
          fmt::format("[mnist] {} has a label {}; need digits", printable(labels.string()), digit));

  LabelledImages out;
  out.images = Array(DType::f32, {pixels.shape()[0], pixels.shape()[1], pixels.shape()[2], 1});
  std::ranges::transform(pixels.as<std::int32_t>(), out.images.as<float>().begin(),
                         [](std::int32_t v) { return static_cast<float>(v) / 255.0f; });
  out.labels = digits;
  for (std::int32_t digit = 0; digit < kDigits; ++digit) out.classes.push_back(std::to_string(digit));
  return out;
}

LabelledImages read_image_folder(const fs::path& path) {
  std::vector<Class> classes;
  find_classes(path, "", classes);
  std::ranges::sort(classes);
  LabelledImages out;
  std::vector<Array> images;
  std::vector<std::int32_t> labels;
  for (const auto& [name, files] : classes) {
    for (const fs::path& file : files) {
      images.push_back(read_png(file.string()));
      labels.push_back(static_cast<std::int32_t>(out.classes.size()));
      if (images.back().shape() != images[0].shape())
        throw ConfigError(fmt::format(
            "[image folder] {} is {}, {} is {}; need images of one size, all grey or all in colour",
            printable(classes[0].second[0].string()), to_string(images[0].shape()), printable(file.string()),
            to_string(images.back().shape())));
    }
    out.classes.push_back(name);
  }
  Shape shape = images[0].shape();
  shape.insert(shape.begin(), std::ssize(images));
  out.images = Array(DType::f32, shape);
  std::byte* to = out.images.data();
  for (const Array& image : images) to = std::copy_n(image.data(), image.bytes(), to);
  out.labels = of_labels(labels);
  return out;
}

std::optional<std::pair<fs::path, fs::path>> mnist_files(const fs::path& folder) {
  // What stands before the end of a name says what belongs together: "t10k-".
  const auto ending_in = [&](const std::string& end) {
    std::map<std::string, fs::path> out;
    std::error_code error;
    for (fs::directory_iterator at(folder, error), last; !error && at != last; at.increment(error)) {
      if (is_hidden(at->path())) continue;
      const std::string name = at->path().filename().string();
      for (const std::string& whole : {end, end + ".gz"})
        if (name.ends_with(whole)) out.emplace(name.substr(0, name.size() - whole.size()), at->path());
    }
    return out;
  };
  const std::map<std::string, fs::path> images = ending_in("images-idx3-ubyte"),
                                        labels = ending_in("labels-idx1-ubyte");
  if (images.empty() && labels.empty()) return {};
  for (const auto* files : {&images, &labels})
    for (const auto& [name, path] : *files) check_no_pipe(path);
  std::vector<std::pair<fs::path, fs::path>> pairs;
  for (const auto& [name, path] : images)
    if (const auto at = labels.find(name); at != labels.end()) pairs.emplace_back(path, at->second);
  if (pairs.size() > 1)
    throw ConfigError(fmt::format(
        "[mnist] {} holds {} pairs of files of images and labels ({}, ..); give a folder with one",
        printable(folder.string()), pairs.size(), printable(pairs[0].first.filename().string())));
  if (!pairs.empty()) return pairs[0];
  if (images.size() != 1 || labels.size() != 1)
    throw ConfigError(fmt::format(
        "[mnist] {} holds {} files of images and {} of labels, and no two of one name; give a folder with "
        "a file of images and the file of their labels",
        printable(folder.string()), images.size(), labels.size()));
  return std::pair{images.begin()->second, labels.begin()->second};
}

LabelledImages read_labelled_images(const fs::path& folder) {
  const auto files = mnist_files(folder);
  return files ? read_mnist(files->first, files->second) : read_image_folder(folder);
}

LabelledImages with_classes(const LabelledImages& all, const std::vector<std::int32_t>& classes) {
  check(all);
  constexpr std::int32_t kNone = -1;
  std::vector<std::int32_t> becomes(all.classes.size(), kNone);
  LabelledImages out;
  for (const std::int32_t c : classes) {
    if (c < 0 || uz(c) >= all.classes.size() || becomes[uz(c)] != kNone)
      throw ConfigError(fmt::format("[with_classes] class {} is asked for twice, or is none of 0 to {}", c,
                                    std::ssize(all.classes) - 1));
    becomes[uz(c)] = static_cast<std::int32_t>(out.classes.size());
    out.classes.push_back(all.classes[uz(c)]);
  }
  const std::span<const std::int32_t> before = all.labels.as<std::int32_t>();
  std::vector<std::int32_t> labels;
  std::vector<std::int64_t> taken;
  for (std::size_t c = 0; c < classes.size(); ++c)
    for (std::size_t i = 0; i < before.size(); ++i)
      if (before[i] == classes[c]) {
        labels.push_back(static_cast<std::int32_t>(c));
        taken.push_back(static_cast<std::int64_t>(i));
      }
  out.images = picked(all, taken).images;
  out.labels = of_labels(labels);
  return out;
}

LabelledImages picked(const LabelledImages& all, const std::vector<std::int64_t>& numbers) {
  check(all);
  const std::int64_t known = all.labels.size();
  Shape shape = all.images.shape();
  shape[0] = std::ssize(numbers);
  LabelledImages out{Array(DType::f32, shape), Array(DType::i32, {std::ssize(numbers)}), all.classes};
  const std::size_t bytes = all.images.bytes() / std::max<std::size_t>(uz(known), 1);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i] < 0 || numbers[i] >= known)
      throw ConfigError(
          fmt::format("[images] there is no image {}; there are {}, counted from 0", numbers[i], known));
    std::memcpy(out.images.data() + i * bytes, all.images.data() + uz(numbers[i]) * bytes, bytes);
    out.labels.as<std::int32_t>()[i] = all.labels.as<std::int32_t>()[uz(numbers[i])];
  }
  return out;
}

LabelledImages drawn(const LabelledImages& all, std::int64_t count, std::uint64_t seed, std::uint64_t first) {
  check(all);
  constexpr std::uint64_t kBatch = 0x6261746368;  // stream of random numbers
  const auto known = static_cast<std::uint32_t>(all.labels.size());
  if (known == 0 || count < 0)
    throw ConfigError(fmt::format("[images] {} of {} images cannot be drawn", count, known));
  Shape shape = all.images.shape();
  shape[0] = count;
  const Array room(DType::f32, shape);  // an error where there is too little, before as many are drawn
  std::vector<std::int64_t> numbers;
  for (std::int64_t i = 0; i < count; ++i)
    numbers.push_back(random_below(known, seed, kBatch, first + static_cast<std::uint64_t>(i)));
  return picked(all, numbers);
}

std::int64_t right_answers(const Array& logits, const Array& labels) {
  if (logits.dtype() != DType::f32 || labels.dtype() != DType::i32)
    throw DTypeError(fmt::format("[right_answers] logits are {}, labels {}; they must be f32 and i32",
                                 to_string(logits.spec()), to_string(labels.spec())));
  Shape of_labels = logits.shape();
  if (!of_labels.empty()) of_labels.pop_back();
  if (logits.shape().empty() || logits.shape().back() == 0 || of_labels != labels.shape())
    throw ShapeError(
        fmt::format("[right_answers] logits are {}, labels {}; they must be [.., classes] and [..]",
                    to_string(logits.spec()), to_string(labels.spec())));
  const auto classes = uz(logits.shape().back());
  const std::span<const float> all = logits.as<float>();
  std::int64_t out = 0;
  for (std::size_t i = 0; i < uz(labels.size()); ++i) {
    const std::span<const float> of_one = all.subspan(i * classes, classes);
    if (std::ranges::any_of(of_one, [](float x) { return std::isnan(x); }))
      throw ValueError(
          fmt::format("[right_answers] logits of image {} are NaN; the model that made them, or its "
                      "images, have numbers that are not finite",
                      i));
    out += std::ranges::max_element(of_one) - of_one.begin() == labels.as<std::int32_t>()[i];
  }
  return out;
}

}  // namespace nestgrad
